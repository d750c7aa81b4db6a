"""A tile's arrays from bytes and back: crops and pieces to inputs, outputs to cells (serfer/core/plan)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from serfer.core.checksum import checksum
from serfer.core.errors import AlteredPieceError, InputError, PlanError
from serfer.core.geometry import Rect
from serfer.core.keys import output_key
from serfer.core.plan import Levels, Piece, Preprocess, Stage, Tile
from serfer.core.plan.pixels import normalised_crop
from serfer.core.wire import DTYPES, Buffer, Task

Array = NDArray[np.float32]


def crop_to_input(
    crop: tuple[str, Buffer], task: Task, stage: Stage, tile: Tile, levels: Preprocess | Levels | None
) -> Array:
    """Return a first-stage tile's input, (N, C, rows, cols) float32, from its crop's bytes."""
    dtype, data = crop
    shape = stage.inputs[0].shape.of(tile.inputs[0], task.batch)
    if len(data) != prod(shape) * DTYPES[dtype]:
        raise InputError(f"the crop of tile {task.tile} has {len(data)} bytes, which do not fit {shape} {dtype}")
    if dtype == "float32":
        return np.frombuffer(data, dtype="<f4").reshape(shape)
    if levels is None:
        raise PlanError("the plan does not say how pixels become numbers; describe it (serfer describe --preprocess)")
    if len(levels.mean) != shape[1]:
        raise InputError(f"the crop's levels are of {len(levels.mean)} channels, the tile has {shape[1]}")
    return normalised_crop(data, shape, levels)


def pieces_to_inputs(values: Sequence[Buffer], task: Task, stage: Stage, tile: Tile) -> list[Array]:
    """Put the cells of all pieces where they belong in a tile's inputs.

    `values` are the pieces' ranges, in the plan's order; raises AlteredPieceError for one that is not what was written.
    """
    cells = [*read_cells(values, tile.pieces, stage, task.query, task.batch)]
    return fill_inputs(stage, tile, task.batch, cells)


InputCell: TypeAlias = tuple[int, Rect, Array]
"""The values of a rectangle of a stage's input, flat: the input's number, the rectangle, the values."""


def fill_inputs(
    stage: Stage,
    tile: Tile,
    batch: int,
    cells: Sequence[InputCell],
    own: Mapping[int, tuple[Rect, Array]] | None = None,
) -> list[Array]:
    """Return a tile's inputs; `own` has the rectangles of some, by number, that its function wrote itself."""
    own = own or {}
    shapes = [source.shape.of(rect, batch) for source, rect in zip(stage.inputs, tile.inputs, strict=True)]
    if len(shapes) == len(cells) == 1 and not own:
        return [cells[0][2].reshape(shapes[0])]
    filled = {number for number, (rect, _) in own.items() if rect == tile.inputs[number]}
    results = [
        own[number][1] if number in filled else np.empty(shape, dtype=np.float32) for number, shape in enumerate(shapes)
    ]
    for number, (rect, values) in own.items():
        if number not in filled:
            part_of(results[number], rect, tile.inputs[number])[...] = values
    for number, rect, flat in cells:
        view = part_of(results[number], rect, tile.inputs[number])
        view[...] = flat.reshape(view.shape)
    return results


def input_numbers(stage: Stage) -> dict[tuple[int, int], int]:
    return {(source.stage, source.output): number for number, source in enumerate(stage.inputs)}


def read_cells(
    values: Iterable[Buffer], pieces: Iterable[Piece], stage: Stage, query: str, batch: int
) -> Iterator[InputCell]:
    """Yield the verified cells of pieces that a tile of a stage reads; `values` are their ranges, in the plan's order.

    Raises AlteredPieceError for one that is not what was written.
    """
    numbers = input_numbers(stage)
    runs = [(piece, run) for piece in pieces for run in piece.ranges]
    for value, (piece, run) in zip(values, runs, strict=True):
        key, end = output_key(query, piece.stage, piece.tile), 0
        if len(value) != run.length(batch):
            raise AlteredPieceError(f"a piece under {key!r} has another size than the plan says")
        floats, checksums = np.frombuffer(value, dtype="<f4"), np.frombuffer(value, dtype="<u4")
        for index, cell in enumerate(run.cells, run.first):
            number = numbers[piece.stage, cell.output]
            values = floats[end : end + batch * stage.inputs[number].shape.channels * cell.rect.area]
            end += len(values) + 1
            if checksum(values.data, key, index) != checksums[end - 1]:
                raise AlteredPieceError(f"a piece under {key!r} was altered: its checksum does not match")
            yield number, cell.rect, values


def cells_to_bytes(outputs: Sequence[Array], tile: Tile, key: str, numbers: Sequence[int] | None = None) -> memoryview:
    """Lay out a tile's cells, or those with the given numbers, each followed by its checksum under `key`."""
    numbers = range(len(tile.cells)) if numbers is None else numbers
    chosen = map(tile.cells.__getitem__, numbers)
    views = [part_of(outputs[cell.output], cell.rect, tile.outputs[cell.output]) for cell in chosen]
    flat = np.empty(sum([view.size + 1 for view in views]), dtype="<f4")
    checksums, end = flat.view("<u4"), 0
    for number, view in zip(numbers, views, strict=True):
        values = flat[end : end + view.size]
        values.reshape(view.shape)[...] = view
        end += view.size + 1
        checksums[end - 1] = checksum(values.data, key, number)
    return flat.data.cast("B")


def part_of(array: Array, rect: Rect, whole: Rect) -> Array:
    """Return the view of `rect` in an array of maps, or of vectors, that has the values of `whole`."""
    rows, cols = rect.slices_in(whole)
    return array[..., cols] if array.ndim == 2 else array[..., rows, cols]  # noqa: PLR2004 - vectors
