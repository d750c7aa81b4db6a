"""Boxes of an image as files: GeoJSON, by longitude and latitude where the image has them, and COCO, in pixels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from serfer.core.detections import Boxes, CocoAnnotation, CocoCategory, CocoImage
from serfer.raster import Georeference
from serfer.raster.georeference import longitude_latitude

GEOJSON, COCO = BOX_SUFFIXES = (".geojson", ".json")
_BLOCK = 10_000
_DEGREES, _PIXELS, _SCORE = 9, 2, 6
"""Decimals: a tenth of a millimetre, a hundredth of a pixel."""
GEOGRAPHIC = "longitude and latitude in degrees, WGS 84"
IN_PIXELS = "columns and rows of the image in pixels, from its upper left corner"


@dataclass(frozen=True)
class BoxedImage:
    """An image, by name and size in pixels, its classes' names, and where its pixels lie."""

    name: str
    height: int
    width: int
    labels: tuple[str, ...]
    georeference: Georeference

    @property
    def geographic(self) -> bool:
        return self.georeference.crs is not None and self.georeference.transform is not None

    def label(self, index: int) -> str:
        return self.labels[index] if index < len(self.labels) else str(index)


def write_boxes(file: Path, suffix: str, boxes: Boxes, image: BoxedImage) -> None:
    """Write boxes, best first, by the suffix; raises OSError, ImageError for places without longitude and latitude."""
    with file.open("w", encoding="utf-8") as out:
        (_write_geojson if suffix == GEOJSON else _write_coco)(out, boxes, image)


def _write_geojson(out: TextIO, boxes: Boxes, image: BoxedImage) -> None:
    """Write a FeatureCollection (RFC 7946): a polygon for each box, counterclockwise.

    Two members are besides the standard's: the `image`, and what `coordinates` are.
    """
    head = {"image": image.name, "coordinates": GEOGRAPHIC if image.geographic else IN_PIXELS}
    out.write(f'{{"type":"FeatureCollection",{_plain(head)[1:-1]},"features":[')
    for start, some in _blocks(boxes):
        rings = _rings(some.corners, image)
        rows = zip(rings.tolist(), some.corners.tolist(), some.scores.tolist(), some.classes.tolist(), strict=True)
        for number, (ring, corners, score, index) in enumerate(rows, start):
            said = {"class": index, "label": image.label(index), "score": round(score, _SCORE)}
            said["box"] = [round(side, _PIXELS) for side in corners]
            feature = {"type": "Feature", "id": number + 1, "geometry": {"type": "Polygon", "coordinates": [ring]}}
            feature["properties"] = said
            out.write(f"{',' if number else ''}\n{_plain(feature)}")
    out.write("\n]}\n")


def _rings(corners: NDArray[np.float64], image: BoxedImage) -> NDArray[np.float64]:
    left, top, right, bottom = corners.T
    points = np.stack([left, top, left, bottom, right, bottom, right, top, left, top], axis=1).reshape(-1, 5, 2)
    if (crs := image.georeference.crs) is not None and image.georeference.transform is not None:
        a, b, c, d, e, f = image.georeference.transform
        cols, rows = points[..., 0], points[..., 1]
        places = np.stack([a * cols + b * rows + c, d * cols + e * rows + f], axis=-1)
        points = longitude_latitude(crs, places.reshape(-1, 2)).reshape(-1, 5, 2)
    x, y = points[:, :, 0], points[:, :, 1]
    doubled = (x[:, :-1] * y[:, 1:] - x[:, 1:] * y[:, :-1]).sum(axis=1)
    turned = np.where(doubled[:, None, None] < 0, points[:, ::-1], points)
    rounded: NDArray[np.float64] = turned.round(_DEGREES if image.geographic else _PIXELS)
    return rounded


def _write_coco(out: TextIO, boxes: Boxes, image: BoxedImage) -> None:
    """Write a COCO data set of one image, whose annotations have scores; category k + 1 is class k."""
    classes = sorted({*range(len(image.labels)), *np.unique(boxes.classes).tolist()})
    categories = [asdict(CocoCategory(index + 1, image.label(index))) for index in classes]
    one = asdict(CocoImage(1, image.name, image.height, image.width))
    out.write(f'{{"images":[{_plain(one)}],"categories":{_plain(categories)},"annotations":[')
    for start, some in _blocks(boxes):
        rows = zip(some.corners.tolist(), some.scores.tolist(), some.classes.tolist(), strict=True)
        for number, (corners, score, index) in enumerate(rows, start):
            annotation = CocoAnnotation.of(number + 1, 1, index, round(score, _SCORE), corners)
            out.write(f"{',' if number else ''}\n{_plain(asdict(annotation))}")
    out.write("\n]}\n")


def _blocks(boxes: Boxes) -> Iterator[tuple[int, Boxes]]:
    for start in range(0, len(boxes), _BLOCK):
        yield start, boxes[np.arange(start, min(start + _BLOCK, len(boxes)))]


def _plain(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
