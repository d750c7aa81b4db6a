"""One application in one driver: its table, the states of its variants, and the trial of its canary."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

from serfer.applications.exchange import DriverEntry, ScalingDecision
from serfer.applications.meters import DriverSignals, VariantMeter, functions_signals, in_use
from serfer.applications.pipelines import served_name
from serfer.control.canary import Conduct, ConductCounter, Verdict, judge, total
from serfer.control.selection import FUNCTIONS, Catalogue, States, StateTracker, VariantSignals, worth_warming
from serfer.control.selection.scaling.demand import Demanding, NetworkDemand
from serfer.control.selection.scaling.demand import total as total_demand
from serfer.core.errors import UnavailableError
from serfer.core.variants import NO_OBJECTIVES, Application, Canary, Objectives, Place, Release, Variant, VariantState
from serfer.registry import Latest

_MINUTE = 60  # looks, one a second
_MOST_OBJECTIVES = 100  # that are told apart within a second
_LATELY = 5  # looks whose queries are the load


@dataclass(frozen=True)
class FunctionsPlace:
    """Where functions run: how many invocations at once, and how long an environment stays warm, in seconds."""

    concurrency: int
    kept_warm_s: float


@dataclass(frozen=True)
class Trial:
    """A canary's trial so far, of all drivers: how live queries ended, and the canary's, and what follows from it."""

    live: Conduct
    canary: Conduct
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Side:
    """Network versions that answer together, their variants by name, and the catalogue of these."""

    networks: Mapping[str, int]
    variants: Mapping[str, Variant]
    catalogue: Catalogue

    def has(self, asked: Objectives) -> bool:
        has_variant = asked.variant is None or asked.variant in self.variants
        return has_variant and (asked.network is None or asked.network in self.networks)


@dataclass(frozen=True)
class Table:
    """An application's live release and canary, as far as their variants can run here."""

    application: Application
    release: Release
    live: Side
    canary: Side | None

    def sides(self, *, canary_first: bool) -> list[Side]:
        both = [self.live, *([self.canary] if self.canary else [])]
        return both[::-1] if canary_first else both

    @property
    def trial(self) -> Canary | None:
        return self.application.canary if self.canary else None

    @cached_property
    def variants(self) -> dict[str, Variant]:
        return {**self.live.variants, **(self.canary.variants if self.canary else {})}


def table_of(application: Application, runs_here: Callable[[Variant], bool]) -> Table:
    release = application.live_release
    if release is None:
        raise UnavailableError(f"application {application.name} has no live release yet: serfer app promote")
    live = _side(application, release.networks, runs_here)
    if live is None:
        raise UnavailableError(
            f"no variant of application {application.name} can run here: register plans for functions"
        )
    canary = application.canary
    return Table(application, release, live, _side(application, canary.networks, runs_here) if canary else None)


def _side(application: Application, networks: Mapping[str, int], runs_here: Callable[[Variant], bool]) -> Side | None:
    usable = {variant.name: variant for variant in application.variants(networks) if runs_here(variant)}
    return Side(networks, usable, Catalogue(usable.values())) if usable else None


class ServedApplication:
    """What a driver knows of an application that it serves.

    `failed` is a canary that is to be taken back, and why: the registry still has it as far as is known. `deleted` says
    that the registry has no record of the application any more: nothing answers until it is restored.
    """

    def __init__(self, name: str, place: FunctionsPlace, clock: Callable[[], float]) -> None:
        self.name = name
        self.failed: tuple[Canary, str] | None = None
        self.deleted = False
        self.latest: Latest | None = None
        self.changes = 0
        self.states = States({})
        self.trial: Trial | None = None
        self.compared = 0
        self.agreed = 0
        self.others: Sequence[DriverEntry] = ()
        self.warming: set[str] = set()
        self.own_scaled: ScalingDecision | None = None
        self._table: Table | None = None
        self._demanding = Demanding({})
        self._place = place
        self._clock = clock
        self._tracker = StateTracker()
        self._meters: dict[str, VariantMeter] = {}
        self._since = ""
        self._asked: deque[Counter[Objectives]] = deque([Counter()], maxlen=_MINUTE)
        self._began: deque[float] = deque([clock()], maxlen=_LATELY + 1)
        self._counters = {False: ConductCounter(), True: ConductCounter()}

    @property
    def table(self) -> Table:
        if self.deleted:
            raise UnavailableError(self.why_deleted)
        if self._table is None:
            raise UnavailableError(f"the registry's record of application {self.name} was not read yet")
        return self._table

    @property
    def is_read(self) -> bool:
        return self._table is not None and not self.deleted

    @property
    def variants(self) -> Mapping[str, Variant]:
        return self._table.variants if self._table and not self.deleted else {}

    @property
    def why_deleted(self) -> str:
        return f"application {self.name} was deleted from the registry: `serfer app restore` brings it back"

    def use(self, table: Table) -> None:
        self.deleted = False
        if self._table is None or self._table.live.variants != table.live.variants:
            self._demanding = Demanding(table.live.variants)
        since = table.trial.since if table.trial else ""
        if self.failed is not None and since == self.failed[0].since:
            self._table = replace(table, canary=None)
            return
        self._table, self.failed = table, None
        if since != self._since:
            self._since, self.trial, self.compared, self.agreed = since, None, 0, 0
            self._counters = {False: ConductCounter(), True: ConductCounter()}

    def meter(self, variant: str) -> VariantMeter:
        return self._meters.setdefault(variant, VariantMeter(self._place.kept_warm_s, self._clock))

    def ask(self, objectives: Objectives) -> None:
        """Count a query's objectives; beyond the most that are told apart, as if it had none."""
        now = self._asked[-1]
        is_known = objectives in now or len(now) < _MOST_OBJECTIVES
        now[objectives if is_known else NO_OBJECTIVES] += 1

    def next_second(self) -> None:
        self._asked.append(Counter())
        self._began.append(self._clock())

    @property
    def own_demand(self) -> tuple[NetworkDemand, ...]:
        lately = [*self._asked][-len(self._began) :]
        elapsed_s = max(1.0, self._clock() - self._began[0])
        asked = sum(lately, Counter[Objectives]())
        rates = {objectives: count / elapsed_s for objectives, count in asked.items()}
        return tuple(self._demanding.demands(rates))

    @property
    def demand(self) -> dict[tuple[str, str], NetworkDemand]:
        return total_demand([self.own_demand, *(driver.demand for driver in self.others)])

    @property
    def scaled(self) -> ScalingDecision | None:
        """What was decided last of copies on instances, here or by the driver that leads; None where nobody does."""
        others = (driver.scaled for driver in self.others if driver.scaled is not None)
        return self.own_scaled or next(others, None)

    def worth_warming(self) -> list[str]:
        asked = sum(self._asked, Counter[Objectives]())
        return worth_warming(asked, self.table.live.catalogue, self.states)

    def counter(self, *, canary: bool) -> ConductCounter:
        return self._counters[canary]

    def places(self, variant: str) -> dict[str, VariantState]:
        return {place: found.state for (name, place), found in self._tracker.places.items() if name == variant}

    def entry(self, driver: str) -> DriverEntry:
        live, canary = self._counters[False].conduct, self._counters[True].conduct
        return DriverEntry(driver, self._signals(), self._since, live, canary, self.own_demand, self.own_scaled)

    def look(self, others: Sequence[DriverEntry], instances: Callable[[str], Mapping[str, VariantSignals]]) -> None:
        self.others = others
        self._meters = {
            name: meter for name, meter in self._meters.items() if name in self.table.variants or meter.in_flight
        }
        own = self._signals()
        on_functions = {
            name: (variant, [own.get(name, DriverSignals()), *_of(name, others)])
            for name, variant in self.table.variants.items()
            if variant.place is Place.FUNCTIONS
        }
        share = in_use(on_functions.values(), self._place.concurrency)
        signals = {
            (name, FUNCTIONS): functions_signals(variant, seen, share) for name, (variant, seen) in on_functions.items()
        }
        for name in self.table.variants.keys() - on_functions.keys():
            signals |= {(name, place): instance for place, instance in instances(served_name(self.name, name)).items()}
        self.states = self._tracker.observe(signals)
        if self.table.trial is not None:
            self.trial = self._judged(self.table.trial, others)
            if self.trial.verdict is Verdict.TAKE_BACK:
                self.failed = self.table.trial, self.trial.why
                self.use(self.table)

    def _signals(self) -> dict[str, DriverSignals]:
        return {name: meter.signals for name, meter in self._meters.items() if name in self.table.variants}

    def _judged(self, canary: Canary, others: Sequence[DriverEntry]) -> Trial:
        same = [driver for driver in others if driver.trial == canary.since]
        live = total([self._counters[False].conduct, *(driver.live for driver in same)])
        tried = total([self._counters[True].conduct, *(driver.canary for driver in same)])
        return Trial(live, tried, *judge(tried, live, age_s(canary.since), canary.limits))


def age_s(since: str) -> float:
    """Return the seconds since a time in ISO 8601, by this machine's clock; 0 for what is not one."""
    try:
        begun = datetime.fromisoformat(since)
    except ValueError:
        return 0.0
    return max(0.0, (datetime.now(UTC) - begun.astimezone(UTC)).total_seconds())


def _of(variant: str, others: Sequence[DriverEntry]) -> list[DriverSignals]:
    return [driver.variants[variant] for driver in others if variant in driver.variants]
