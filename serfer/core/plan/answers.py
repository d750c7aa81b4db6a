"""A query's outputs from what the last stage's tiles wrote, and in the form in which callers get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.checksum import verified
from serfer.core.errors import AlteredPieceError, PlanError, QueryError
from serfer.core.geometry import Rect
from serfer.core.plan.model import OutputTensor, Plan, Shape, stored_bytes
from serfer.core.zarr import Axis, ChunkedArray

Buffer = bytes | memoryview
Outputs = dict[str, NDArray[Any]]
"""A network's outputs by name, each an array (N, ...)."""
Answer = Any
"""A network's outputs as callers get them: the array where there is one, all of them by name where there are several.

Only the network says which, so that callers, who know theirs, need no cast.
"""


def verified_parts(plan: Plan, number: int, value: Buffer, key: str, batch: int) -> tuple[Buffer, ...]:
    """Return the values of each output in what tile `number` of the last stage wrote under `key`.

    Raises AlteredPieceError where they are not what was written.
    """
    stage = plan.stages[-1]
    view, end, parts = memoryview(value), 0, []
    for index, cell in enumerate(stage.tiles[number].cells):
        elements = stage.outputs[cell.output].channels * cell.rect.area
        start, end = end, end + stored_bytes(elements, 1, batch)
        parts.append(verified(view[start:end], key, index))
    if end != len(view):
        raise AlteredPieceError(f"what is stored under {key!r} has another size than the plan says")
    return tuple(parts)


def assembled(plan: Plan, tiles: Sequence[Sequence[Buffer]], batch: int) -> Outputs:
    """Put the outputs together from the parts of each tile of the last stage, as `verified_parts` returns them."""
    stage = plan.stages[-1]
    wholes = [np.empty(shape.of(shape.whole, batch), dtype=np.float32) for shape in stage.outputs]
    for tile, parts in zip(stage.tiles, tiles, strict=True):
        for whole, shape, rect, part in zip(wholes, stage.outputs, tile.outputs, parts, strict=True):
            place = whole[shape.slices(rect)]
            place[...] = np.frombuffer(part, dtype="<f4").reshape(place.shape)
    return shaped(plan.output_tensors, wholes)


def answer_arrays(plan: Plan, images: int) -> tuple[ChunkedArray, ...]:
    """Return the arrays that an answer of so many images is as it is kept: a chunk of each for each tile.

    Raises PlanError where the last stage's tiles are not those of a grid.
    """
    stage = plan.stages[-1]
    return tuple(
        _array(tensor, shape, [tile.outputs[number] for tile in stage.tiles], images)
        for number, (tensor, shape) in enumerate(zip(plan.output_tensors, stage.outputs, strict=True))
    )


def _array(tensor: OutputTensor, shape: Shape, rects: Sequence[Rect], images: int) -> ChunkedArray:
    rows = Axis((0, *sorted({rect.rows.stop for rect in rects})))
    cols = Axis((0, *sorted({rect.cols.stop for rect in rects})))
    sized = tensor.sized_by, tensor.axis
    array = ChunkedArray(tensor.name, tensor.dtype, tensor.dims, images, shape.channels, rows, cols, shape.flat, *sized)
    if [chunk.rect for chunk in array.chunks] != sorted(rects) or (rows.size, cols.size) != (shape.height, shape.width):
        raise PlanError(f"the tiles of output {tensor.name!r} are not those of a grid: its answers cannot be kept")
    return array


def shaped(tensors: Sequence[OutputTensor], values: Sequence[NDArray[Any]]) -> Outputs:
    """Return what stages compute, float32 maps and vectors, as the outputs that the network gives.

    Raises QueryError where an output is larger than its bound.
    """
    outputs = {
        tensor.name: value.reshape(len(value), *tensor.dims).astype(tensor.dtype, copy=False)
        for tensor, value in zip(tensors, values, strict=True)
    }
    for tensor in tensors:
        if tensor.sized_by:
            outputs[tensor.name] = _trim(tensor, outputs)
    return outputs


def _trim(tensor: OutputTensor, outputs: Outputs) -> NDArray[Any]:
    sizes, bound = outputs[tensor.sized_by], tensor.dims[tensor.axis]
    most = int(sizes.max(initial=0))
    if most > bound:
        raise QueryError(
            f"the network's output {tensor.name!r} for image {int(sizes.argmax())} has {most:,} entries, the plan has "
            f"room for {bound:,}: ask with another image, or raise a threshold in the network"
        )
    return np.take(outputs[tensor.name], range(most), axis=tensor.axis + 1)


def padded(tensors: Sequence[OutputTensor], outputs: Outputs) -> Outputs:
    """Return outputs as stages compute them: those whose size depends on the image are as large as they may be."""
    bounds = {tensor.name: (tensor.axis + 1, tensor.dims[tensor.axis]) for tensor in tensors if tensor.sized_by}
    return {name: padded_along(value, *bounds[name]) if name in bounds else value for name, value in outputs.items()}


def padded_along(value: NDArray[Any], axis: int, bound: int) -> NDArray[Any]:
    """Return an array with zeros up to a bound along an axis; what is beyond it is cut off."""
    whole = np.pad(value, [(0, max(0, bound - size) if at == axis else 0) for at, size in enumerate(value.shape)])
    return whole[(slice(None),) * axis + (slice(bound),)]


def as_answer(outputs: Mapping[str, NDArray[Any]]) -> Answer:
    """Return the array of the only output, or the outputs by name where there are several."""
    return next(iter(outputs.values())) if len(outputs) == 1 else dict(outputs)


def joined(answers: Sequence[Answer]) -> Answer:
    if not isinstance(answers[0], Mapping):
        return np.concatenate(answers)
    return {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}


def by_name(plan: Plan, answer: Answer) -> Outputs:
    """Return the outputs of an answer by name: the inverse of `as_answer`."""
    return dict(answer) if isinstance(answer, Mapping) else {plan.output_tensors[0].name: answer}
