"""Load systems in turn, as the command line says; write and draw the result."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import typer

from serfer.cli.shared.options import status_line
from serfer.pipeline.pipeline import DEADLINE_S
from serfer.plan_directory import load_plan
from serfer.settings import Settings, load_settings
from serfer_bench.core.charts import Chart
from serfer_bench.core.drawing import draw_charts
from serfer_bench.core.options import network
from serfer_bench.core.results import require_answers, stamp_now
from serfer_bench.core.tables import publish
from serfer_bench.load.results import FORMAT, PICTURE_FILE, Log, Result, Work, write_result
from serfer_bench.load.rounds import Plan, measure_rounds, results, summaries
from serfer_bench.load.systems import ORDERS, SERFER, UNSPLIT, Setup, examples, open_systems

Progress = Callable[[str], None]
_MS_PER_S = 1000.0
_WARM_UP = 4  # queries for each invocation at once: every environment gets every stage's session


class Workload(Protocol):
    """Arrivals of queries, and the distribution of their latencies."""

    def __str__(self) -> str: ...

    def arrivals(self, rounds: int) -> tuple[tuple[float, ...], ...]:
        """Return the arrivals of each round, in seconds from its start."""
        ...

    def charts(self, logs: Sequence[Log]) -> list[Chart]: ...


@dataclass(frozen=True)
class Options:
    """The command line's; None means the default."""

    model: str | None = None
    plan: Path | None = None
    systems: Sequence[str] | None = None
    rounds: int = 3
    workers: str = "local"
    concurrency: int | None = None
    orders: Sequence[str] | None = None
    service_ms: float = 5.0
    warm_up: int | None = None
    patience_s: float = 600.0
    deadline_s: float = DEADLINE_S

    @property
    def setup(self) -> Setup:
        concurrency = self.concurrency or len(os.sched_getaffinity(0))
        orders = tuple(self.orders or ORDERS[:1])
        return Setup(self.workers, concurrency, self.service_ms / _MS_PER_S, orders, self.deadline_s)

    @property
    def names(self) -> tuple[str, ...]:
        default = (SERFER,) if self.workers == "null" else (SERFER, UNSPLIT)
        return tuple(dict.fromkeys(self.systems or default))


def measure(load: Workload, options: Options, out: Path | None, settings: Settings, progress: Progress) -> Result:
    setup, arrivals = options.setup, load.arrivals(options.rounds)
    directory = network(options.model, options.plan, settings, progress)
    warm_up = _WARM_UP * setup.concurrency if options.warm_up is None else options.warm_up
    stamp = stamp_now()
    inputs = examples(directory, setup)
    with open_systems(options.names, directory, setup, settings, progress) as systems:
        rounds, logs = measure_rounds(systems, inputs, Plan(arrivals, warm_up, options.patience_s), progress)
    result = Result(FORMAT, stamp, _work(load, directory, setup, len(arrivals[0])), warm_up, rounds)
    if out is not None:
        progress("drawing")
        write_result(out, result, logs)
        title = f"{result.work.model}: {result.work.load}"
        draw_charts(title, load.charts(logs), summaries(result), stamp.lines, out / PICTURE_FILE)
    return result


def _work(load: Workload, directory: Path, setup: Setup, queries: int) -> Work:
    plan = load_plan(directory)
    shape = plan.input
    size = f"{shape.channels}x{shape.height}x{shape.width}"
    workers = f"null ({setup.service_s * _MS_PER_S:g} ms)" if setup.workers == "null" else setup.workers
    return Work(plan.model, size, str(load), queries, setup.concurrency, workers, setup.deadline_s)


RoundsOption = Annotated[int, typer.Option(min=1, help="How often each system is loaded; rounds take turns.")]
SystemOption = Annotated[
    list[str] | None,
    typer.Option(
        help="serfer, unshared (queries never share invocations), poll, stepfunctions, stepfunctions-express (other "
        "engines), function (one function for all), unsplit (ONNX Runtime on all processors), serfer-published, "
        "serfer-repaired or gillis (see bench/load/systems.py); may be repeated. By default serfer and unsplit."
    ),
]
WorkersOption = Annotated[
    str, typer.Option("--workers", help="local: processes; inprocess: threads; null: answer, and compute nothing.")
]
ConcurrencyOption = Annotated[
    int | None, typer.Option(min=1, max=10_000, help="Invocations at once; by default as many as processors.")
]
OrderOption = Annotated[
    list[str] | None,
    typer.Option(help="Whose tasks start first, oldest (query) or arrival (task); may be repeated, null workers only."),
]
ServiceOption = Annotated[float, typer.Option(min=0, help="Milliseconds that a null worker takes.")]
WarmUpOption = Annotated[
    int | None, typer.Option(min=0, help="Queries before the first round; by default 4 for each invocation at once.")
]
PatienceOption = Annotated[float, typer.Option(min=1, help="Seconds after which a query without an answer failed.")]
DeadlineOption = Annotated[
    int, typer.Option("--deadline-ms", min=1, max=86_340_000, help="What serfer's driver has for each query.")
]


def run_load(load: Workload, options: Options, out: Path | None, *, as_json: bool) -> None:
    with status_line() as progress:
        result = measure(load, options, out, load_settings(), progress)
    publish(results(result), as_json=as_json)
    sent, answered = (sum(getattr(one, count) for one in result.rounds) for count in ("sent", "answered"))
    require_answers(sent - answered, sent)
