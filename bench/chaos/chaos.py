"""The chaos suite: bursts of queries while something goes wrong, each on fresh parts and real processes.

| scenario    | what goes wrong                                                                                      |
|-------------|------------------------------------------------------------------------------------------------------|
| `calm`      | nothing: what the others are held against                                                            |
| `killed`    | workers are killed with -9 again and again                                                           |
| `store`     | of the store's operations, in workers and driver, one in ten fails and one in twenty hangs and fails |
| `restarted` | the store is killed and comes back empty, twice                                                      |
| `throttled` | three invocations in ten are refused                                                                 |
| `twice`     | every event is delivered twice, to the poll driver                                                   |
| `slow`      | one worker in twenty takes 50 times as long; then the same without duplicates, for comparison        |
| `driver`    | one of two drivers is killed with -9; what it had not answered is asked of the other                 |

Nothing may be lost, wrong, or left behind, and no more may be invoked than the faults account for: see
docs/results/chaos.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.chaos.clients import Crowd, TwoDrivers
from bench.chaos.faults import Disturbance, Disturbed, kill_workers, lose_driver, restart_store
from bench.chaos.outcome import Demands, Outcome, Played, not_played, outcome
from bench.chaos.plans import chaos_plan
from bench.chaos.testbed import Conditions, Scene
from bench.load import arrivals
from bench.load.account import Account
from bench.load.load import Question, offer
from drivers.driver import TTL_MARGIN_S
from serfer.core.errors import UsageError
from serfer.local.lambda_.faults import Faults
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from storage.failing import failing

Progress = Callable[[str], None]
CALM = "calm"
POLL = "poll"
DRIVERS = ("push", POLL)
_DEADLINE_S = 120.0
_TAIL = 3.0
_LEAST_S = 20.0  # what is worth starting a scenario for


@dataclass(frozen=True)
class Scenario:
    """What goes wrong, and how: `disturb` acts while queries run, and says what it did.

    With `keys_stay`, keys may outlive their queries, for their time to live. With `tail`, p99 may be so many times p50,
    and the same is played without duplicates for comparison.
    """

    name: str
    conditions: Conditions = field(default_factory=Conditions)
    disturb: Disturbance | None = None
    two_drivers: bool = False
    tail: float | None = None
    keys_stay: bool = False

    @property
    def demands(self) -> Demands:
        """What its outcome is held against."""
        return Demands(_DEADLINE_S + TTL_MARGIN_S, self.keys_stay, self.tail)

    def driven_by(self, driver: str) -> Scenario:
        """Return the scenario with another driver, unless it is about one.

        Nobody hears of the end of an event that is late, so what it writes stays for its time to live.
        """
        driver = self.conditions.driver or driver
        conditions = replace(self.conditions, driver=driver)
        return replace(self, conditions=conditions, keys_stay=self.keys_stay or driver == POLL)


_FAILING = partial(failing, fail=0.1, hang=0.05, hang_s=0.5)
_SLOW = Faults(slow_one_in=20, slow_factor=50.0, seed=10)  # the tenth worker, the 30th, ...
SCENARIOS = {
    one.name: one
    for one in (
        Scenario(CALM),
        Scenario("killed", disturb=kill_workers),
        Scenario("store", Conditions(wrap=_FAILING), keys_stay=True),
        Scenario("restarted", disturb=restart_store),
        Scenario("throttled", Conditions(Faults(throttle=0.3))),
        Scenario("twice", Conditions(Faults(twice=True), driver=POLL)),
        Scenario("slow", Conditions(_SLOW), tail=_TAIL),
        Scenario("driver", two_drivers=True, keys_stay=True),
    )
}


@dataclass(frozen=True)
class Choice:
    """What the command line chose; None means the default."""

    model: str | None
    plan: Path | None
    queries: int
    store: str | None
    seconds: float


@dataclass(frozen=True)
class Suite:
    """What all scenarios share: a plan directory, questions, and when the suite must have ended."""

    directory: Path
    questions: Sequence[Question]
    settings: Settings
    store: str | None
    ends: float  # on time.monotonic
    progress: Progress

    @property
    def left_s(self) -> float:
        """Seconds until the suite has to end."""
        return self.ends - time.monotonic()


def chosen(only: str | None, driver: str, store: str | None) -> list[Scenario]:
    """Return the scenarios of --only, by default all that can be, and calm first.

    Raises UsageError for an unknown name, for one that cannot be with this --store, and for an unknown driver.
    """
    if driver not in DRIVERS:
        raise UsageError(f"--driver is {' or '.join(DRIVERS)}, not {driver!r}")
    names = [name.strip() for name in only.split(",")] if only else [*SCENARIOS]
    for name in names:
        if name not in SCENARIOS:
            raise UsageError(f"--only names some of {', '.join(SCENARIOS)}; there is no {name!r}")
    if store is not None and "restarted" in names:
        if only:
            raise UsageError("a store of --store cannot be restarted: leave --store out, or restarted out of --only")
        names.remove("restarted")
    return [SCENARIOS[name].driven_by(driver) for name in dict.fromkeys((CALM, *names))]


def prepared(choice: Choice, settings: Settings, progress: Progress) -> Suite:
    """Make the plan and the questions, and start the clock; raises what chaos_plan raises."""
    ends = time.monotonic() + choice.seconds
    directory = chaos_plan(choice.model, choice.plan, settings, progress)
    progress("asking the unsplit network")
    return Suite(directory, questions(directory, choice.queries), settings, choice.store, ends, progress)


def questions(directory: Path, queries: int) -> list[Question]:
    """Return a query of one image for each, all different, with the unsplit network's answers."""
    plan, random = load_plan(directory), np.random.default_rng(0)
    run, shape = unsplit(plan, directory), plan.input
    found = []
    for _ in range(queries):
        batch: Any
        if plan.preprocess:
            batch = random.integers(0, 256, (1, shape.height, shape.width, shape.channels), dtype=np.uint8)
        else:
            batch = random.standard_normal((1, shape.channels, shape.height, shape.width), dtype=np.float32)
        found.append(Question(batch, run(batch)))
    return found


def measure(scenarios: Sequence[Scenario], suite: Suite) -> Iterator[Outcome]:
    """Play the scenarios one after the other; queries of one for which there is no time left are lost."""
    for scenario in scenarios:
        yield _played(scenario, suite)
        if scenario.tail is not None:
            yield _played(_unhedged(scenario), suite)


def _unhedged(scenario: Scenario) -> Scenario:
    conditions = replace(scenario.conditions, hedge=False)
    return replace(scenario, name=f"{scenario.name}, no hedges", conditions=conditions, tail=None)


def _played(scenario: Scenario, suite: Suite) -> Outcome:
    if suite.left_s < _LEAST_S:
        return not_played(scenario.name, len(suite.questions))
    suite.progress(f"{scenario.name}: starting store, Lambda service and workers")
    started = time.monotonic()
    with Scene(suite.directory, scenario.conditions, suite.settings, suite.store, _DEADLINE_S) as scene:
        played = _play(scene, scenario, suite)
        scene.close_pipeline()
        left = scene.left()
    return outcome(scenario.name, scenario.demands, played, left, scene.processes, time.monotonic() - started)


def _play(scene: Scene, scenario: Scenario, suite: Suite) -> Played:
    """Warm the workers up, send the queries and disturb them."""
    count = len(suite.questions)
    _warm_up(scene, scenario, suite)
    with ExitStack() as parts:
        pair = TwoDrivers(parts.enter_context(scene.another_driver()), scene.ask) if scenario.two_drivers else None
        crowd = Crowd(pair.ask if pair else scene.ask, count)
        before = scene.counts()
        disturbed = parts.enter_context(
            Disturbed(lose_driver(pair) if pair else scenario.disturb, scene, crowd),
        )
        tell, times = _telling(suite, scenario), arrivals.burst(count)
        sent = offer(crowd.submit, suite.questions, times, patience_s=suite.left_s, progress=tell)
    now = scene.counts()
    grown = {name: now[name] - before[name] for name in now}
    account = crowd.account + (pair.account if pair else Account())
    unanswered = pair.unanswered if pair else 0
    allowed = account.allowed(
        scene.tasks, throttled=grown["throttled"], doubled=grown["doubled"], unanswered=unanswered
    )
    twofold, differing = (pair.twofold, pair.differing) if pair else (0, 0)
    remark = _remark(disturbed.remark, grown, twofold)
    return Played(tuple(sent), tuple(crowd.served), account, grown["invocations"], allowed, twofold, differing, remark)


def _warm_up(scene: Scene, scenario: Scenario, suite: Suite) -> None:
    """Have workers started, and let the driver learn how long tasks take."""
    suite.progress(f"{scenario.name}: warming up")
    scene.warm_up()
    times = arrivals.burst(suite.settings.local_concurrency)
    offer(Crowd(scene.ask, 0).submit, suite.questions, times, patience_s=suite.left_s)


def _remark(said: str, grown: dict[str, int], twofold: int) -> str:
    """Say what was done, and what the Lambda service made of it."""
    words = {
        "failed": "failed",
        "throttled": "were throttled",
        "refused": "found no room",
        "doubled": "were doubled",
        "slowed": "ran in slow workers",
    }
    counted = [f"{grown[name]:,} invocations {became}" for name, became in words.items() if grown[name]]
    both = [f"{twofold:,} answered by both drivers"] if twofold else []
    return ", ".join([*([said] if said else []), *both, *counted])


def _telling(suite: Suite, scenario: Scenario) -> Progress:
    return lambda text: suite.progress(f"{scenario.name}: {text}")
