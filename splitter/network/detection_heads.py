"""What `split --output boxes` means: the head of a detector, by its outputs' names, types and shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

from serfer.core.detections import ANCHORS, STRIDES, cells_in, has_columns_first
from serfer.core.errors import ModelError, PlanError, UsageError
from serfer.core.plan import OutputTensor, Shape
from serfer.core.plan.detection import (
    BEFORE_CLASSES,
    END2END,
    FAMILIES,
    MAX_IOU,
    NMS,
    SELECTED,
    YOLOV5,
    YOLOV8,
    YOLOX,
    DetectionHead,
)

BOXES = "boxes"
ORIENTED = "ultralytics, obb"  # the origin of an oriented detector's metadata
NOT_TURNED = "the file's metadata name task obb, and turned boxes are not read"
_ROW, _CORNERS, _INDICES = 6, 4, 3
_ALL = 1.0  # of max_iou: what a file has left is kept
_NUMBERS = {"score": float, "iou": float, "most": int}
_PLAIN = re.compile(r"\d{0,9}\.?\d{1,9}")
_TENSORFLOW = "detection_boxes"
_Tensors = Sequence[OutputTensor]
_SYNTAX = "boxes[:FAMILY][,score=S][,iou=I][,most=N]"


@dataclass(frozen=True)
class BoxOptions:
    """What a user says of a detector; None leaves it to what the outputs look like, and to the usual thresholds."""

    family: str | None = None
    min_score: float | None = None
    max_iou: float | None = None
    max_boxes: int | None = None

    def __str__(self) -> str:
        """Write the options as `of` reads them."""
        shares = {"score": self.min_score, "iou": self.max_iou}
        numbers = [f"{name}={share:.9f}" for name, share in shares.items() if share is not None]
        numbers += [] if self.max_boxes is None else [f"most={self.max_boxes}"]
        return ",".join([BOXES if self.family is None else f"{BOXES}:{self.family}", *numbers])

    @classmethod
    def of(cls, text: str) -> Self:
        named, *given = text.split(",")
        _, colon, family = named.partition(":")
        if colon and family not in FAMILIES:
            raise UsageError(f"boxes:{family[:40]} is not known: the families are {', '.join(FAMILIES)}")
        numbers: dict[str, float] = {}
        for item in given:
            name, _, value = item.partition("=")
            if name not in _NUMBERS or name in numbers or not _PLAIN.fullmatch(value):
                raise UsageError(f"{item[:40]!r} cannot stand in --output {_SYNTAX}")
            numbers[name] = float(value)
        most = numbers.get("most")
        if most is not None and most != int(most):
            raise UsageError(f"most={most:g} is not a whole number of boxes")
        return cls(family or None, numbers.get("score"), numbers.get("iou"), None if most is None else int(most))

    def head(self, tensors: _Tensors, shape: Shape, labels: int) -> DetectionHead:
        """Return the head of a network of input `shape` that gives `tensors` and has so many labels, 0 for none.

        Raises ModelError where the outputs are of no known form, or not of the family that was named, UsageError for
        thresholds that no head has.
        """
        found = [head for head in _candidates(tensors, shape, labels) if self.family in (None, head.family)]
        found += [] if found or self.family is None else _heads_of_family(self.family, tensors)
        if not found:
            raise ModelError(_unknown(self.family, tensors))
        head = with_classes(found[0], tensors, shape, labels)
        given: dict[str, Any] = {"min_score": self.min_score, "max_iou": self.max_iou, "max_boxes": self.max_boxes}
        try:
            return replace(head, **{name: value for name, value in given.items() if value is not None})
        except PlanError as error:
            raise UsageError(f"--output {BOXES}: {error}") from error


def with_classes(head: DetectionHead, tensors: _Tensors, shape: Shape, labels: int) -> DetectionHead:
    """Return the head with its number of classes; raises ModelError where there are more labels than that.

    Columns behind the classes are not theirs: a network that also segments has as many as its masks.
    """
    before = BEFORE_CLASSES.get(head.family)
    if before is None:
        return replace(head, classes=labels)
    dims = next(tensor.dims for tensor in tensors if tensor.name == head.outputs[0])
    first = has_columns_first(head.family, dims, (shape.height, shape.width))
    columns = dims[0 if first else 1] - before
    if labels > columns:
        raise ModelError(f"there are {labels} labels for a detector with {columns} classes")
    masks = sum(tensor.dims[0] for tensor in tensors if len(tensor.dims) == 3)  # noqa: PLR2004 - maps
    return replace(head, classes=labels or (columns - masks if 0 < masks < columns else columns))


def is_boxes(text: str) -> bool:
    return re.split("[:,]", text, maxsplit=1)[0] == BOXES


def _candidates(tensors: _Tensors, shape: Shape, labels: int) -> list[DetectionHead]:
    return [*_of_several(tensors), *(head for tensor in tensors for head in _of_one(tensor, shape, labels))]


def _of_several(tensors: _Tensors) -> list[DetectionHead]:
    """Return heads of a file that ends in non-maximum suppression: torchvision's, TensorRT's and TensorFlow's names."""
    boxes = [tensor for tensor in tensors if _is(tensor, "float32", 2) and tensor.dims[1] == _CORNERS]
    if not boxes:
        return []
    corners = next((tensor for tensor in boxes if "box" in tensor.name.lower()), boxes[0])
    chosen = [tensor for tensor in tensors if _is(tensor, "int64", 2) and tensor.dims[1] == _INDICES]
    tables = [tensor for tensor in tensors if _is(tensor, "float32", 2) and tensor.dims[1] == corners.dims[0]]
    if chosen and tables and tables[0] != corners:
        outputs = (chosen[0].name, corners.name, tables[0].name, *filter(None, [chosen[0].sized_by]))
        return [DetectionHead(SELECTED, outputs, max_iou=_ALL)]
    rows = [tensor for tensor in tensors if tensor.dims == corners.dims[:1]]
    classes = [tensor for tensor in rows if tensor.dtype != "float32" or _called(tensor, "class", "label", "cls")]
    scores = [tensor for tensor in rows if tensor.dtype == "float32" and tensor not in classes[:1]]
    if len(classes) != 1 or not scores:
        return []
    score = next((tensor for tensor in scores if _called(tensor, "score", "conf")), scores[0])
    count = [tensor.name for tensor in tensors if prod(tensor.dims) == 1 and _called(tensor, "num", "count")][:1]
    count = [corners.sized_by] if corners.sized_by else count
    outputs = (corners.name, score.name, classes[0].name, *count)
    tensorflow = corners.name.lower().startswith(_TENSORFLOW)
    return [DetectionHead(NMS, outputs, max_iou=_ALL, corners="yxyx" if tensorflow else "xyxy", relative=tensorflow)]


def _of_one(tensor: OutputTensor, shape: Shape, labels: int) -> list[DetectionHead]:
    if not _is(tensor, "float32", 2):
        return []
    size = shape.height, shape.width
    counts = {cells_in(size, strides) for strides in STRIDES}
    rows, columns = tensor.dims
    found: list[str] = []
    if columns in counts and rows > BEFORE_CLASSES[YOLOV8]:
        found += [YOLOV8]
    if rows in {ANCHORS * count for count in counts} and columns > BEFORE_CLASSES[YOLOV5]:
        found += [YOLOV5]
    if rows in counts and columns > BEFORE_CLASSES[YOLOV8]:
        found += [YOLOV8, YOLOX] if labels and columns == BEFORE_CLASSES[YOLOV8] + labels else [YOLOX]
    if columns == _ROW and not found:
        found += [END2END]
    return [DetectionHead(name, (tensor.name,), max_iou=_ALL if name == END2END else MAX_IOU) for name in found]


def _heads_of_family(family: str, tensors: _Tensors) -> list[DetectionHead]:
    if family in (NMS, SELECTED):
        return []
    flat = [tensor for tensor in tensors if _is(tensor, "float32", 2)]
    fits = [tensor for tensor in flat if tensor.dims[1] == _ROW] if family == END2END else flat
    if family in BEFORE_CLASSES:
        fits = [tensor for tensor in flat if min(tensor.dims) > BEFORE_CLASSES[family]]
    iou = _ALL if family == END2END else MAX_IOU
    return [DetectionHead(family, (tensor.name,), max_iou=iou) for tensor in fits[:1]]


def _is(tensor: OutputTensor, dtype: str, rank: int) -> bool:
    return tensor.dtype == dtype and len(tensor.dims) == rank


def _called(tensor: OutputTensor, *words: str) -> bool:
    return any(word in tensor.name.lower() for word in words)


def _unknown(family: str | None, tensors: _Tensors) -> str:
    outputs = ", ".join(f"{tensor.name} {list(tensor.dims)} {tensor.dtype}" for tensor in tensors)
    if family:
        return f"the outputs of an image, {outputs}, are not those of a detector of the family {family}"
    return (
        f"the outputs of an image, {outputs}, are not those of a detector that is known: name its family, as in "
        f"--output {BOXES}:{FAMILIES[0]} ({', '.join(FAMILIES)})"
    )
