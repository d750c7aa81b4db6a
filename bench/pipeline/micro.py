"""The parts of the hot path, one by one: what each takes of a processor, and what it allocates.

Times are processor time of the measuring thread, medians over rounds in which the parts take turns. Allocated are the
bytes that one call holds at most at once, results included: where it copies a buffer, that is in it.
"""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from serfer.cli.shared.options import JsonOption, PlanOption, status_line
from serfer.core.checksum import protect
from serfer.core.keys import StoreCounts, output_key
from serfer.core.plan import Plan, Stage, Tile
from serfer.core.run_machine import Action, Invoke, Run, TaskDone, TaskStarted
from serfer.core.sigv4 import TIME, Access, sign
from serfer.core.units import FLOAT_BYTES
from serfer.core.wire import Crop, Report, Task, decode_report, decode_task, encode_report, encode_task
from serfer.lambdas.cell_codec import cells_to_bytes, crop_to_input, pieces_to_inputs
from serfer.pipeline.query import cut_crops
from serfer.settings import Settings, load_settings
from serfer_bench.core.null_workers import null_pipeline
from serfer_bench.core.options import NetworkOption, RowsOption, network
from serfer_bench.core.results import publish_rows

Progress = Callable[[str], None]
_QUERY = "0" * 32
_MIN_NS = 20_000_000  # of a measurement
_TARGET = "/2015-03-31/functions/serfer/invocations"
_ACCESS = Access("bench", "bench")
_NS_PER_US = 1000.0


@dataclass(frozen=True)
class Micro:
    """A part of the hot path: nanoseconds of a processor a call, how they spread, and bytes handled and allocated."""

    part: str
    ns: float
    least_ns: float
    greatest_ns: float
    bytes: int
    allocated: int
    calls: int

    @property
    def shown(self) -> dict[str, str]:
        return {
            "part": self.part,
            "us a call": f"{self.ns / _NS_PER_US:,.2f}",
            "from": f"{self.least_ns / _NS_PER_US:,.2f}",
            "to": f"{self.greatest_ns / _NS_PER_US:,.2f}",
            "bytes handled": f"{self.bytes:,}",
            "allocated": f"{self.allocated:,}",
        }


@dataclass(frozen=True)
class Part:
    """The function to call, and how many bytes of tensors or payload it handles."""

    name: str
    call: Callable[[], Any]
    bytes: int = 0


def measure(directory: Path, settings: Settings, rounds: int = 15, progress: Progress = lambda _: None) -> list[Micro]:
    """Measure every part on a plan; raises PlanError for a directory that is not a plan."""
    with null_pipeline(directory, settings, oldest_first=True, service_s=0.0) as pipeline:
        shape = pipeline.plan.input
        pixels = np.zeros((1, shape.height, shape.width, shape.channels), dtype=np.uint8)
        cut = Part("cut an image into crops", lambda: cut_crops(pipeline.plan, pixels), pixels.nbytes)
        crops = cut_crops(pipeline.plan, pixels)
        parts = [cut, *_wire(pipeline.plan, crops), *_worker(pipeline.plan, crops[0]), _events(pipeline.plan)]
        return measure_parts(parts, rounds, progress)


def measure_parts(parts: list[Part], rounds: int, progress: Progress = lambda _: None) -> list[Micro]:
    """Measure parts in turn, each so often that its clock's steps do not matter."""
    progress("warming up")
    calls = [_calls(part) for part in parts]
    times: list[list[float]] = [[] for _ in parts]
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        for part, count, measured in zip(parts, calls, times, strict=True):
            measured.append(_ns(part.call, count) / count)
    return [
        Micro(part.name, median(ns), min(ns), max(ns), part.bytes, _allocated(part.call), count)
        for part, ns, count in zip(parts, times, calls, strict=True)
    ]


def _calls(part: Part) -> int:
    """Return how many calls make a measurement; also warms up."""
    count = 1
    while _ns(part.call, count) < _MIN_NS:
        count *= 2
    return count


def _ns(call: Callable[[], Any], count: int) -> int:
    started = time.thread_time_ns()
    for _ in range(count):
        call()
    return time.thread_time_ns() - started


def _allocated(call: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = call()
        _, most = tracemalloc.get_traced_memory()
        del kept
    finally:
        tracemalloc.stop()
    return max(0, most - before)


def _wire(plan: Plan, crops: list[Crop]) -> Iterator[Part]:
    """Yield tasks and reports on their way: a first-stage task with its crop, a report with what its tile wrote."""
    task = Task(plan.digest, _QUERY, 0, 0, 1, 60.0, crops[0])
    payload = encode_task(task)
    event = json.loads(payload)
    stage = plan.stages[0]
    output = bytes(stage.written(stage.tiles[0]))
    report = _report(output)
    response = encode_report(report)
    yield Part("encode a task with its crop", lambda: encode_task(task), len(payload))
    yield Part("decode a task", lambda: decode_task(event), len(payload))
    yield Part("sign its request", lambda: _sign(payload), len(payload))
    yield Part("encode a report with its output", lambda: encode_report(report), len(output))
    yield Part("decode a report", lambda: decode_report(response), len(output))


def _report(output: bytes | None) -> Report:
    return Report("environment", 0.0, 1.0, 1.0, 1.0, 3.0, 1, 1, StoreCounts(), output)


def _sign(payload: bytes) -> None:
    headers = {"Host": "lambda", "X-Amz-Invocation-Type": "RequestResponse"}
    sign(_ACCESS, "us-east-1", time.strftime(TIME, time.gmtime()), "POST", _TARGET, headers, payload)


def _worker(plan: Plan, crop: Crop) -> Iterator[Part]:
    """Yield what a worker does around its session: its input from a crop or from pieces, its cells to bytes."""
    first, data = plan.stages[0], crop.data or b""
    task = Task(plan.digest, _QUERY, 0, 0, 1, 60.0, crop)
    yield Part(
        "normalise a crop",
        lambda: crop_to_input((crop.dtype, data), task, first, first.tiles[0], plan.preprocess),
        len(data),
    )
    outputs = [
        np.zeros(shape.of(rect, 1), dtype=np.float32)
        for shape, rect in zip(first.outputs, first.tiles[0].outputs, strict=True)
    ]
    written = sum(output.nbytes for output in outputs)
    yield Part(
        "lay out a tile's cells", lambda: cells_to_bytes(outputs, first.tiles[0], output_key(_QUERY, 0, 0)), written
    )
    if len(plan.stages) > 1:
        yield _assembly(plan.stages[1], plan.stages[1].tiles[0])


def _assembly(stage: Stage, tile: Tile) -> Part:
    values, task = _pieces(stage, tile), Task("", _QUERY, 1, 0, 1, 60.0)
    return Part("assemble a tile's pieces", lambda: pieces_to_inputs(values, task, stage, tile), sum(map(len, values)))


def _pieces(stage: Stage, tile: Tile) -> list[bytes]:
    """Return what a tile reads, all zeros: each cell with its checksum."""
    channels = {(source.stage, source.output): source.shape.channels for source in stage.inputs}
    values = []
    for piece in tile.pieces:
        key = output_key(_QUERY, piece.stage, piece.tile)
        for run in piece.ranges:
            cells = [bytes(FLOAT_BYTES * channels[piece.stage, cell.output] * cell.rect.area) for cell in run.cells]
            values.append(b"".join(protect(data, key, number) for number, data in enumerate(cells, run.first)))
    return values


def _events(plan: Plan) -> Part:
    """Return the run machine's whole life of a query: two events a task."""
    tiles, report = [stage.grid.tiles for stage in plan.stages], _report(None)

    def live() -> None:
        run = Run(tiles, deadline=60.0, seed=0)
        actions: list[Action] = run.start(0.0)
        while not run.finished:
            invokes = [action for action in actions if isinstance(action, Invoke)]
            actions = []
            for one in invokes:
                place = one.stage, one.tile, one.attempt
                actions += run.handle(TaskStarted(*place), 0.0)
                actions += run.handle(TaskDone(*place, report), 0.0)

    return Part(f"run machine, a query of {plan.tasks} tasks", live)


def command(
    model: NetworkOption = None,
    plan: PlanOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured; they take turns.")] = 15,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the parts of the hot path on a plan: processor time, and bytes that each allocates."""
    settings = load_settings()
    with status_line() as progress:
        rows = measure(network(model, plan, settings, progress), settings, rounds, progress)
    publish_rows(rows, directory, as_json=as_json)
