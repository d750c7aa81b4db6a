"""Boxes in COCO's format, which annotation tools and evaluations read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from serfer.core.report import PredictedImage

_DIGITS = 2  # of a pixel


def coco(images: Sequence[PredictedImage], labels: Sequence[str]) -> dict[str, Any]:
    """Return images and their boxes as a COCO data set whose annotations have scores.

    A box is [left, top, width, height] in pixels. Numbers count from 1, as pycocotools expects of annotations: category
    k + 1 is class k. Categories are all `labels`, or the classes that were found where there are none.
    """
    found = {box.index: box.label for image in images for box in image.boxes}
    classes = dict(sorted({**found, **dict(enumerate(labels))}.items()))
    annotations = [
        {"image_id": number, "category_id": box.index + 1, "score": box.score, **_place(box.box)}
        for number, image in enumerate(images, 1)
        for box in image.boxes
    ]
    return {
        "images": [
            {"id": number, "file_name": image.name, "height": image.height, "width": image.width}
            for number, image in enumerate(images, 1)
        ],
        "annotations": [{"id": number, **annotation} for number, annotation in enumerate(annotations, 1)],
        "categories": [{"id": index + 1, "name": label} for index, label in classes.items()],
    }


def _place(box: tuple[float, float, float, float]) -> dict[str, Any]:
    left, top, right, bottom = box
    sides = (left, top, right - left, bottom - top)
    area = round((right - left) * (bottom - top), _DIGITS)
    return {"bbox": [round(side, _DIGITS) for side in sides], "area": area, "iscrowd": 0}
