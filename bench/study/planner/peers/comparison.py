"""Plans of Gillis's and MPHB's programs beside ours, each under their cost model and under ours.

Their cost model knows a master with workers and no store, so ours there is the exact search over the plans that theirs
may choose (published_costs.py): nothing that their dynamic programmes, or their learnt policies, find is cheaper. Under
our cost model a plan of theirs is a fork-join with the memories that are cheapest within the time, and ours is the
cheapest chain of stages. Packages are container images: no zip holds a Wide-ResNet's last block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from serfer.core.costs.aws import AwsFacts
from serfer.core.plan import PackageLimit
from serfer.core.units import MS_PER_S
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.splitter.network.graph import Graph
from serfer.splitter.planning.search import COST
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer_bench.core.plans import Progress
from serfer_bench.study.baselines.gillis import Gillis, Options
from serfer_bench.study.baselines.published_costs import GILLIS, MPHB, Group, Prices, PublishedCosts, layer_ends
from serfer_bench.study.planner.peers.networks import SIZE
from serfer_bench.study.planner.peers.questions import FASTEST, Policy
from serfer_bench.study.planner.peers.recorded_plans import Answer
from serfer_bench.study.planner.planner import FRONTIER_MB, OURS_MB, Network

PROGRAMS: Final[Mapping[str, Prices]] = {prices.name: prices for prices in (GILLIS, MPHB)}
_SAME: Final = 1e-9
_MILLION: Final = 1_000_000


@dataclass(frozen=True)
class Price:
    """A plan's predicted milliseconds and dollars a query."""

    ms: float
    usd: float


Best = Callable[[float], Price | None]
"""The cheapest plan within so many milliseconds."""


def dollars(price: Price | None) -> str:
    """Write dollars a million queries; `none` where there is no plan."""
    return f"{_MILLION * price.usd:.2f}" if price else "none"


def cheaper(ours: Price | None, theirs: Price | None) -> str:
    """Write by which share ours is cheaper; `-` where one of them is not there."""
    return f"{1 - ours.usd / theirs.usd:.1%}" if ours and theirs else "-"


@dataclass(frozen=True)
class Pair:
    """The cheapest within a time: a plan of theirs and one of ours, None for none."""

    most_ms: float
    theirs: Price | None
    ours: Price | None

    @property
    def loses(self) -> bool:
        if self.theirs is None:
            return False
        return self.ours is None or self.ours.usd > self.theirs.usd * (1 + _SAME)

    @property
    def cell(self) -> str:
        return dollars(self.ours) + (f" ({dollars(self.theirs)})" if self.theirs else "")


@dataclass(frozen=True)
class Comparison:
    """A program's fastest plan for a network under a cost model: in its own time, and within each objective.

    `plan` is in words. `as_theirs` is None where that cost model cannot price the plan.
    """

    network: str
    program: str
    plan: str
    as_theirs: Pair | None
    at: tuple[Pair, ...]

    @property
    def pairs(self) -> list[Pair]:
        return [pair for pair in (self.as_theirs, *self.at) if pair and pair.theirs]

    @property
    def cells(self) -> list[str]:
        same = self.as_theirs
        numbers = ["-", "-", "-", "-"]
        if same and same.theirs:
            numbers = [
                f"{same.theirs.ms:.0f}",
                dollars(same.theirs),
                dollars(same.ours),
                cheaper(same.ours, same.theirs),
            ]
        return [self.network, self.program, self.plan, *numbers, *(pair.cell for pair in self.at)]


@dataclass(frozen=True)
class SloAware:
    """Plans of one of Gillis's policies for a network within `slo_s`, a seed each, beside ours, under a cost model.

    A seed that has no plan, or one that does not keep the time, has None and counts as dearer than all.
    """

    network: str
    slo_s: float
    policy: Policy
    theirs: tuple[Price | None, ...]
    ours: Price | None

    @property
    def best(self) -> Price | None:
        return self._ordered[0]

    @property
    def median(self) -> Price | None:
        """The middle one; of an even number, the dearer."""
        return self._ordered[len(self._ordered) // 2]

    @property
    def _ordered(self) -> list[Price | None]:
        found = sorted((price for price in self.theirs if price), key=lambda price: price.usd)
        return [*found, *[None] * (len(self.theirs) - len(found))]

    @property
    def pairs(self) -> list[Pair]:
        return [Pair(MS_PER_S * self.slo_s, price, self.ours) for price in self.theirs if price]

    @property
    def cells(self) -> list[str]:
        found = f"{sum(price is not None for price in self.theirs)} of {len(self.theirs)}"
        theirs = f"{self.best.ms:.0f}" if self.best else "-", dollars(self.best), dollars(self.median)
        ours = f"{self.ours.ms:.0f}" if self.ours else "-", dollars(self.ours)
        savings = cheaper(self.ours, self.best), cheaper(self.ours, self.median)
        return [self.network, f"{self.slo_s:g}", self.policy, found, *theirs, *ours, *savings]


SLO_AWARE_HEAD: Final = (
    *("network", "within s", "Gillis's policy", "seeds that keep it", "its best: ms", "$/M", "its median: $/M"),
    *("ours: ms", "$/M", "cheaper than its best", "than its median"),
)


@dataclass
class Compared:
    """All comparisons under one cost model."""

    fastest: list[Comparison] = field(default_factory=list)
    slo_aware: list[SloAware] = field(default_factory=list)

    @property
    def pairs(self) -> list[Pair]:
        return [pair for row in self.rows for pair in row.pairs]

    @property
    def rows(self) -> list[Comparison | SloAware]:
        return [*self.fastest, *self.slo_aware]


def compare(network: str, program: str, plan: str, theirs: Best, ours: Best, slos: Sequence[float]) -> Comparison:
    """Compare the cheapest plans in the time that theirs takes at its cheapest, and within `slos`, in seconds."""
    cheapest = theirs(float("inf"))
    same = Pair(cheapest.ms, cheapest, ours(cheapest.ms * (1 + _SAME))) if cheapest else None
    at = (Pair(MS_PER_S * slo, theirs(MS_PER_S * slo), ours(MS_PER_S * slo)) for slo in slos)
    return Comparison(network, program, plan, same, tuple(at))


class Theirs:
    """Plans of a network under a program's cost model."""

    def __init__(self, costs: PublishedCosts) -> None:
        self._costs = costs

    def theirs(self, groups: Sequence[Group]) -> Best:
        plan = self._costs.plan(groups)
        return lambda most_ms: Price(plan.ms, plan.usd) if plan.ms <= most_ms else None

    def ours(self, most_ms: float) -> Price | None:
        best = self._costs.best(most_ms)
        return Price(best.ms, best.usd) if best else None


class Ours:
    """Plans of a network under our cost model."""

    def __init__(self, name: str, graph: Graph, facts: AwsFacts) -> None:
        budget = Budget(PackageLimit(facts.functions.image_limit, DEPENDENCY_ALLOWANCE), facts, OURS_MB)
        self._network = Network(name, SIZE, with_tile_pools(graph), budget)
        self._gillis, self._ends = Gillis(graph, budget, Options(memory_mb=FRONTIER_MB)), layer_ends(graph)

    def theirs(self, groups: Sequence[Group]) -> Best:
        """Return a plan's groups as a fork-join, with the memories that are cheapest within the time."""
        stages = [(self._ends[group.start], self._ends[group.stop], group.grid, group.here) for group in groups]

        def best(most_ms: float) -> Price | None:
            plan = self._gillis.cheapest(stages, most_ms / MS_PER_S)
            return Price(MS_PER_S * plan.seconds, plan.usd) if plan else None

        return best

    def ours(self, most_ms: float) -> Price | None:
        chain = self._network.search.best(replace(COST, most_seconds=most_ms / MS_PER_S))
        return Price(MS_PER_S * chain.seconds, chain.usd) if chain else None


def measure(
    facts: AwsFacts,
    answers: Sequence[Answer],
    graphs: Mapping[str, Graph],
    slos: Sequence[float],
    progress: Progress = lambda _: None,
) -> tuple[Compared, Compared]:
    there, here = Compared(), Compared()
    for name, of_network in groupby(answers, key=lambda answer: answer.network):
        ours = Ours(name, graphs[name], facts)
        for program, those in groupby(of_network, key=lambda answer: answer.program):
            progress(f"{name}: {program}'s plans")
            costs = PublishedCosts(graphs[name], PROGRAMS[program])
            _compare_all([*those], costs, ((there, Theirs(costs)), (here, ours)), slos)
    return there, here


def _compare_all(
    answers: Sequence[Answer],
    costs: PublishedCosts,
    models: Sequence[tuple[Compared, Theirs | Ours]],
    slos: Sequence[float],
) -> None:
    for (policy, slo_s), same in groupby(answers, key=lambda answer: (answer.question.policy, answer.question.slo_s)):
        plans = [answer.plan.groups(costs) if answer.plan else () for answer in same]
        for compared, model in models:
            if policy == FASTEST.policy:
                said = answers[0].network, answers[0].program, written(plans[0])
                compared.fastest.append(compare(*said, model.theirs(plans[0]), model.ours, slos))
            else:
                most_ms = MS_PER_S * slo_s
                theirs = tuple(model.theirs(groups)(most_ms) if groups else None for groups in plans)
                compared.slo_aware.append(SloAware(answers[0].network, slo_s, policy, theirs, model.ours(most_ms)))


def written(groups: Sequence[Group]) -> str:
    """Write groups of layers with their grids, `+` where the master has a part; `here` for what it has alone."""
    return ", ".join(
        f"{group.start} to {group.stop - 1}: " + (f"{group.grid}{'+' * group.here}" if group.workers else "here")
        for group in groups
    )
