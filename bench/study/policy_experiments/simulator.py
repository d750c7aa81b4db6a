"""The simulator against local runs, and its speed: `serfer study simulator`.

One local run calibrates; the simulation is compared with each of the others. Speeds are those of one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from serfer.cli.shared.options import JsonOption, status_lines
from serfer.control.policies import make_policy
from serfer.control.policy import fleet_of
from serfer.control.router import Endpoint, Router
from serfer.control.scenario import Market, Scenario, read_scenario
from serfer.cost.driver_limits import DriverLimits
from serfer.cost.fleet import Purchase
from serfer.cost.loads.steps import steps_of
from serfer.cost.loads.trace import Trace
from serfer.cost.queries import QueriesRun
from serfer.cost.service_times import scenario_times
from serfer.cost.windows import Window
from serfer.settings import Settings, load_settings
from serfer.wiring.open_pipeline import open_pipeline
from serfer_bench.core.options import MarkdownOption, ModelOption, PlanOption, plan_of
from serfer_bench.core.stamp import this_machine
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.study.policies import NAMES
from serfer_bench.study.sim.calibration import Calibration, LocalRun
from serfer_bench.study.sim.rates import run_rates
from serfer_bench.study.sim.tasks import TasksRun, alone, service_times

Progress = Callable[[str], None]
_MS, _US, _MINUTE_S = 1000.0, 1e6, 60.0
_SIMULATED: Final = 20_000
_SPEED_QUERIES: Final = 400_000
_TASK_QUERIES: Final = 40_000
_TURN, _WARM_UP = 20, 3  # queries
_ROUTED: Final = 50_000
_ENDPOINTS: Final = (0, 1, 10, 100)
_DAYS_STEPS: Final = 17_280  # steps of 5 s in a day
CLOSE: Final = {"p50": 0.05, "p99": 0.15}


@dataclass(frozen=True)
class Quantile:
    """A quantile in ms: as simulated after one local run, and in others; `off` is the furthest of those, as a share."""

    name: str
    calibrated_ms: float
    simulated_ms: float
    drawn_ms: float
    local_ms: tuple[float, ...]

    @property
    def off(self) -> float:
        """By how much the simulation misses the run that it misses most."""
        return max(abs(self.simulated_ms / one - 1) for one in self.local_ms)

    @property
    def close(self) -> int:
        """The number of local runs that it is as close to as it should be."""
        return sum(abs(self.simulated_ms / one - 1) <= CLOSE[self.name] for one in self.local_ms)

    @property
    def within(self) -> bool:
        return min(self.local_ms) <= self.simulated_ms <= max(self.local_ms)


@dataclass(frozen=True)
class Speed:
    """A speed: `value` in `unit`, and its target."""

    what: str
    value: float
    unit: str
    asked: str


@dataclass(frozen=True)
class Checked:
    """The results of `serfer study simulator`."""

    plan: str
    queries: int
    tasks: int
    quantiles: tuple[Quantile, ...]
    speeds: tuple[Speed, ...]


def measure(
    directory: Path, scenario: Scenario, settings: Settings, *, runs: int, queries: int, progress: Progress
) -> Checked:
    made = _local_runs(directory, settings, runs + 1, queries, progress)
    progress("simulating")
    quantiles = tuple(_quantile(name, share, made, scenario) for name, share in (("p50", 0.5), ("p99", 0.99)))
    speeds = (*_simulator_speeds(made[0], scenario, settings, progress), *_decisions(scenario, progress))
    return Checked(directory.name, queries, made[0].tasks, quantiles, speeds)


def _local_runs(directory: Path, settings: Settings, runs: int, queries: int, progress: Progress) -> list[Calibration]:
    """Open the plan so many times, and interleave the runs, so that load from elsewhere disturbs all alike."""
    with ExitStack() as stack:
        local_runs = []
        for number in range(runs):
            progress(f"starting local run {number + 1} of {runs}")
            local_runs.append(
                LocalRun(stack.enter_context(open_pipeline(directory, workers="local", settings=settings)))
            )
        for number, begun in enumerate(range(0, queries, _TURN)):
            progress(f"local runs: {begun} of {queries} queries")
            first = number % runs  # the first one may have an advantage
            for run in (*local_runs[first:], *local_runs[:first]):
                run.warm_up(_WARM_UP)  # others had the processors' caches
                run.take(min(_TURN, queries - begun))
        now = datetime.now(UTC).date().isoformat()
        return [run.calibration(str(this_machine()), now) for run in local_runs]


def _quantile(name: str, share: float, made: Sequence[Calibration], scenario: Scenario) -> Quantile:
    first, *others = made
    warm = replace(scenario.serverless, keep_alive_s=float("inf"))
    simulated = alone(first, warm, seed=0, queries=_SIMULATED)[1:]
    return Quantile(
        name,
        float(np.quantile(first.latencies_s, share)) * _MS,
        float(np.quantile(simulated, share)) * _MS,
        service_times(first, scenario.serverless).warm_s.at(share) * _MS,
        tuple(float(np.quantile(one.latencies_s, share)) * _MS for one in others),
    )


def _simulator_speeds(made: Calibration, scenario: Scenario, settings: Settings, progress: Progress) -> Iterator[Speed]:
    times = scenario_times(scenario.serverless, settings.facts().functions)
    limits = DriverLimits(hedge=True, growth=settings.facts().functions.growth)
    calm = min(scenario.instance.qps / 2, 100.0)
    for what, launched in (("all on Lambda", 0), ("two instances", 2)):
        progress(f"timing queries, {what}")
        policy = make_policy("serverless" if not launched else "instances", scenario)
        policy.resume(fleet_of(scenario.instance, 0, launched))
        bought = (-scenario.instance.boot_s, Purchase(scenario.instance, Market.ON_DEMAND))
        run = QueriesRun(scenario, Router(scenario, policy), times, [bought] * launched, 0, limits=limits)
        yield Speed(f"queries, {what}", _speed(run, calm, _SPEED_QUERIES), "queries/min", "1,000,000")
    progress("timing tasks")
    tasks = TasksRun(scenario, Router(scenario, make_policy("serverless", scenario)), made, [], 0, limits=limits)
    what = f"tasks, {made.tasks} a query, all on Lambda"
    yield Speed(what, _speed(tasks, calm, _TASK_QUERIES), "queries/min", "100,000")
    for name in NAMES:
        progress(f"timing {name} over rates")
        trace = Trace("steps", np.full(_DAYS_STEPS, 5.0), np.random.default_rng(0).random(_DAYS_STEPS) * 4 * calm)
        begun = time.process_time()
        run_rates(trace, scenario, make_policy(name, scenario))
        yield Speed(f"rates, {name}", (time.process_time() - begun) * _US / _DAYS_STEPS, "us/step", "-")


def _speed(run: QueriesRun, rate: float, queries: int) -> float:
    seconds = queries / rate
    steps = steps_of(Trace("even", np.array([seconds]), np.array([rate])), 5.0)
    begun = time.process_time()
    window = run.over(steps, 0.0, Window("whole", 0.0, seconds))
    return window.queries / (time.process_time() - begun) * _MINUTE_S


def _decisions(scenario: Scenario, progress: Progress) -> Iterator[Speed]:
    for count in _ENDPOINTS:
        progress(f"timing decisions with {count} instances")
        router = Router(scenario, make_policy("serverless", scenario), max_usd_per_hour=1e6)
        endpoints = [Endpoint(f"i{number}", number % 4) for number in range(count)]
        begun = time.process_time()
        for number in range(_ROUTED):
            router.route(number * 1e-3, endpoints, number % 100)
        yield Speed(f"a decision, {count} instances", (time.process_time() - begun) * _US / _ROUTED, "us", "50")


_QUANTILE_HEAD = (
    "ms",
    "calibrated on",
    "simulated, tasks",
    "drawn, queries",
    "local runs",
    "furthest",
    "close to",
    "within",
)
_SPEED_HEAD = ("what", "measured", "unit", "asked")


def _quantile_rows(checked: Checked) -> list[tuple[str, ...]]:
    return [
        (
            one.name,
            f"{one.calibrated_ms:.1f}",
            f"{one.simulated_ms:.1f}",
            f"{one.drawn_ms:.1f}",
            ", ".join(f"{ms:.1f}" for ms in one.local_ms),
            f"{one.off:.1%}",
            f"{one.close} of {len(one.local_ms)} ({CLOSE[one.name]:.0%})",
            "yes" if one.within else "no",
        )
        for one in checked.quantiles
    ]


def _line(checked: Checked) -> str:
    run = f"{checked.tasks} tasks, {checked.queries} queries a local run"
    return f"{checked.plan}, {run}; {this_machine()}, processor time"


def results(checked: Checked) -> Results:
    speeds = [(one.what, f"{one.value:,.1f}", one.unit, one.asked) for one in checked.speeds]
    tables = [Table(_QUANTILE_HEAD, _quantile_rows(checked)), Table(_SPEED_HEAD, speeds)]
    return Results([asdict(checked)], tables, [_line(checked)])


def command(
    scenario: Annotated[
        Path, typer.Option(metavar="FILE or NAME", help="A scenario to run the simulator and the router in.")
    ] = Path("two-types"),
    model: ModelOption = None,
    plan: PlanOption = None,
    runs: Annotated[
        int, typer.Option(min=1, max=100, help="Local runs that the calibrated simulation is held to.")
    ] = 5,
    queries: Annotated[int, typer.Option(min=1, max=10_000, help="Queries of a local run.")] = 400,
    as_markdown: MarkdownOption = False,
    as_json: JsonOption = False,
) -> None:
    """Hold the simulator against local runs that did not calibrate it, and time it and the router's decisions."""
    world, directory = read_scenario(scenario), plan_of(model, plan)
    with status_lines() as progress:
        checked = measure(directory, world, load_settings(), runs=runs, queries=queries, progress=progress)
    publish(results(checked), as_json=as_json, as_markdown=as_markdown)
