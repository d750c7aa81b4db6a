"""Boxes in COCO's format, which annotation tools and evaluations read (cocodataset.org, "Data format")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serfer.core.report import DetectedObject, PredictedImage

_DIGITS = 2  # of a pixel


@dataclass(frozen=True, slots=True)
class CocoImage:
    """An image; sides in pixels."""

    id: int
    file_name: str
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class CocoAnnotation:
    """A box of an image: `bbox` is left, top, width and height in pixels."""

    id: int
    image_id: int
    category_id: int
    score: float
    bbox: tuple[float, float, float, float]
    area: float
    iscrowd: int = 0

    @classmethod
    def of(cls, number: int, image: int, index: int, score: float, box: Sequence[float]) -> CocoAnnotation:
        """Return the annotation of a box (left, top, right, bottom) of the class `index`, from 0."""
        left, top, right, bottom = box
        width, height = right - left, bottom - top
        bbox = (round(left, _DIGITS), round(top, _DIGITS), round(width, _DIGITS), round(height, _DIGITS))
        return cls(number, image, index + 1, score, bbox, round(width * height, _DIGITS))


@dataclass(frozen=True, slots=True)
class CocoCategory:
    """A class."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class CocoDataset:
    """Images with the boxes that were found in them."""

    images: tuple[CocoImage, ...]
    annotations: tuple[CocoAnnotation, ...]
    categories: tuple[CocoCategory, ...]


def coco(images: Sequence[PredictedImage], labels: Sequence[str]) -> CocoDataset:
    """Return images and their boxes as a data set whose annotations have scores.

    Numbers count from 1, as pycocotools expects of annotations: category k + 1 is class k. Categories are all `labels`,
    and the classes that were found beyond those.
    """
    found = {box.index: box.label for image in images for box in image.boxes}
    classes = sorted({**found, **dict(enumerate(labels))}.items())
    boxes = [(number, box) for number, image in enumerate(images, 1) for box in image.boxes]
    return CocoDataset(
        tuple(CocoImage(number, image.name, image.height, image.width) for number, image in enumerate(images, 1)),
        tuple(_annotation(number, image, box) for number, (image, box) in enumerate(boxes, 1)),
        tuple(CocoCategory(index + 1, label) for index, label in classes),
    )


def _annotation(number: int, image: int, found: DetectedObject) -> CocoAnnotation:
    return CocoAnnotation.of(number, image, found.index, found.score, found.box)
