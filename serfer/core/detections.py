"""Boxes from what detectors give: heads are decoded, thresholds kept, overlapping boxes left out.

    outputs of one image ──decode──▶ Boxes of all candidates ──best──▶ the few that are kept, best first
                                     in pixels of the network's input

The forms of outputs are those of `FAMILIES`, one image's share, K boxes and C classes:

    yolov5     (K, 5 + C)   centre, width, height, objectness, classes; also YOLOv6 and YOLOv7, K is three times YOLOX's
    yolov8     (4 + C, K)   centre, width, height, classes; also YOLOv9 and YOLO11
    yolox      (K, 5 + C)   as yolov5, but centres count from their cell, in its stride, and sizes are logarithms
    end2end    (K, 6)       corners, score, class; YOLOv10, and others whose file keeps the best boxes
    nms        (K, 4), (K,), (K,)   corners, scores, classes, and perhaps their number, as torchvision and TensorRT have
    selected   (M, 3), (K, 4), (C, K)   NonMaxSuppression's indices (image, class, box), with its boxes and scores
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import PlanError
from serfer.core.plan.detection import END2END, NMS, SELECTED, YOLOV5, YOLOV8, YOLOX, DetectionHead
from serfer.core.report import PredictedImage

Array = NDArray[Any]
Corners = NDArray[np.float64]
"""Boxes (K, 4): left, top, right, bottom."""
STRIDES: Final = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32))
"""Strides of the maps that YOLO's heads have a box for each cell of: the usual three, P6, P2 and the tiny ones'."""
ANCHORS: Final = 3
"""Boxes of each cell in YOLOv5's heads; YOLOX's and YOLOv8's have one."""
_BOX, _BOX_AND_OBJECT = 4, 5  # columns before those of classes
_MAX_LOG_SIZE = 20.0  # of YOLOX's sizes, in strides: no image is so large, and nothing overflows
_MOST_CANDIDATES = 30_000  # the best ones, which alone are compared
_DIGITS = 2  # of a pixel


@dataclass(frozen=True)
class Boxes:
    """Boxes of an image: `corners` (K, 4), `scores` (K,) and the indices of `classes` (K,)."""

    corners: Corners
    scores: NDArray[np.float64]
    classes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, which: Array) -> Boxes:
        return Boxes(self.corners[which], self.scores[which], self.classes[which])


def detected(head: DetectionHead, outputs: Mapping[str, Array], image: int, size: tuple[int, int]) -> Boxes:
    """Return the boxes of one image of a batch, best first, in pixels of the network's input.

    `outputs` are the network's, (N, ...) each, by name; `size` is its input's, rows and columns.
    """
    return best(head, decoded(head, [np.asarray(outputs[name][image]) for name in head.outputs], size))


def decoded(head: DetectionHead, values: Sequence[Array], size: tuple[int, int]) -> Boxes:
    """Return every box that an image's outputs, in the order of `head.outputs`, tell of."""
    boxes = _DECODERS[head.family](head, values, size)
    return _in_pixels(head, boxes, size) if head.family in (END2END, NMS, SELECTED) else boxes


def best(head: DetectionHead, boxes: Boxes) -> Boxes:
    """Return the boxes that `head` keeps, best first; of equal scores, the one that comes first in `boxes`."""
    boxes = boxes[boxes.scores >= head.min_score]
    boxes = boxes[np.argsort(-boxes.scores, kind="stable")[:_MOST_CANDIDATES]]
    return boxes[without_overlaps(boxes, head.max_iou, head.max_boxes)]


def without_overlaps(boxes: Boxes, max_iou: float, most: int) -> NDArray[np.int64]:
    """Return the indices of at most so many boxes, which are in order, best first: non-maximum suppression by class.

    A box is left out where its intersection with a better box that is kept, of its class, is more than `max_iou` of the
    union of both.
    """
    kept: list[int] = []
    left = np.arange(len(boxes))
    areas = box_areas(boxes.corners)
    while len(left) and len(kept) < most:
        first, left = int(left[0]), left[1:]
        kept.append(first)
        top, bottom = boxes.corners[first, :2], boxes.corners[first, 2:]
        sides = np.minimum(boxes.corners[left, 2:], bottom) - np.maximum(boxes.corners[left, :2], top)
        common = sides.clip(0).prod(axis=1)
        over = common > max_iou * (areas[left] + areas[first] - common)
        left = left[~(over & (boxes.classes[left] == boxes.classes[first]))]
    return np.array(kept, dtype=np.int64)


def box_areas(corners: Corners) -> NDArray[np.float64]:
    return np.asarray((corners[:, 2:] - corners[:, :2]).clip(0).prod(axis=1))


def _yolov5(head: DetectionHead, values: Sequence[Array], size: tuple[int, int]) -> Boxes:
    rows = _rows(head, values, size)
    return _around(rows, _scores(head, rows, _BOX_AND_OBJECT) * rows[:, _BOX, None])


def _yolov8(head: DetectionHead, values: Sequence[Array], size: tuple[int, int]) -> Boxes:
    rows = _rows(head, values, size)
    return _around(rows, _scores(head, rows, _BOX))


def _yolox(head: DetectionHead, values: Sequence[Array], size: tuple[int, int]) -> Boxes:
    rows = _rows(head, values, size)
    cells, strides = _cells(size, len(rows))
    scores = _scores(head, rows, _BOX_AND_OBJECT) * rows[:, _BOX, None]
    centres = (rows[:, :2] + cells) * strides
    sides = np.exp(np.minimum(rows[:, 2:_BOX], _MAX_LOG_SIZE)) * strides
    return _around(np.concatenate([centres, sides], axis=1), scores)


def _end2end(_head: DetectionHead, values: Sequence[Array], _size: tuple[int, int]) -> Boxes:
    rows = values[0].astype(np.float64)
    return Boxes(rows[:, :4], rows[:, 4], np.rint(rows[:, 5]).astype(np.int64))


def _nms(_head: DetectionHead, values: Sequence[Array], _size: tuple[int, int]) -> Boxes:
    corners, scores, classes, *count = values
    many = _many(len(scores), count)
    kinds = np.rint(classes[:many]).astype(np.int64)  # some files have them as floats
    return Boxes(corners[:many].astype(np.float64), scores[:many].astype(np.float64), kinds)


def _many(rows: int, count: Sequence[Array]) -> int:
    return min(rows, max(0, int(np.ravel(count[0])[0]))) if count else rows


def _selected(_head: DetectionHead, values: Sequence[Array], _size: tuple[int, int]) -> Boxes:
    indices, corners, scores, *count = values
    classes, places = np.unique(indices[: _many(len(indices), count), 1:].astype(np.int64), axis=0).T
    inside = (classes >= 0) & (classes < len(scores)) & (places >= 0) & (places < len(corners))
    classes, places = classes[inside], places[inside]
    return Boxes(corners[places].astype(np.float64), scores[classes, places].astype(np.float64), classes)


_DECODERS = {YOLOV5: _yolov5, YOLOV8: _yolov8, YOLOX: _yolox, END2END: _end2end, NMS: _nms, SELECTED: _selected}


def has_columns_first(family: str, dims: Sequence[int], size: tuple[int, int]) -> bool:
    """Return whether the predictions (two `dims`) of one of YOLO's families have a column for each box.

    Only YOLOv8's have as a rule; where the other way round is the one that matches the input's size, it is right.
    """
    counts = {(ANCHORS if family == YOLOV5 else 1) * cells_in(size, strides) for strides in STRIDES}
    usual = family == YOLOV8
    boxes, others = (dims[1], dims[0]) if usual else (dims[0], dims[1])
    return not usual if boxes not in counts and others in counts else usual


def _rows(head: DetectionHead, values: Sequence[Array], size: tuple[int, int]) -> NDArray[np.float64]:
    [table] = values
    return (table.T if has_columns_first(head.family, table.shape, size) else table).astype(np.float64)


def _scores(head: DetectionHead, rows: NDArray[np.float64], first: int) -> NDArray[np.float64]:
    return rows[:, first : first + head.classes] if head.classes else rows[:, first:]


def _around(rows: NDArray[np.float64], scores: NDArray[np.float64]) -> Boxes:
    classes = scores.argmax(axis=1)
    centres, halves = rows[:, :2], rows[:, 2:4] / 2
    corners = np.concatenate([centres - halves, centres + halves], axis=1)
    return Boxes(corners, scores[np.arange(len(scores)), classes], classes)


def _in_pixels(head: DetectionHead, boxes: Boxes, size: tuple[int, int]) -> Boxes:
    corners = boxes.corners[:, [1, 0, 3, 2]] if head.corners == "yxyx" else boxes.corners
    corners = np.concatenate(
        [np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])], 1
    )
    return replace(boxes, corners=corners * np.array([size[1], size[0]] * 2) if head.relative else corners)


def cells_in(size: tuple[int, int], strides: Sequence[int]) -> int:
    return sum(prod(side // stride for side in size) for stride in strides)


def _cells(size: tuple[int, int], count: int) -> tuple[Array, Array]:
    for strides in STRIDES:
        if cells_in(size, strides) == count:
            maps = [(stride, size[0] // stride, size[1] // stride) for stride in strides]
            places = [np.stack(np.meshgrid(np.arange(cols), np.arange(rows)), -1) for _, rows, cols in maps]
            each = [np.full((rows * cols, 1), stride) for stride, rows, cols in maps]
            return np.concatenate([place.reshape(-1, 2) for place in places]), np.concatenate(each)
    usual = cells_in(size, STRIDES[0])
    raise PlanError(
        f"a YOLOX head for {size[0]} x {size[1]} pixels has {usual:,} boxes, and this one has {count:,}: name another "
        "family in --output"
    )


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
    boxes = [(number, box.index, box.score, box.box) for number, image in enumerate(images, 1) for box in image.boxes]
    return CocoDataset(
        tuple(CocoImage(number, image.name, image.height, image.width) for number, image in enumerate(images, 1)),
        tuple(CocoAnnotation.of(number, *box) for number, box in enumerate(boxes, 1)),
        tuple(CocoCategory(index + 1, label) for index, label in classes),
    )
