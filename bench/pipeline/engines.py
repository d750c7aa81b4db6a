"""The engines and the data paths side by side, as the SerFer paper compared them: the same plan, queries in turn.

    push, poll, Step Functions         x         inline, Redis, S3

All on this machine's local Lambda service. Redis is a real server, as near as it gets. S3 is a real server behind the
latency that `aws.toml` gives S3 (a local one answers in milliseconds): its figures are partly simulated. So are those
of Step Functions: moto and ministack stand in for it, and moto runs a Map's iterations nearly one after the other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import UsageError
from serfer.core.keys import StoreCounts
from serfer.local.servers.redis import RedisServer
from serfer.pipeline.blocking import Pipeline
from serfer.settings import Settings, load_settings
from serfer.storage.faults import wrapped_url
from serfer.wiring.open_pipeline import open_pipeline
from serfer_bench.core.options import ModelOption, PlanOption, RowsOption, plan_of
from serfer_bench.core.results import publish_rows
from serfer_bench.core.s3_server import S3Server
from serfer_bench.core.tables import Column, Measurement

_MS_PER_S = 1000.0
_QUERIES = 1_000_000
_WARM_UP = 3
_SYSTEMS = (
    ("push", "inline"),
    ("push", "redis"),
    ("push", "s3"),
    ("poll", "redis"),
    ("poll", "s3"),
    ("stepfunctions", "redis"),
    ("stepfunctions-express", "redis"),
)
ENGINES = tuple(dict.fromkeys(engine for engine, _ in _SYSTEMS))

Progress = Callable[[str], None]


@dataclass(frozen=True)
class EngineTime(Measurement):
    """Warm queries, one after the other, through one engine and one path: wall time, and requests to a store.

    Puts, gets and polls are those of one query, in the median; dollars are Lambda's for a million queries at the times
    measured here, without the store's, Step Functions' or the driver's.
    """

    engine: Annotated[str, Column("engine")]
    path: Annotated[str, Column("path")]
    median_ms: Annotated[float, Column("ms", ",.1f")]
    least_ms: Annotated[float, Column("from", ",.1f")]
    p90_ms: Annotated[float, Column("p90", ",.1f")]
    puts: Annotated[float, Column("puts", "g")]
    gets: Annotated[float, Column("gets", "g")]
    polls: Annotated[float, Column("polls", "g")]
    bytes_stored: Annotated[float, Column("kB stored", ",.0f", 1 / 1000)]
    usd_per_million: Annotated[float, Column("Lambda $/M", ",.2f")]


@dataclass
class _System:
    engine: str
    path: str
    pipeline: Pipeline
    ms: list[float] = field(default_factory=list)
    counts: list[StoreCounts] = field(default_factory=list)
    usd: list[float] = field(default_factory=list)

    def run(self, pixels: np.ndarray) -> None:
        started = time.perf_counter()
        self.pipeline.run(pixels)
        self.ms.append((time.perf_counter() - started) * _MS_PER_S)
        self.counts.append(self.pipeline.last_report.store)
        self.usd.append(self.pipeline.last_report.cost_usd)

    def row(self) -> EngineTime:
        return EngineTime(
            self.engine,
            self.path,
            median_ms=median(self.ms),
            least_ms=min(self.ms),
            p90_ms=float(np.quantile(self.ms, 0.9)),
            puts=median(one.puts for one in self.counts),
            gets=median(one.gets for one in self.counts),
            polls=median(one.exists for one in self.counts),
            bytes_stored=median(one.bytes_put for one in self.counts),
            usd_per_million=median(self.usd) * _QUERIES,
        )


def measure(
    directory: Path, settings: Settings, engines: Sequence[str], rounds: int, progress: Progress = lambda _: None
) -> list[EngineTime]:
    with ExitStack() as stack:
        systems = _opened(directory, settings, engines, stack, progress)
        shape = systems[0].pipeline.plan.input
        pixels = np.random.default_rng(0).integers(0, 256, (1, shape.height, shape.width, shape.channels), np.uint8)
        for number in range(-_WARM_UP, rounds):
            for system in systems:
                progress(f"{system.engine} over {system.path}: query {max(number, 0) + 1} of {rounds}")
                system.run(pixels)
            if number == -1:
                for system in systems:
                    system.ms, system.counts, system.usd = [], [], []
        return [system.row() for system in systems]


def _opened(
    directory: Path, settings: Settings, engines: Sequence[str], stack: ExitStack, progress: Progress
) -> list[_System]:
    urls = stack.enter_context(_stores(settings.facts()))
    systems = []
    for engine, path in _SYSTEMS:
        if engine in engines:
            progress(f"starting {engine} over {path}")
            url = urls["redis" if path == "inline" else path]
            inline = "always" if path == "inline" else "never"
            pipeline = open_pipeline(
                directory, store=url, workers="local", driver=engine, inline=inline, settings=settings
            )
            systems.append(_System(engine, path, stack.enter_context(pipeline)))
    return systems


@contextmanager
def _stores(facts: AwsFacts) -> Iterator[dict[str, str]]:
    with RedisServer() as redis, S3Server() as s3, _access(s3.environment):
        latency_ms = facts.s3.request_latency * _MS_PER_S
        yield {"redis": redis.url, "s3": wrapped_url("delay", s3.url, put_ms=latency_ms, get_ms=latency_ms)}


@contextmanager
def _access(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def command(
    model: ModelOption = None,
    plan: PlanOption = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="push, poll, stepfunctions, stepfunctions-express; may be repeated.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Queries of each; they take turns.")] = 15,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the engines, and handing on inline, through Redis and through S3 (with its latency injected)."""
    if unknown := {*(engine or ())} - {*ENGINES}:
        raise UsageError(f"there is no engine {', '.join(sorted(unknown))}; there are {', '.join(ENGINES)}")
    plan_directory = plan_of(model, plan)
    with status_line() as progress:
        rows = measure(plan_directory, load_settings(), engine or ENGINES, rounds, progress)
    publish_rows(rows, directory, as_json=as_json)
