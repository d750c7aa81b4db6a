"""The chaos suite: bursts of queries under faults, each on a testbed of its own with real processes.

| scenario    | what goes wrong                                                                                      |
|-------------|------------------------------------------------------------------------------------------------------|
| `calm`      | nothing: the reference                                                                               |
| `killed`    | workers are killed with -9, repeatedly                                                               |
| `store`     | of the store's operations, in workers and driver, one in ten fails and one in twenty hangs and fails |
| `restarted` | the store is killed and comes back empty, twice                                                      |
| `throttled` | three invocations in ten are refused                                                                 |
| `twice`     | every event is delivered twice, to the poll driver                                                   |
| `slow`      | one worker in twenty takes 50 times as long; then the same without hedging, for comparison           |
| `driver`    | one of two drivers is killed with -9; what it had not answered is sent to the other                  |

No query may be lost or wrong, nothing may be left behind, and invocations must be within their budget: see
docs/results/chaos.md.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import typer

from serfer.build_cache import assembled, in_use
from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import SerferError, UsageError
from serfer.core.plan import sealed
from serfer.drivers.driver import TTL_MARGIN_S
from serfer.packaging.bundle import code_stamp
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan, write_plan
from serfer.settings import Settings, load_settings
from serfer.splitter.split import split
from serfer.storage.faults import wrapped_url
from serfer_bench.chaos.budget import InvocationBudget
from serfer_bench.chaos.clients import Clients, TwoDrivers
from serfer_bench.chaos.testbed import Conditions, Testbed
from serfer_bench.chaos.verdict import Observations, Outcome, PassCriteria, judge, skipped
from serfer_bench.core import arrivals
from serfer_bench.core.faults import Faults
from serfer_bench.core.options import NetworkOption, PlanOption, RowsOption, network
from serfer_bench.core.results import publish_rows
from serfer_bench.load.queries import Example, run_queries

_MODEL, _SIZE, _GRIDS = "squeezenet", 96, ("2x2", "2x2", "1")
_STAMPED = ("serfer.splitter", "serfer.core")


def chaos_plan(model: str | None, plan: Path | None, settings: Settings, progress: Progress) -> Path:
    chosen = plan is not None or model is not None
    return through_store(network(model, plan, settings, progress) if chosen else _small(settings, progress), settings)


def through_store(directory: Path, settings: Settings) -> Path:
    plan = load_plan(directory)
    last = len(plan.stages) - 1
    paths = ("inline" if number == last else "cache" for number in range(last + 1))
    stages = tuple(replace(stage, path=path) for stage, path in zip(plan.stages, paths, strict=True))
    changed = sealed(replace(plan, stages=stages))
    target = settings.cache_dir / "plans" / f"stored-{changed.digest[:32]}"
    if not in_use(target):
        with assembled(target) as fresh:
            shutil.copytree(directory, fresh, dirs_exist_ok=True)  # no links: onnx reads no weights that have them
            write_plan(changed, fresh)
    return target


def _small(settings: Settings, progress: Progress) -> Path:
    target = settings.cache_dir / "plans" / f"chaos-{_MODEL}-{_SIZE}-{code_stamp(_STAMPED)}"
    if not in_use(target):
        progress(f"splitting {_MODEL} at {_SIZE} px, once: the plan stays in {target.parent}")
        with assembled(target) as fresh:
            example = np.zeros((1, 3, _SIZE, _SIZE), dtype=np.float32)
            split(
                _MODEL,
                example,
                fresh,
                grids=list(_GRIDS),
                memory_mb=shipped_aws().functions.memory_per_vcpu,
                precision="fp32",
                gap="never",
            )
    return target


Fault = Callable[[Testbed, Clients], str]
"""Acts while queries run, and returns a remark on what it did."""
_BETWEEN_KILLS, _AT_A_TIME = 0.1, 3
_RESTARTS = (0.25, 0.5)
_DEATH = 1 / 3
_PATIENCE_S = 5.0


def kill_workers(testbed: Testbed, clients: Clients) -> str:
    killed = 0
    due = 0.0
    while clients.wait(due):
        killed += testbed.kill_workers(_AT_A_TIME)
        due = clients.share_ended + _BETWEEN_KILLS
    return f"{killed} workers killed"


def restart_store(testbed: Testbed, clients: Clients) -> str:
    restarts = 0
    for share in _RESTARTS:
        if clients.wait(share):
            testbed.restart_store()
            restarts += 1
    return f"the store restarted {restarts} times"


def kill_driver(pair: TwoDrivers) -> Fault:
    def inject(_testbed: Testbed, clients: Clients) -> str:
        clients.wait(_DEATH)
        return pair.kill_first(_PATIENCE_S)

    return inject


class FaultInjection:
    """Runs a fault in a thread while queries run; an error in it is raised at the end."""

    def __init__(self, fault: Fault | None, testbed: Testbed, clients: Clients) -> None:
        self.remark = ""
        self._fault, self._testbed, self._clients = fault, testbed, clients
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="serfer-bench-chaos")

    def _run(self) -> None:
        try:
            self.remark = self._fault(self._testbed, self._clients) if self._fault else ""
        except Exception as error:  # noqa: BLE001 - whatever it is, __exit__ raises it
            self._error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._clients.stop()
        self._thread.join()
        if self._error is not None:
            raise self._error


Progress = Callable[[str], None]
CALM = "calm"
POLL = "poll"
DRIVERS = ("push", POLL)
_DEADLINE_S = 120.0
_TAIL = 3.0
_MIN_S = 20.0  # no scenario is started with less time left


@dataclass(frozen=True)
class Scenario:
    """Conditions and a fault, which acts while queries run.

    With `keys_stay`, keys may outlive their queries, for their time to live. With `tail`, p99 may be so many times p50,
    and the scenario is repeated without hedging for comparison.
    """

    name: str
    conditions: Conditions = field(default_factory=Conditions)
    fault: Fault | None = None
    two_drivers: bool = False
    tail: float | None = None
    keys_stay: bool = False

    @property
    def criteria(self) -> PassCriteria:
        return PassCriteria(_DEADLINE_S + TTL_MARGIN_S, self.keys_stay, self.tail)

    def driven_by(self, driver: str) -> Scenario:
        """Return the scenario with another driver, unless it fixes one.

        The poll driver does not learn when a late event ends, so what that writes stays for its time to live.
        """
        driver = self.conditions.driver or driver
        conditions = replace(self.conditions, driver=driver)
        return replace(self, conditions=conditions, keys_stay=self.keys_stay or driver == POLL)


_FAILING = partial(wrapped_url, "fail", fail=0.1, hang=0.05, hang_s=0.5)
_SLOW = Faults(slow_one_in=20, slow_factor=50.0, seed=10)  # the tenth worker, the 30th, ...
SCENARIOS = {
    one.name: one
    for one in (
        Scenario(CALM),
        Scenario("killed", fault=kill_workers),
        Scenario("store", Conditions(wrap=_FAILING), keys_stay=True),
        Scenario("restarted", fault=restart_store),
        Scenario("throttled", Conditions(Faults(throttle=0.3))),
        Scenario("twice", Conditions(Faults(twice=True), driver=POLL)),
        Scenario("slow", Conditions(_SLOW), tail=_TAIL),
        Scenario("driver", two_drivers=True, keys_stay=True),
    )
}


@dataclass(frozen=True)
class Options:
    """The command line's; None means the default."""

    model: str | None
    plan: Path | None
    queries: int
    store: str | None
    seconds: float


@dataclass(frozen=True)
class Suite:
    """Shared by all scenarios: a plan directory, examples, and when the suite must have ended."""

    directory: Path
    examples: Sequence[Example]
    settings: Settings
    store: str | None
    ends: float  # on time.monotonic
    progress: Progress

    @property
    def left_s(self) -> float:
        return self.ends - time.monotonic()


def chosen(only: str | None, driver: str, store: str | None) -> list[Scenario]:
    if driver not in DRIVERS:
        raise UsageError(f"--engine is {' or '.join(DRIVERS)}, not {driver!r}")
    names = [name.strip() for name in only.split(",")] if only else [*SCENARIOS]
    for name in names:
        if name not in SCENARIOS:
            raise UsageError(f"--only names some of {', '.join(SCENARIOS)}; there is no {name!r}")
    if store is not None and "restarted" in names:
        if only:
            raise UsageError("a store of --store cannot be restarted: leave --store out, or restarted out of --only")
        names.remove("restarted")
    return [SCENARIOS[name].driven_by(driver) for name in dict.fromkeys((CALM, *names))]


def prepared(options: Options, settings: Settings, progress: Progress) -> Suite:
    ends = time.monotonic() + options.seconds
    directory = chaos_plan(options.model, options.plan, settings, progress)
    progress("running the unsplit network")
    return Suite(directory, examples(directory, options.queries), settings, options.store, ends, progress)


def examples(directory: Path, queries: int) -> list[Example]:
    plan, random = load_plan(directory), np.random.default_rng(0)
    run, shape = unsplit(plan, directory), plan.input
    made = []
    for _ in range(queries):
        batch: Any
        if plan.preprocess:
            batch = random.integers(0, 256, (1, shape.height, shape.width, shape.channels), dtype=np.uint8)
        else:
            batch = random.standard_normal((1, shape.channels, shape.height, shape.width), dtype=np.float32)
        made.append(Example(batch, run(batch)))
    return made


def measure(scenarios: Sequence[Scenario], suite: Suite) -> Iterator[Outcome]:
    for scenario in scenarios:
        yield _outcome(scenario, suite)
        if scenario.tail is not None:
            yield _outcome(_unhedged(scenario), suite)


def _unhedged(scenario: Scenario) -> Scenario:
    conditions = replace(scenario.conditions, hedge=False)
    return replace(scenario, name=f"{scenario.name}, no hedges", conditions=conditions, tail=None)


def _outcome(scenario: Scenario, suite: Suite) -> Outcome:
    if suite.left_s < _MIN_S:
        return skipped(scenario.name, len(suite.examples))
    suite.progress(f"{scenario.name}: starting store, Lambda service and workers")
    started = time.monotonic()
    with Testbed(suite.directory, scenario.conditions, suite.settings, suite.store, _DEADLINE_S) as testbed:
        observed = _observe(testbed, scenario, suite)
        testbed.close_pipeline()
        left = testbed.left()
    return judge(scenario.name, scenario.criteria, observed, left, testbed.processes, time.monotonic() - started)


def _observe(testbed: Testbed, scenario: Scenario, suite: Suite) -> Observations:
    count = len(suite.examples)
    _warm_up(testbed, scenario, suite)
    with ExitStack() as parts:
        pair = (
            TwoDrivers(parts.enter_context(closing(testbed.remote_driver())), testbed.submit)
            if scenario.two_drivers
            else None
        )
        clients = Clients(pair.submit if pair else testbed.submit, count)
        before = testbed.counts()
        injection = parts.enter_context(
            FaultInjection(kill_driver(pair) if pair else scenario.fault, testbed, clients),
        )
        progress, times = _progress(suite, scenario), arrivals.burst(count)
        sent = run_queries(clients.submit, suite.examples, times, patience_s=suite.left_s, progress=progress)
    now = testbed.counts()
    grown = {name: now[name] - before[name] for name in now}
    budget = clients.budget + (pair.budget if pair else InvocationBudget())
    unanswered = pair.unanswered if pair else 0
    allowed = budget.limit(testbed.tasks, throttled=grown["throttled"], doubled=grown["doubled"], unanswered=unanswered)
    duplicates, conflicting = (pair.duplicates, pair.conflicting) if pair else (0, 0)
    remark = _remark(injection.remark, grown, duplicates)
    return Observations(
        sent=tuple(sent),
        served=tuple(clients.served),
        budget=budget,
        invocations=grown["invocations"],
        allowed=allowed,
        duplicates=duplicates,
        conflicting=conflicting,
        remark=remark,
    )


def _warm_up(testbed: Testbed, scenario: Scenario, suite: Suite) -> None:
    suite.progress(f"{scenario.name}: warming up")
    testbed.warm_up()
    times = arrivals.burst(suite.settings.local_concurrency)
    run_queries(Clients(testbed.submit, 0).submit, suite.examples, times, patience_s=suite.left_s)


def _remark(injected: str, grown: dict[str, int], duplicates: int) -> str:
    words = {
        "failed": "failed",
        "throttled": "were throttled",
        "refused": "found no room",
        "doubled": "were doubled",
        "slowed": "ran in slow workers",
    }
    counted = [f"{grown[name]:,} invocations {became}" for name, became in words.items() if grown[name]]
    both = [f"{duplicates:,} answered by both drivers"] if duplicates else []
    return ", ".join([*([injected] if injected else []), *both, *counted])


def _progress(suite: Suite, scenario: Scenario) -> Progress:
    return lambda text: suite.progress(f"{scenario.name}: {text}")


def command(
    model: NetworkOption = None,
    plan: PlanOption = None,
    queries: Annotated[int, typer.Option(min=1, max=10_000, help="Queries of each burst.")] = 300,
    only: Annotated[
        str | None,
        typer.Option(
            help="Some of killed, store, restarted, throttled, twice, slow and driver, with commas between; calm is "
            "always there. By default all."
        ),
    ] = None,
    store: Annotated[str | None, typer.Option(help="A Redis store's URL; by default each scenario starts one.")] = None,
    engine: Annotated[str, typer.Option(help="push or poll; twice is always poll.")] = "push",
    seconds: Annotated[float, typer.Option(min=1, help="For all scenarios; what has no answer by then is lost.")] = 840,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Kill workers, driver and store, refuse, double and delay invocations while queries run: nothing may be lost."""
    scenarios = chosen(only, engine, store)
    with status_line() as progress:
        suite = prepared(Options(model, plan, queries, store, seconds), load_settings(), progress)
        outcomes = [*measure(scenarios, suite)]
    publish_rows(outcomes, directory, as_json=as_json)
    if failed := [one.scenario for one in outcomes if one.problems]:
        raise SerferError(f"{len(failed)} of {len(outcomes)} scenarios went wrong: {', '.join(failed)}")
