"""Cost of HTTP over the pipeline, of the balancer over HTTP, and of overload for accepted queries.

    bench ── pipeline.classify ──────────────┐
      │                                      ▼
      ├── HTTP ──────────> driver 1 ──> Lambda service, workers, Redis: the same for all three
      └── HTTP, balancer ─> drivers 1, 2 ────┘

All of it is `serfer serve --drivers N` on this machine, whose processor the bench shares; its own client is part of
what is measured.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated

import aiohttp
import numpy as np
import typer
from PIL import Image

from serfer.cli.shared.options import JsonOption, ModelOption, PlanOption, status_line
from serfer.core.errors import UnavailableError
from serfer.local.lambda_.access import random_access
from serfer.local.servers.redis import RedisServer
from serfer.pipeline.blocking import Pipeline
from serfer.settings import Settings, access_setting, load_settings
from serfer.wiring.open_pipeline import open_pipeline
from serfer_bench.core.options import plan_of
from serfer_bench.core.processes import end, processor_s
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.serving.overload import Overload, overload, overload_table

_MS_PER_S = 1000
_SIZE = (640, 480)
_AT_ONCE = 64
_END_S = 60.0
_BUSY = 8  # requests in flight while processor time is compared
Progress = Callable[[str], None]


@dataclass(frozen=True)
class ServiceCost:
    """Wall milliseconds at one request in flight, rates in queries a second at 64.

    Ratios are medians of pairs measured in turn: `time_ratio` of HTTP's time to the pipeline's, `rate_ratio` of their
    rates at 64 in flight, `processor_ratio` of all processes' time a request, through the balancer to two drivers
    against straight to one. `kept_ratio` is the time of GET /healthz on a kept-alive connection against a new one.
    """

    model: str
    image_bytes: int
    pairs: int
    pipeline_ms: float
    http_ms: float
    time_ratio: float
    pipeline_rate: float
    http_rate: float
    rate_ratio: float
    driver_cpu_ms: float
    balancer_cpu_ms: float
    processor_ratio: float
    kept_ms: float
    new_ms: float
    kept_ratio: float
    overload: Overload | None


@dataclass(frozen=True)
class SampleSizes:
    """Pairs of single queries, rounds of bursts of so many queries, seconds of overload."""

    pairs: int
    rounds: int
    burst: int
    overload_s: float


@dataclass(frozen=True)
class Testbed:
    """The running service: a pipeline, the addresses of drivers and of the balancer, the processes behind them."""

    pipeline: Pipeline
    driver_urls: Sequence[str]
    balancer: str
    drivers: Sequence[int]
    roots: tuple[int, ...]
    image: bytes


def measure(directory: Path, settings: Settings, sizes: SampleSizes, progress: Progress) -> ServiceCost:
    """Compare the pipeline with the service before it; raises UnavailableError where that does not start."""
    progress("starting the service: a Lambda service, two drivers and a balancer")
    with running_service(directory, settings) as testbed:
        return asyncio.run(_measure(testbed, sizes, progress))


@contextmanager
def running_service(directory: Path, settings: Settings) -> Iterator[Testbed]:
    """Start `serfer serve --drivers N`, and open a pipeline on the same functions and store."""
    with ExitStack() as parts:
        store = parts.enter_context(RedisServer())
        command = [
            sys.executable,
            "-m",
            "serfer",
            "serve",
            f"--plan={directory}",
            f"--store={store.url}",
            "--drivers=2",
        ]
        access = access_setting(random_access())
        up = parts.enter_context(
            subprocess.Popen(  # noqa: S603 - our own command
                [*command, "--drivers=2", "--port=0", "--log-level", "warning", "--json"],
                stdout=subprocess.PIPE,
                env={**os.environ, "SERFER_LOCAL_ACCESS": access.get_secret_value()},
            )
        )
        parts.callback(end, up, _END_S)
        line = up.stdout.readline() if up.stdout else b""
        if not line:
            raise UnavailableError("serfer serve did not start: see above")
        report = json.loads(line)
        local = settings.model_copy(update={"local_url": report["functions"]["url"], "local_access": access})
        pipeline = parts.enter_context(open_pipeline(directory, store=store.url, workers="local", settings=local))
        pids, urls = ([driver[each] for driver in report["drivers"]] for each in ("pid", "url"))
        yield Testbed(pipeline, urls, report["url"], pids, (up.pid, store.pid), _photograph())


def _photograph() -> bytes:
    """Return a JPEG that compresses as photographs do: smooth noise, 640 x 480."""
    coarse = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(_SIZE, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


async def _measure(testbed: Testbed, sizes: SampleSizes, progress: Progress) -> ServiceCost:
    timeout = aiohttp.ClientTimeout(total=300)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:
            query = _Query(testbed, http, threads)
            progress("warming up")
            await query.burst(query.pipeline, 2 * _AT_ONCE)
            await query.burst(query.driver, 2 * _AT_ONCE)
            result = await _compare(testbed, query, sizes, progress)
            if not sizes.overload_s:
                return result
            progress("overload")
            outcome = await overload(
                http, testbed.balancer, testbed.image, result.http_rate, sizes.overload_s, testbed.drivers
            )
            return replace(result, overload=outcome)


class _Query:
    """One query, sent in each of the three ways."""

    def __init__(self, testbed: Testbed, http: aiohttp.ClientSession, threads: ThreadPoolExecutor) -> None:
        self._scene = testbed
        self._http = http
        self._threads = threads

    async def pipeline(self) -> None:
        classify, image = self._scene.pipeline.classify, self._scene.image
        await asyncio.get_running_loop().run_in_executor(self._threads, lambda: classify([image]))

    async def driver(self) -> None:
        await self._post(self._scene.driver_urls[0])

    async def balancer(self) -> None:
        await self._post(self._scene.balancer)

    async def _post(self, url: str) -> None:
        headers = {"Content-Type": "image/jpeg"}
        async with self._http.post(f"{url}/v1/classify", data=self._scene.image, headers=headers) as reply:
            if reply.status != 200:  # noqa: PLR2004 - OK
                raise UnavailableError(f"the service answered {reply.status}: {await reply.text()}")
            await reply.read()

    async def burst(self, send: Callable[[], Awaitable[None]], queries: int, at_once: int = _AT_ONCE) -> float:
        """Send so many queries, `at_once` in flight; return queries a second."""
        left = itertools.count()

        async def lane() -> None:
            while next(left) < queries:
                await send()

        started = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(at_once)))
        return queries / (time.perf_counter() - started)


async def _compare(testbed: Testbed, query: _Query, sizes: SampleSizes, progress: Progress) -> ServiceCost:
    progress(f"{sizes.pairs} pairs, one request in flight")
    alone = [(await _ms(query.pipeline), await _ms(query.driver)) for _ in range(sizes.pairs)]
    connections = await _connections(testbed.driver_urls[0], sizes.pairs)
    rates: list[tuple[float, float]] = []
    processor: list[tuple[float, float]] = []
    for number in range(sizes.rounds):
        progress(f"round {number + 1} of {sizes.rounds}: {_AT_ONCE} in flight")
        rates.append((await query.burst(query.pipeline, sizes.burst), await query.burst(query.driver, sizes.burst)))
        progress(f"round {number + 1} of {sizes.rounds}: through the balancer")
        straight = await _processor_ms(testbed.roots, query, query.driver, sizes.burst)
        processor.append((straight, await _processor_ms(testbed.roots, query, query.balancer, sizes.burst)))
    return ServiceCost(
        model=testbed.pipeline.plan.model,
        image_bytes=len(testbed.image),
        pairs=sizes.pairs,
        pipeline_ms=median(one for one, _ in alone),
        http_ms=median(other for _, other in alone),
        time_ratio=median(other / one for one, other in alone),
        pipeline_rate=median(one for one, _ in rates),
        http_rate=median(other for _, other in rates),
        rate_ratio=median(other / one for one, other in rates),
        driver_cpu_ms=median(one for one, _ in processor),
        balancer_cpu_ms=median(other for _, other in processor),
        processor_ratio=median(other / one for one, other in processor),
        kept_ms=median(one for one, _ in connections),
        new_ms=median(other for _, other in connections),
        kept_ratio=median(one / other for one, other in connections),
        overload=None,
    )


async def _connections(url: str, pairs: int) -> list[tuple[float, float]]:
    """Return milliseconds of GET /healthz on a kept-alive connection, and on a new one, in turn."""
    async with (
        aiohttp.ClientSession() as kept,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as new,
    ):

        async def look(http: aiohttp.ClientSession) -> None:
            async with http.get(f"{url}/healthz") as reply:
                await reply.read()

        await look(kept)
        return [(await _ms(lambda: look(kept)), await _ms(lambda: look(new))) for _ in range(pairs)]


async def _ms(send: Callable[[], Awaitable[None]]) -> float:
    started = time.perf_counter()
    await send()
    return (time.perf_counter() - started) * _MS_PER_S


async def _processor_ms(
    roots: tuple[int, ...], query: _Query, send: Callable[[], Awaitable[None]], queries: int
) -> float:
    """Return the processor milliseconds of a request, in all processes but the client."""
    before = processor_s(*roots)
    await query.burst(send, queries, _BUSY)
    return (processor_s(*roots) - before) / queries * _MS_PER_S


def results(cost: ServiceCost) -> Results:
    """Return what HTTP and the balancer cost, and how the service took its overload."""
    head = ("compared", "first", "second", "ratio")
    rows = [
        (
            "ms, one in flight: pipeline, HTTP",
            f"{cost.pipeline_ms:.1f}",
            f"{cost.http_ms:.1f}",
            f"{cost.time_ratio:.3f}",
        ),
        (
            f"queries a second, {_AT_ONCE} in flight: pipeline, HTTP",
            f"{cost.pipeline_rate:.1f}",
            f"{cost.http_rate:.1f}",
            f"{cost.rate_ratio:.3f}",
        ),
        (
            "ms, GET /healthz: kept-alive connection, new one",
            f"{cost.kept_ms:.2f}",
            f"{cost.new_ms:.2f}",
            f"{cost.kept_ratio:.3f}",
        ),
        (
            "processor ms a request: one driver, two behind the balancer",
            f"{cost.driver_cpu_ms:.1f}",
            f"{cost.balancer_cpu_ms:.1f}",
            f"{cost.processor_ratio:.3f}",
        ),
    ]
    note = f"{cost.model}, a JPEG of {cost.image_bytes:,} bytes, {cost.pairs} pairs; ratios are medians of pairs"
    overloaded = [overload_table(cost.overload)] if cost.overload else []
    return Results([asdict(cost)], [Table(head, rows), *overloaded], [note])


def command(
    model: ModelOption = None,
    plan: PlanOption = None,
    pairs: Annotated[int, typer.Option(min=1, help="Single queries, in turn through the pipeline and over HTTP.")] = 40,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of bursts.")] = 3,
    queries: Annotated[int, typer.Option(min=1, help="Queries in each burst.")] = 192,
    overload_s: Annotated[float, typer.Option(min=0, help="Seconds at twice the capacity; 0: none.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Price HTTP against the pipeline, and the balancer against one driver; overload it (docs/reference/api.md)."""
    directory = plan_of(model, plan)
    with status_line() as progress:
        cost = measure(directory, load_settings(), SampleSizes(pairs, rounds, queries, overload_s), progress)
    publish(results(cost), as_json=as_json)
