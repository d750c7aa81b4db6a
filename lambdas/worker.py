"""A task from payload to report: read the pieces, compute the tile, write its cells.

A task is a pure function of (plan digest, query, stage, tile): it may run twice, anywhere, and writes the same bytes
under the same key, or answers with them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lambdas.sessions import SessionCache
from serfer.core.errors import InputError, PlanError
from serfer.core.geometry import Rect
from serfer.core.keys import input_key, output_key
from serfer.core.plan import Plan, Preprocess, Stage, Tile
from serfer.core.wire import DTYPES, Buffer, Crop, Report, Task, decode_task, encode_report
from storage.counting import CountingStore
from storage.store import Range as ByteRange
from storage.store import Store

Array = NDArray[np.float32]
_FLOAT_BYTES = 4


class Worker:
    """Runs tasks of a plan's stages out of a plan directory; `environment` is its name in reports.

    `init_ms` is what it cost to get here; the first report carries it.
    """

    def __init__(
        self, plan: Plan, directory: Path, store: Store, environment: str, threads: int, init_ms: float
    ) -> None:
        self._plan = plan
        self._store = store
        self._sessions = SessionCache(directory, threads)
        self._environment = environment
        self._init_ms = init_ms

    def handle(self, event: Any) -> dict[str, str]:  # noqa: ANN401 - whatever an invoker sent
        """Run the task in a payload and return the response; raises InputError for what is no task of this plan."""
        return encode_report(self.run(decode_task(event)))

    def run(self, task: Task) -> Report:
        """Run a task; raises InputError for one that is not of this plan."""
        started = time.perf_counter()
        stage, tile = self._find(task)
        store = CountingStore(self._store)
        data = self._read(task, stage, tile, store)
        read = time.perf_counter()
        session = self._sessions.get(stage, tile)
        outputs = session.run(None, {f"input{number}": value for number, value in enumerate(data)})
        computed = time.perf_counter()
        value = cells_to_bytes(outputs, tile)
        if not task.inline:
            store.put(output_key(task.query, task.stage, task.tile), value, task.ttl)
        ended = time.perf_counter()
        init_ms, self._init_ms = self._init_ms, 0.0
        return Report(
            environment=self._environment,
            init_ms=init_ms,
            read_ms=_ms(started, read),
            compute_ms=_ms(read, computed),
            write_ms=_ms(computed, ended),
            total_ms=_ms(started, ended),
            weight_loads=self._sessions.weight_loads,
            sessions=self._sessions.built,
            counts=store.counts,
            output=value if task.inline else None,
        )

    def _find(self, task: Task) -> tuple[Stage, Tile]:
        if task.plan != self._plan.digest:
            raise InputError("the task belongs to another plan; deploy the functions of the plan that the driver runs")
        stages = self._plan.stages
        if not (0 <= task.stage < len(stages) and 0 <= task.tile < len(stages[task.stage].tiles)):
            raise InputError(f"the plan has no tile {task.tile} of stage {task.stage}")
        stage = stages[task.stage]
        return stage, stage.tiles[task.tile]

    def _read(self, task: Task, stage: Stage, tile: Tile, store: Store) -> list[Array]:
        if task.stage == 0:
            return [crop_to_input(_crop_bytes(task, store), task, stage, tile, self._plan.preprocess)]
        ranges = self._ranges(task, tile)
        carried = task.parts or (None,) * len(ranges)
        if len(carried) != len(ranges):
            raise InputError(f"the task carries {len(carried)} parts, its tile reads {len(ranges)}")
        asked = [place for place, part in zip(ranges, carried, strict=True) if part is None]
        stored = iter(store.get_many(asked) if asked else ())
        values = [next(stored) if part is None else part for part in carried]
        return pieces_to_inputs(values, task.batch, stage, tile)

    def _ranges(self, task: Task, tile: Tile) -> list[ByteRange]:
        """Return where in the store everything that a tile reads lies, or would lie."""
        scale = _FLOAT_BYTES * task.batch
        found = []
        for piece in tile.pieces:
            key = output_key(task.query, piece.stage, piece.tile)
            cells = sum(len(part.cells) for part in piece.ranges)
            everything = cells == len(self._plan.stages[piece.stage].tiles[piece.tile].cells)
            for part in piece.ranges:
                length = None if everything and len(piece.ranges) == 1 else scale * part.elements
                found.append(ByteRange(key, scale * part.offset, length))
        return found


def _ms(start: float, stop: float) -> float:
    return (stop - start) * 1000


def _crop_bytes(task: Task, store: Store) -> tuple[str, Buffer]:
    crop = task.crop or Crop("float32", None)
    return crop.dtype, store.get(input_key(task.query, task.tile)) if crop.data is None else crop.data


def crop_to_input(
    crop: tuple[str, Buffer], task: Task, stage: Stage, tile: Tile, preprocess: Preprocess | None
) -> Array:
    """Return a first-stage tile's input, (N, C, rows, cols) float32, from its crop's bytes."""
    dtype, data = crop
    shape = stage.inputs[0].shape.of(tile.inputs[0], task.batch)
    if len(data) != int(np.prod(shape)) * DTYPES[dtype]:
        raise InputError(f"the crop of tile {task.tile} has {len(data)} bytes, which do not fit {shape} {dtype}")
    if dtype == "float32":
        return np.frombuffer(data, dtype="<f4").reshape(shape)
    if preprocess is None:
        raise PlanError("the plan does not say how pixels become numbers; split with a preprocess description")
    batch, channels, rows, cols = shape
    pixels = np.frombuffer(data, dtype=np.uint8).reshape(batch, rows, cols, channels)
    mean, std = np.array(preprocess.mean, dtype=np.float32), np.array(preprocess.std, dtype=np.float32)
    factor = np.float32(preprocess.scale) / std
    values = np.empty(shape, dtype=np.float32)
    np.multiply(pixels.transpose(0, 3, 1, 2), factor[:, None, None], out=values)
    values -= (mean / std)[:, None, None]
    return values


def pieces_to_inputs(values: Sequence[Buffer], batch: int, stage: Stage, tile: Tile) -> list[Array]:
    """Put the cells of all pieces where they belong in a tile's inputs."""
    shapes = [source.shape.of(rect, batch) for source, rect in zip(stage.inputs, tile.inputs, strict=True)]
    runs = [(piece.stage, part) for piece in tile.pieces for part in piece.ranges]
    if len(shapes) == len(runs) == len(runs[0][1].cells) == 1:
        return [_floats(values[0], shapes[0])]
    numbers = {(source.stage, source.output): number for number, source in enumerate(stage.inputs)}
    results = [np.empty(shape, dtype=np.float32) for shape in shapes]
    for value, (origin, run) in zip(values, runs, strict=True):
        flat = _floats(value, (batch * run.elements,))
        end = 0
        for cell in run.cells:
            number = numbers[origin, cell.output]
            place = cell.rect.within(tile.inputs[number])
            view = results[number][stage.inputs[number].shape.slices(place)]
            start, end = end, end + view.size
            view[...] = flat[start:end].reshape(view.shape)
    return results


def _floats(value: Buffer, shape: tuple[int, ...]) -> Array:
    if len(value) != _FLOAT_BYTES * int(np.prod(shape)):
        raise PlanError("a piece has another size than the plan says")
    return np.frombuffer(value, dtype="<f4").reshape(shape)


def cells_to_bytes(outputs: Sequence[Array], tile: Tile) -> memoryview:
    """Lay a tile's outputs out as its cells, one after the other."""
    if len(tile.cells) == 1 == len(outputs) and tile.cells[0].rect == tile.outputs[0]:
        return np.ascontiguousarray(outputs[0]).data.cast("B")
    views = [_part(outputs[cell.output], cell.rect.within(tile.outputs[cell.output])) for cell in tile.cells]
    flat = np.empty(sum(view.size for view in views), dtype=np.float32)
    end = 0
    for view in views:
        start, end = end, end + view.size
        flat[start:end].reshape(view.shape)[...] = view
    return flat.data.cast("B")


def _part(output: Array, rect: Rect) -> Array:
    return output[..., rect.slices[1]] if output.ndim == 2 else output[:, :, *rect.slices]  # noqa: PLR2004 - a vector
