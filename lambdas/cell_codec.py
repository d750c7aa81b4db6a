"""A tile's arrays from bytes and back: crops and pieces to inputs, outputs to cells (serfer/core/plan)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serfer.core.checksum import checksum, verified
from serfer.core.errors import AlteredPieceError, InputError, PlanError
from serfer.core.geometry import Rect
from serfer.core.keys import output_key
from serfer.core.plan import Levels, Piece, Preprocess, Stage, Tile, stored_bytes
from serfer.core.plan.pixels import normalised_crop
from serfer.core.wire import DTYPES, Buffer, Task

Array = NDArray[np.float32]


def crop_to_input(
    crop: tuple[str, Buffer], task: Task, stage: Stage, tile: Tile, levels: Preprocess | Levels | None
) -> Array:
    """Return a first-stage tile's input, (N, C, rows, cols) float32, from its crop's bytes."""
    dtype, data = crop
    shape = stage.inputs[0].shape.of(tile.inputs[0], task.batch)
    if len(data) != int(np.prod(shape)) * DTYPES[dtype]:
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
    inputs = TileInputs(stage, tile, task.batch)
    return inputs.filled_with([*read_cells(values, tile.pieces, stage, task.query, task.batch)])


class InputCell(NamedTuple):
    """Values of a rectangle of a stage's input `number`, flat."""

    number: int
    rect: Rect
    values: Array


class TileInputs:
    """A tile's input arrays, put together from cells and from what the tile's function wrote itself."""

    def __init__(self, stage: Stage, tile: Tile, batch: int) -> None:
        self._stage, self._tile = stage, tile
        self._shapes = [source.shape.of(rect, batch) for source, rect in zip(stage.inputs, tile.inputs, strict=True)]

    def filled_with(
        self, cells: Sequence[InputCell], own: Mapping[int, tuple[Rect, Array]] | None = None
    ) -> list[Array]:
        """Return the arrays: `own` has the rectangles of inputs, by number, that lie in memory already."""
        own = own or {}
        filled = {number for number, (rect, _) in own.items() if rect == self._tile.inputs[number]}
        if len(self._shapes) == len(cells) == 1 and not own:
            return [cells[0].values.reshape(self._shapes[0])]
        results = [
            own[number][1] if number in filled else np.empty(shape, dtype=np.float32)
            for number, shape in enumerate(self._shapes)
        ]
        for number, (rect, values) in own.items():
            if number not in filled:
                self._view(results, number, rect)[...] = values
        for number, rect, flat in cells:
            view = self._view(results, number, rect)
            view[...] = flat.reshape(view.shape)
        return results

    def _view(self, results: Sequence[Array], number: int, rect: Rect) -> Array:
        place = rect.within(self._tile.inputs[number])
        return results[number][self._stage.inputs[number].shape.slices(place)]


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
        key, view, end = output_key(query, piece.stage, piece.tile), memoryview(value), 0
        if len(view) != run.length(batch):
            raise AlteredPieceError(f"a piece under {key!r} has another size than the plan says")
        for index, cell in enumerate(run.cells, run.first):
            number = numbers[piece.stage, cell.output]
            elements = stage.inputs[number].shape.channels * cell.rect.area
            start, end = end, end + stored_bytes(elements, 1, batch)
            data = verified(view[start:end], key, index)
            yield InputCell(number, cell.rect, np.frombuffer(data, dtype="<f4"))


def cells_to_bytes(outputs: Sequence[Array], tile: Tile, key: str, numbers: Sequence[int] | None = None) -> memoryview:
    """Lay out a tile's cells, or those with the given numbers, each followed by its checksum under `key`."""
    numbers = range(len(tile.cells)) if numbers is None else numbers
    chosen = [tile.cells[number] for number in numbers]
    views = [part_of(outputs[cell.output], cell.rect.within(tile.outputs[cell.output])) for cell in chosen]
    flat = np.empty(sum(view.size + 1 for view in views), dtype="<f4")
    end = 0
    for number, view in zip(numbers, views, strict=True):
        start, end = end, end + view.size
        flat[start:end].reshape(view.shape)[...] = view
        flat[end : end + 1].view("<u4")[0] = checksum(flat[start:end].data.cast("B"), key, number)
        end += 1
    return flat.data.cast("B")


def part_of(output: Array, rect: Rect) -> Array:
    return output[..., rect.slices[1]] if output.ndim == 2 else output[:, :, *rect.slices]  # noqa: PLR2004 - a vector
