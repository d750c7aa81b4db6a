"""What a network's outputs say of images, by the kind of its plan: classes, boxes, vectors or maps."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.arrays import PNG, encode, holds
from serfer.core.detections import detected
from serfer.core.errors import InputError
from serfer.core.plan import ACTIVATIONS, OutputTensor, Plan
from serfer.core.plan.detection import DetectionHead
from serfer.core.report import BOXES, CLASSES, MAP, VECTOR, DetectedObject, ImageAnswer, PredictedImage, PredictedOutput
from serfer.pipeline.query import NamedImage, Wanted, preprocess_of
from serfer.pipeline.report import best_classes

Outputs = Mapping[str, NDArray[Any]]
MOST_NUMBERS = 65_536
"""Values of a table of one image that an answer has as numbers, unless its size depends on the image."""
_ROWS_AND_COLUMNS = 2  # axes


def kind_of(plan: Plan) -> str:
    """Return what kind of answer a plan gives, of `KINDS`.

    One vector of scores without labels that nothing turns into scores is a vector: an embedding. So are tables of
    numbers, such as indices.
    """
    if plan.detection:
        return BOXES
    if plan.classifies and (plan.labels or plan.activation != ACTIVATIONS[-1]):
        return CLASSES
    return VECTOR if all(_is_numbers(plan, tensor) for tensor in plan.output_tensors) else MAP


def predicted(plan: Plan, outputs: Outputs, images: Sequence[NamedImage], wanted: Wanted) -> tuple[ImageAnswer, ...]:
    """Return what a query's outputs, (N, ...) each, say of its N images; of those that are kept, names and sizes."""
    if not outputs:
        return tuple(image.blank() for image in images)
    if wanted.classes:
        [logits] = outputs.values()
        rows = zip(images, logits, strict=True)
        return tuple([ImageAnswer(image.name, best_classes(plan, row, wanted.top_k)) for image, row in rows])
    return tuple([_predicted(plan, outputs, number, image, wanted) for number, image in enumerate(images)])


def draws(plan: Plan) -> bool:
    """Return whether answers of a plan have all of its outputs in `PredictedOutput`: none is a map of many channels."""
    return kind_of(plan) != MAP or all(
        _is_numbers(plan, tensor) or holds(PNG, tensor) for tensor in plan.output_tensors
    )


def _is_numbers(plan: Plan, tensor: OutputTensor) -> bool:
    """Return whether an image's output is a vector or a table: nothing in it has the image's rows and columns."""
    if len(tensor.dims) < _ROWS_AND_COLUMNS or tensor.sized_by:
        return True
    sides = (tensor.dims[-2:], tensor.dims[-3:-1])  # channels first, or last
    pictured = any(len(pair) == _ROWS_AND_COLUMNS and _has_aspect(plan, *pair) for pair in sides)
    return not pictured and prod(tensor.dims) <= MOST_NUMBERS


def _has_aspect(plan: Plan, rows: int, columns: int) -> bool:
    """Return whether a map has the input's ratio of rows to columns, up to a row or column that a stride rounds off."""
    height, width = plan.input.height, plan.input.width
    return abs(rows * width - columns * height) < max(height, width)


def _predicted(plan: Plan, outputs: Outputs, number: int, image: NamedImage, wanted: Wanted) -> PredictedImage:
    blank, kind = image.blank(), kind_of(plan)
    if plan.detection:
        return replace(blank, boxes=_boxes(plan, plan.detection, outputs, number, image, wanted))
    if kind == CLASSES:
        [logits] = outputs.values()
        return replace(blank, predictions=best_classes(plan, logits[number], wanted.top_k))
    drawn = (
        _output(tensor.name, tensor, _of_image(tensor, outputs, number), as_numbers=_is_numbers(plan, tensor))
        for tensor in plan.output_tensors
    )
    return replace(blank, outputs=tuple(drawn))


def _of_image(tensor: OutputTensor, outputs: Outputs, number: int) -> NDArray[Any]:
    values = outputs[tensor.name][number : number + 1]
    if not tensor.sized_by:
        return values
    return np.take(values, range(int(outputs[tensor.sized_by][number])), axis=tensor.axis + 1)


def _boxes(
    plan: Plan, head: DetectionHead, outputs: Outputs, number: int, image: NamedImage, wanted: Wanted
) -> tuple[DetectedObject, ...]:
    size = plan.input.height, plan.input.width
    if wanted.min_score is not None:
        head = replace(head, min_score=wanted.min_score)
    found = detected(head, outputs, number, size)
    corners = preprocess_of(plan).placement(*image.size, size).to_image(found.corners)
    return tuple(
        DetectedObject(_label(plan, int(index)), int(index), float(score), (left, top, right, bottom))
        for (left, top, right, bottom), score, index in zip(corners.tolist(), found.scores, found.classes, strict=True)
        if left < right and top < bottom
    )


def _label(plan: Plan, index: int) -> str:
    return plan.labels[index] if 0 <= index < len(plan.labels) else str(index)


def _output(name: str, tensor: OutputTensor, values: NDArray[Any], *, as_numbers: bool) -> PredictedOutput:
    output = PredictedOutput(name, tensor.dtype, values.shape[1:])
    if as_numbers:
        return replace(output, values=tuple(np.ravel(values).tolist()))
    if not holds(PNG, tensor):
        return output
    try:
        return replace(output, png=base64.b64encode(encode(values, PNG, tensor.name)).decode("ascii"))
    except InputError:  # a mask of more classes than a PNG has
        return output
