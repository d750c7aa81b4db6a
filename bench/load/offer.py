"""From what the command line chose to a result: systems opened, loaded in turn, written down and drawn."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from bench.core.plans import PLANS, bench_plan
from bench.core.stamp import make_stamp
from bench.load.candidates import ORDERS, SERFER, UNSPLIT, Set, opened, questions
from bench.load.results import FORMAT, PICTURE_FILE, Log, Result, Work, check_directory, write_result
from bench.load.rounds import Plan, measure_rounds, summaries
from serfer.core.errors import UsageError
from serfer.pictures import draw_latency
from serfer.pictures.latency import Chart
from serfer.pipeline.pipeline import DEADLINE_S
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from serfer.wiring.local import zoo_plan

Progress = Callable[[str], None]
_MS_PER_S = 1000.0
_WARM_UP = 4  # queries for each invocation at once: every environment gets every stage's session


class Load(Protocol):
    """When queries come, and how what became of them is drawn."""

    def __str__(self) -> str: ...

    def arrivals(self, rounds: int) -> tuple[tuple[float, ...], ...]:
        """Return when queries come in each round, in seconds from its start."""
        ...

    def charts(self, logs: Sequence[Log]) -> list[Chart]:
        """Return what to draw."""
        ...


@dataclass(frozen=True)
class Choice:
    """What the command line chose; None means the default."""

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
    def set(self) -> Set:
        """How systems run; raises UsageError for what is unknown or does not go together."""
        concurrency = self.concurrency or len(os.sched_getaffinity(0))
        orders = tuple(self.orders or ORDERS[:1])
        return Set(self.workers, concurrency, self.service_ms / _MS_PER_S, orders, self.deadline_s)

    @property
    def names(self) -> tuple[str, ...]:
        """The systems: serfer and what it is held against, but for null workers, which nothing compares with."""
        default = (SERFER,) if self.workers == "null" else (SERFER, UNSPLIT)
        return tuple(dict.fromkeys(self.systems or default))


def measure(load: Load, choice: Choice, out: Path | None, settings: Settings, progress: Progress) -> Result:
    """Load the systems and return what was found; with `out`, write it and every query there, and draw it.

    Raises UsageError for a choice that contradicts itself, InputError where `out` cannot be written.
    """
    chosen, arrivals = choice.set, load.arrivals(choice.rounds)
    if out is not None:
        check_directory(out)
    directory = network(choice.model, choice.plan, settings, progress)
    warm_up = _WARM_UP * chosen.concurrency if choice.warm_up is None else choice.warm_up
    stamp = make_stamp(sys.argv[1:], datetime.now(UTC))
    asked = questions(directory, chosen)
    with opened(choice.names, directory, chosen, settings, progress) as systems:
        rounds, logs = measure_rounds(systems, asked, Plan(arrivals, warm_up, choice.patience_s), progress)
    result = Result(FORMAT, stamp, _work(load, directory, chosen, len(arrivals[0])), warm_up, rounds)
    if out is not None:
        progress("drawing")
        write_result(out, result, logs)
        title = f"{result.work.model}: {result.work.load}"
        draw_latency(title, load.charts(logs), summaries(result), stamp.lines, out / PICTURE_FILE)
    return result


def _work(load: Load, directory: Path, chosen: Set, queries: int) -> Work:
    plan = load_plan(directory)
    shape = plan.input
    size = f"{shape.channels}x{shape.height}x{shape.width}"
    workers = f"null ({chosen.service_s * _MS_PER_S:g} ms)" if chosen.workers == "null" else chosen.workers
    return Work(plan.model, size, str(load), queries, chosen.concurrency, workers, chosen.deadline_s)


def network(model: str | None, plan: Path | None, settings: Settings, progress: Progress) -> Path:
    """Return the plan directory of --plan, or of --model: a fixed plan of that name, or else the zoo's."""
    if plan is not None and model is not None:
        raise UsageError("give --plan or --model, not both")
    if plan is not None:
        return plan
    name = model or "alexnet"
    return bench_plan(name, settings, progress) if name in PLANS else zoo_plan(name, settings, progress)
