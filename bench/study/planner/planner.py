"""Our plans against Gillis's, and against one function: the same prices, tiles and limits for all.

Gillis's planner minimises latency for the memories that it is given, so it has as many answers as there are ways to
give them. Compared are its fastest plan of all, its plan with one vCPU in every function, and every plan on the
frontier of what it finds with one memory for the master and one for the workers. Against each, ours is the fastest plan
for the same dollars, and the cheapest within the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, product
from typing import Annotated

import numpy as np
import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.costs.aws import AwsFacts, shipped_aws
from serfer.core.errors import ModelError
from serfer.core.plan import PackageLimit
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.settings import load_settings
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.source import load
from serfer.splitter.network.zoo import find
from serfer.splitter.planning.explanation import unsplit_alternatives
from serfer.splitter.planning.limits import WeightStorage
from serfer.splitter.planning.planner import Choice, choices_of, prepare, steps_of
from serfer.splitter.planning.search import COST, LATENCY, Chain, Search
from serfer.splitter.planning.split_options import Budget, exchanges, memory_sizes
from serfer.splitter.tiling.cuts import cut_points
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer.splitter.tiling.grids import GridChoice
from serfer_bench.core.options import MarkdownOption, StoreKindOption
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.study.baselines.gillis import Gillis, GillisPlan, Options

NETWORKS = ("alexnet", "vgg16", "resnet50", "densenet121", "inception-v3")
LARGE = 896
FASTEST, ONE_VCPU, FRONTIER = "fastest", "one vCPU", "frontier"
ONE_VCPU_MB = 1800
"""The smallest of Gillis's memory sizes that has a whole vCPU."""
FRONTIER_MB = (600, 1200, 1800, 3600, 5400, 7100, 10_240)
OURS_MB = tuple(sorted({*memory_sizes(shipped_aws().functions), *FRONTIER_MB}))
"""Memory sizes of our functions: the default, and the sizes on whose plans of Gillis's both planners are compared."""
SPEEDUP, SAVING = 1.3, 0.3
"""Bounds of clearly better: so many times faster for the same dollars, such a share cheaper in the same time."""
_SAME = 1e-9
_MS_PER_S = 1000
_MILLION = 1_000_000
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Network:
    """A network at one size of image, in fp32, with what its functions may be."""

    name: str
    size: int
    graph: Graph
    budget: Budget

    @cached_property
    def search(self) -> Search:
        """Every plan of ours without gangs; columns of a layer that is too large for a function may go to several."""
        return self._search("never")

    @cached_property
    def search_with_gangs(self) -> Search:
        return self._search("auto" if exchanges(self.budget.store) else "never")

    def _search(self, gang: str) -> Search:
        cuts = cut_points(self.graph, self.budget.limit.room)
        search = prepare(self.graph, cuts, GridChoice(), None, self.budget, WeightStorage(spread=True), gang=gang)
        if search.fastest is None:
            raise ModelError(f"no plan of {self.name} at {self.size} px fits")
        return search

    @property
    def profiled_on(self) -> str:
        profiles = self.budget.profiles
        return f"{profiles.machine}; {profiles.runtime}; {profiles.date}"

    @cached_property
    def unsplit(self) -> tuple[Point | None, Point]:
        """One function with one vCPU (None where the memory is too small), and one with all that Lambda gives.

        They are priced whether the weights fit a package or not.
        """
        points = [
            Point(one.ms, one.usd, one.stages, one.fits)
            for one in unsplit_alternatives(self.graph, self.budget, WeightStorage())
        ]
        if not points:
            raise ModelError(f"{self.name} at {self.size} px takes more memory than a function can have")
        return points[0] if len(points) > 1 else None, points[-1]


def read_network(
    name: str, size: int, facts: AwsFacts, store: str = "redis", memory_mb: tuple[int, ...] = OURS_MB
) -> Network:
    source, _ = load(name, np.zeros((1, 3, size, size), dtype=np.float32))
    graph = with_tile_pools(from_onnx(source.onnx, size, size))
    limit = PackageLimit(facts.functions.package_limit, DEPENDENCY_ALLOWANCE)
    return Network(source.name, size, graph, Budget(limit, facts, memory_mb, store))


def scaled(facts: AwsFacts, name: str, times: float) -> AwsFacts:
    """Return facts with a constant of Lambda, as `package_rate`, so many times as large."""
    changed = {name: times * getattr(facts.functions, name)}
    return replace(facts, functions=replace(facts.functions, **changed))


@dataclass(frozen=True)
class Point:
    """A plan in words, its predicted milliseconds and dollars a query, and whether it needs a store."""

    ms: float
    usd: float
    what: str
    fits: bool = True
    stored: bool = False


@dataclass(frozen=True)
class Versus:
    """One of Gillis's plans against ours: the fastest for its dollars, the cheapest within its time, None for none."""

    which: str
    gillis: Point
    faster: Point | None
    cheaper: Point | None

    @property
    def speedup(self) -> float:
        """Our speedup for the same dollars; 0 where ours has no plan for them."""
        return self.gillis.ms / self.faster.ms if self.faster else 0.0

    @property
    def saving(self) -> float:
        """The share of dollars that ours saves in the same time; minus infinity where ours has no plan that fast."""
        return 1 - self.cheaper.usd / self.gillis.usd if self.cheaper else float("-inf")

    @property
    def loses(self) -> bool:
        """Return whether ours is slower for the same dollars or dearer in the same time."""
        return self.speedup < 1 - _SAME or self.saving < -_SAME

    @property
    def wins(self) -> bool:
        """Return whether ours is clearly better in one, and not worse in the other."""
        return (self.speedup >= SPEEDUP or self.saving >= SAVING) and not self.loses

    def as_dict(self) -> dict[str, object]:
        ratios = {"speedup": self.speedup if self.faster else None, "saving": self.saving if self.cheaper else None}
        plans = {"gillis": self.gillis, "at_equal_cost": self.faster, "at_equal_latency": self.cheaper}
        return {"which": self.which, **{key: plan and vars(plan) for key, plan in plans.items()}, **ratios}


@dataclass(frozen=True)
class Comparison:
    """A network against Gillis's plans and against one function."""

    model: str
    size: int
    unsplit: tuple[Point | None, Point]
    versus: tuple[Versus, ...]

    def named(self, which: str) -> list[Versus]:
        return [one for one in self.versus if one.which == which]

    @property
    def closest(self) -> list[Versus]:
        frontier = self.named(FRONTIER)
        if not frontier:
            return []
        slowest = replace(min(frontier, key=lambda one: one.speedup), which="closest in ms")
        dearest = replace(min(frontier, key=lambda one: one.saving), which="closest in $")
        return [slowest, dearest]

    def as_dict(self) -> dict[str, object]:
        return {
            "model": self.model,
            "size": self.size,
            "one_vcpu_function": self.unsplit[0] and vars(self.unsplit[0]),
            "large_function": vars(self.unsplit[1]),
            "versus": [one.as_dict() for one in self.versus],
        }


@dataclass(frozen=True)
class Comparisons:
    """All comparisons, and on what machine the profiles were filled that all of them are modelled with."""

    cases: tuple[Comparison, ...]
    profiled_on: str
    store_usd_per_hour: float


def measure(
    facts: AwsFacts,
    networks: Sequence[str] = NETWORKS,
    sizes: Sequence[int] = (),
    store: str = "redis",
    options: Options | None = None,
    progress: Progress = lambda _: None,
) -> Comparisons:
    cases = []
    for name in networks:
        for size in sizes or (find(name).size, LARGE):
            progress(f"reading {name} at {size} px")
            network = read_network(name, size, facts, store)
            progress(f"planning {name} at {size} px")
            cases.append(compare(network, options))
    return Comparisons(tuple(cases), network.profiled_on, network.budget.platform.store.price_hour)


def compare(network: Network, options: Options | None = None) -> Comparison:
    gillis = Gillis(network.graph, network.budget, options)
    versus = tuple(_versus(network, which, plan) for which, plan in _plans(gillis, options or Options()))
    return Comparison(network.name, network.size, network.unsplit, versus)


def _plans(gillis: Gillis, options: Options) -> Iterator[tuple[str, GillisPlan]]:
    memory = options.memory_mb
    named = [(FASTEST, gillis.best())]
    if ONE_VCPU_MB in memory:
        named.append((ONE_VCPU, gillis.best((ONE_VCPU_MB,), (ONE_VCPU_MB,))))
    sizes = [size for size in FRONTIER_MB if size in memory]
    every = [gillis.best((master,), (worker,)) for master, worker in product(sizes, sizes)]
    prices = {(plan.seconds, plan.usd): plan for plan in every if plan}
    frontier = [plan for price, plan in sorted(prices.items()) if not any(_beats(other, price) for other in prices)]
    yield from ((which, plan) for which, plan in named if plan)
    yield from ((FRONTIER, plan) for plan in frontier)


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[0] and one[1] <= other[1] and one != other


def _versus(network: Network, which: str, plan: GillisPlan) -> Versus:
    search = network.search
    faster = search.best(replace(LATENCY, most_usd=plan.usd))
    cheaper = search.best(replace(COST, most_seconds=plan.seconds))
    theirs = Point(plan.seconds * _MS_PER_S, plan.usd, str(plan))
    return Versus(which, theirs, point(faster) if faster else None, point(cheaper) if cheaper else None)


def point(chain: Chain) -> Point:
    stored = any(not choice.inline for choice in choices_of(chain)[:-1])
    return Point(chain.seconds * _MS_PER_S, chain.usd, written([*steps_of(chain)]), stored=stored)


def written(steps: Sequence[Sequence[Choice]]) -> str:
    """Write stages as grid@memory, those that are alike together, and gangs with the number of their stages."""
    gangs = (f"gang of {len(step)} on " if len(step) > 1 else "" for step in steps)
    alike = groupby(f"{gang}{step[0].grid}@{step[0].memory_mb}" for gang, step in zip(gangs, steps, strict=True))
    return ", ".join(f"{count} x {what}" if (count := len(list(group))) > 1 else what for what, group in alike)


_HEAD = (
    *("network", "px", "Gillis's plan", "its ms", "its $/M", "ours for its $: ms", "faster", "ours in its ms: $/M"),
    *("cheaper", "verdict"),
)


def rows(result: Comparisons) -> list[tuple[str, ...]]:
    return [
        (case.model, str(case.size), one.which, *_numbers(one))
        for case in result.cases
        for one in [*case.named(FASTEST), *case.named(ONE_VCPU), *case.closest]
    ]


def _numbers(one: Versus) -> tuple[str, ...]:
    faster = (f"{one.faster.ms:.0f}", f"{one.speedup:.2f}x") if one.faster else ("none", "-")
    cheaper = (f"{one.cheaper.usd * _MILLION:.2f}", f"{one.saving:.0%}") if one.cheaper else ("none", "-")
    verdict = "LOSS" if one.loses else "clear" if one.wins else "better"
    return f"{one.gillis.ms:.0f}", f"{one.gillis.usd * _MILLION:.2f}", *faster, *cheaper, verdict


_HEAD_UNSPLIT = (
    *("network", "px", "one function, 1 vCPU: ms", "$/M", "large: ms", "$/M", "fits 250 MB"),
    *("ours for the $ of Gillis's fastest: ms", "$/M", "plan"),
)


def unsplit_rows(result: Comparisons) -> list[tuple[str, ...]]:
    body = []
    for case in result.cases:
        prices = [text for each in case.unsplit for text in priced(each)]
        best = next((one.faster for one in case.named(FASTEST)), None)
        ours = (f"{best.ms:.0f}", f"{best.usd * _MILLION:.2f}", best.what) if best else ("none", "-", "-")
        body.append((case.model, str(case.size), *prices, "yes" if case.unsplit[1].fits else "no", *ours))
    return body


def priced(one: Point | None) -> tuple[str, str]:
    return (f"{one.ms:.0f}", f"{one.usd * _MILLION:.2f}") if one else ("none", "-")


def summary(result: Comparisons) -> list[str]:
    lines = []
    for which in (FASTEST, ONE_VCPU):
        for large in (False, True):
            cases = [case for case in result.cases if (case.size == LARGE) == large]
            clear = [case.model for case in cases if any(one.wins for one in case.named(which))]
            size = f"{LARGE} px" if large else "their own size"
            if cases:
                names = f": {', '.join(clear)}" if clear else ""
                lines.append(f"clearly better than Gillis's {which} at {size} on {len(clear)} of {len(cases)}{names}")
    every = {(case.model, case.size, str(one.gillis)): (case, one) for case in result.cases for one in case.versus}
    losses = [pair for pair in every.values() if pair[1].loses]
    lines.append(f"losses: {len(losses)} of {len(every)} plans of Gillis's, its whole frontier included")
    lines += [_loss(case, one) for case, one in losses]
    return [*lines, _store(result), f"modelled, warm, for account=default; profiles: {result.profiled_on}"]


def _loss(case: Comparison, one: Versus) -> str:
    slower = f"{1 / one.speedup - 1:+.1%} ms" if one.faster else "no plan for its dollars"
    dearer = f"{-one.saving:+.1%} dollars" if one.cheaper else "no plan within its time"
    return f"  {case.model} at {case.size} px against {one.gillis.what}: {slower}; {dearer}"


def _store(result: Comparisons) -> str:
    """Return from how many queries an hour on the store's node is paid for by what the plans that need it save."""
    saved = [
        one.gillis.usd - one.cheaper.usd
        for case in result.cases
        for one in case.named(ONE_VCPU)
        if one.cheaper and one.cheaper.stored and one.cheaper.usd < one.gillis.usd
    ]
    hour = result.store_usd_per_hour
    if not saved or not hour:
        return "the driver's machine is in no plan's price"
    many = sorted(hour / dollars for dollars in saved)
    return (
        f"the driver's machine and the store's node (${hour:g} an hour) are in no plan's price: against Gillis's "
        f"{ONE_VCPU} plans the node is paid for from {many[0]:,.0f} to {many[-1]:,.0f} queries an hour on"
    )


def results(comparisons: Comparisons) -> Results:
    return Results(
        ({**case.as_dict(), "profiles": comparisons.profiled_on} for case in comparisons.cases),
        [Table(_HEAD, rows(comparisons)), Table(_HEAD_UNSPLIT, unsplit_rows(comparisons))],
        summary(comparisons),
    )


def command(
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model of the zoo; may be repeated. By default five of different kinds."),
    ] = None,
    size: Annotated[
        list[int] | None,
        typer.Option(min=32, help="Height and width; may be repeated. By default the model's and 896."),
    ] = None,
    store: StoreKindOption = "redis",
    codec_mb: Annotated[float, typer.Option(min=1, help="MB/s of Gillis's codec, at each end.")] = 25,
    as_markdown: MarkdownOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare our plans with Gillis's planner and with one function, all at the same predicted prices."""
    options = Options(codec_rate=codec_mb * 1e6)
    with status_line() as progress:
        comparisons = measure(load_settings().facts(), model or NETWORKS, size or (), store, options, progress)
    publish(results(comparisons), as_json=as_json, as_markdown=as_markdown)
