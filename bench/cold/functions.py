"""Cold starts of a plan's functions: each in a fresh environment of the local Lambda service, invoked twice."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.checksum import protect
from serfer.core.errors import QueryError
from serfer.core.keys import input_key, output_key, query_id, query_keys
from serfer.core.plan import Plan
from serfer.core.run_machine import Failure
from serfer.core.wire import Crop, Task
from serfer.drivers.lambda_http import LambdaInvoker
from serfer.lambdas.cell_codec import cells_to_bytes
from serfer.local.lambda_.runtime import runtime_directory
from serfer.packaging.bundle import dependencies, function_directory
from serfer.pipeline.query import cut_crops
from serfer.settings import Settings
from serfer.storage.store import Store
from serfer.wiring.local import LocalLambda, local_invoker, local_service, start_service
from serfer.wiring.options import TASK_TIMEOUT_S
from serfer_bench.cold import page_cache
from serfer_bench.cold.probe import MARK

PROBE = Path(__file__).with_name("probe.py")
PROCESS, RESPONSE, SECOND, SECOND_SESSION = "process", "response", "second run", "second run, session"
Function = tuple[int, int]
Seconds = Mapping[str, float]
_TTL_S = 600.0
_LINE_S = 10.0


@dataclass(frozen=True)
class Bench:
    """A plan whose cold starts are measured, with a store at `url`, and how the page cache is dropped."""

    plan: Plan
    directory: Path
    store: Store
    url: str
    settings: Settings
    cache_mode: str

    def drop_page_cache(self, *functions: Function) -> str:
        cache = self.settings.cache_dir
        base = dependencies(cache)
        directories = [function_directory(self.plan, self.directory, *part, base) for part in functions]
        return page_cache.drop(self.cache_mode, [*directories, runtime_directory(cache / "runtime")])


@dataclass(frozen=True)
class ProbeLine:
    """A line of the probe: the function, its process, when that began and when this was written, seconds by part."""

    function: str
    pid: int
    first: float
    now: float
    parts: Seconds


@dataclass
class ProbedService:
    """A local Lambda service whose workers are timed, with the lines that they wrote."""

    running: LocalLambda = field(init=False)
    lines: list[ProbeLine] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, line: str) -> None:
        name, mark, text = line.partition(f": {MARK}")
        if mark:
            self.lines.append(ProbeLine(name, **json.loads(text)))
            self._arrived.set()

    async def count(self, lines: int) -> None:
        """Wait until so many lines have come, which may be after the response; raises QueryError if they do not."""
        try:
            async with asyncio.timeout(_LINE_S):
                while len(self.lines) < lines:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError as error:
            raise QueryError("a worker did not report its cold start: bench/cold/probe.py does not fit it") from error


@asynccontextmanager
async def probed_service(bench: Bench) -> AsyncIterator[ProbedService]:
    probed = ProbedService()
    plans = [(bench.plan, bench.directory)]
    service = local_service(plans, bench.url, bench.settings, on_log=probed.take, wrapper=PROBE)
    await start_service(service)
    try:
        probed.running = LocalLambda(service.url, service.access)
        yield probed
    finally:
        await service.stop()


@dataclass(frozen=True)
class FunctionStart:
    """A function's first response and its second one, in seconds by part; the second has only the whole."""

    parts: Seconds
    page_cache: str


async def measure_functions(bench: Bench) -> dict[Function, FunctionStart]:
    query = query_id(one_slot=False)
    _store_values(bench, query)
    try:
        async with probed_service(bench) as probed:
            invoker = local_invoker(probed.running)
            try:
                return {part: await _measured(bench, probed, invoker, query, part) for part in bench.plan.functions}
            finally:
                await invoker.close()
    finally:
        tiles = [len(stage.tiles) for stage in bench.plan.stages]
        bench.store.delete(query_keys(query, tiles, range(len(tiles)), range(tiles[0])))


async def _measured(
    bench: Bench, probed: ProbedService, invoker: LambdaInvoker, query: str, part: Function
) -> FunctionStart:
    dropped = await asyncio.to_thread(bench.drop_page_cache, part)
    seconds, elapsed = await _invoked(bench, probed, invoker, query, part)
    second, _ = await _invoked(bench, probed, invoker, query, part)
    seconds[RESPONSE] = elapsed - sum(seconds.values())
    seconds[SECOND] = sum(second.values())
    seconds[SECOND_SESSION] = second["run"]
    return FunctionStart(seconds, dropped)


async def _invoked(
    bench: Bench, probed: ProbedService, invoker: LambdaInvoker, query: str, part: Function
) -> tuple[dict[str, float], float]:
    seconds: dict[str, float] = defaultdict(float)
    begun = len(probed.lines)
    started = time.monotonic()
    elapsed = 0.0
    for task in _tasks(bench.plan, part, query):
        sent = time.monotonic()
        result = await invoker.invoke(bench.plan.function(*part), task, TASK_TIMEOUT_S)
        elapsed += time.monotonic() - sent
        if isinstance(result, Failure):
            raise QueryError(f"{bench.plan.function(*part)}: {result.message}")
        await probed.count(begun + 1)
        line = probed.lines[begun]
        begun += 1
        for part_name, value in line.parts.items():
            seconds[part_name] += value
        if line.first > started:
            seconds[PROCESS] += line.first - started
    return seconds, elapsed


def _tasks(plan: Plan, part: Function, query: str) -> list[Task]:
    start, number = part
    gang = plan.gang_of(start)
    tasks = []
    for stage in gang.stages if gang else [start]:
        tiles = [place for place, tile in enumerate(plan.stages[stage].tiles) if tile.function == number]
        crop = _crops(plan)[tiles[0]] if stage == 0 else None
        tasks += [
            Task(plan.digest, query, stage, tile, 1, _TTL_S, crop and Crop(crop.dtype, None)) for tile in tiles[:1]
        ]
    return tasks


def _crops(plan: Plan) -> list[Crop]:
    return cut_crops(plan, image(plan))


def image(plan: Plan) -> NDArray[Any]:
    shape = plan.input
    if plan.preprocess:
        return np.zeros((1, shape.height, shape.width, shape.channels), dtype=np.uint8)
    return np.zeros((1, shape.channels, shape.height, shape.width), dtype=np.float32)


def _store_values(bench: Bench, query: str) -> None:
    for place, crop in enumerate(_crops(bench.plan)):
        key = input_key(query, place)
        bench.store.put(key, protect(crop.data or b"", key), _TTL_S)
    for number, stage in enumerate(bench.plan.stages):
        for place, tile in enumerate(stage.tiles):
            outputs = [
                np.zeros(shape.of(rect, 1), dtype=np.float32)
                for shape, rect in zip(stage.outputs, tile.outputs, strict=True)
            ]
            key = output_key(query, number, place)
            bench.store.put(key, cells_to_bytes(outputs, tile, key), _TTL_S)
