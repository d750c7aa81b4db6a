"""Gillis's planner, MPHB's and ours, each plan under their cost model and under ours.

Their cost model knows a master with workers and no store, so ours there is the exact search over the plans that theirs
may choose (published_costs.py): nothing that their dynamic programmes, or their learnt policies, find is cheaper. Under
our cost model a plan of theirs is a fork-join with the memories that are cheapest within the time, and ours is the
cheapest chain of stages. Packages are container images: no zip holds a Wide-ResNet's last block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.cli.shared.tables import Results, Table, publish
from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import UsageError
from serfer.core.plan import PackageLimit
from serfer.core.units import MS_PER_S
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.settings import load_settings
from serfer.splitter.network.graph import Graph
from serfer.splitter.planning.search import COST
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer_bench.baselines.gillis import Gillis, Options
from serfer_bench.baselines.published_costs import GILLIS, MPHB, Group, Prices, PublishedCosts
from serfer_bench.core.options import MarkdownOption
from serfer_bench.planner.peers.networks import NETWORKS, SIZE, read
from serfer_bench.planner.peers.programs import TheirPlan, program_of, run_program
from serfer_bench.planner.peers.recorded_plans import RECORDED
from serfer_bench.planner.peers.templates import HEAD, rows
from serfer_bench.planner.planner import FRONTIER_MB, OURS_MB, Network

SLOS_S: Final = (0.6, 0.8, 1.5, 2.0)
"""MPHB's objectives (`provisioning/conf/config2.json`)."""
PROGRAMS: Final = (GILLIS, MPHB)
_SAME: Final = 1e-9
_MILLION: Final = 1_000_000
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Price:
    """A plan's predicted milliseconds and dollars a query."""

    ms: float
    usd: float


Best = Callable[[float], Price | None]
"""The cheapest plan within so many milliseconds."""


@dataclass(frozen=True)
class Pair:
    """The cheapest within a time: a plan of theirs and one of ours, None for none."""

    most_ms: float
    theirs: Price | None
    ours: Price | None

    @property
    def loses(self) -> bool:
        """Whether a plan of theirs is cheaper than all of ours."""
        return self.theirs is not None and (self.ours is None or self.ours.usd > self.theirs.usd * (1 + _SAME))

    @property
    def cell(self) -> str:
        """Ours, and theirs in parentheses, in dollars a million."""
        return _usd(self.ours) + (f" ({_usd(self.theirs)})" if self.theirs else "")


@dataclass(frozen=True)
class Comparison:
    """A plan of a program for a network under a cost model: `plan` in words, the same time, and within each objective.

    `as_theirs` is None where that cost model cannot price the plan.
    """

    network: str
    program: str
    plan: str
    as_theirs: Pair | None
    at: tuple[Pair, ...]

    @property
    def losses(self) -> int:
        """In how many of the comparisons ours is dearer."""
        return sum(pair.loses for pair in (self.as_theirs, *self.at) if pair)

    @property
    def cells(self) -> list[str]:
        """The row of the table."""
        same = self.as_theirs
        numbers = ["-", "-", "-", "-"]
        if same and same.theirs:
            saving = f"{1 - same.ours.usd / same.theirs.usd:.1%}" if same.ours else "-"
            numbers = [f"{same.theirs.ms:.0f}", _usd(same.theirs), _usd(same.ours), saving]
        return [self.network, self.program, self.plan, *numbers, *(pair.cell for pair in self.at)]


def _usd(price: Price | None) -> str:
    return f"{_MILLION * price.usd:.2f}" if price else "none"


def compare(network: str, program: str, plan: str, theirs: Best, ours: Best, slos: Sequence[float]) -> Comparison:
    """Compare the cheapest plans in the time that theirs takes at its cheapest, and within `slos`, in seconds."""
    cheapest = theirs(float("inf"))
    same = Pair(cheapest.ms, cheapest, ours(cheapest.ms * (1 + _SAME))) if cheapest else None
    at = (Pair(MS_PER_S * slo, theirs(MS_PER_S * slo), ours(MS_PER_S * slo)) for slo in slos)
    return Comparison(network, program, plan, same, tuple(at))


def under_theirs(costs: PublishedCosts, groups: Sequence[Group]) -> tuple[Best, Best]:
    """Return their plan, and the cheapest of all plans, under their cost model."""
    plan = costs.plan(groups)

    def theirs(most_ms: float) -> Price | None:
        return Price(plan.ms, plan.usd) if plan.ms <= most_ms else None

    def ours(most_ms: float) -> Price | None:
        best = costs.best(most_ms)
        return Price(best.ms, best.usd) if best else None

    return theirs, ours


def under_ours(network: Network, gillis: Gillis, ends: Sequence[int], groups: Sequence[Group]) -> tuple[Best, Best]:
    """Return their plan's groups as a fork-join, and the cheapest of our plans, under our cost model."""
    stages = [(ends[group.start], ends[group.stop], group.grid, group.here) for group in groups]

    def theirs(most_ms: float) -> Price | None:
        plan = gillis.cheapest(stages, most_ms / MS_PER_S)
        return Price(MS_PER_S * plan.seconds, plan.usd) if plan else None

    def ours(most_ms: float) -> Price | None:
        chain = network.search.best(replace(COST, most_seconds=most_ms / MS_PER_S))
        return Price(MS_PER_S * chain.seconds, chain.usd) if chain else None

    return theirs, ours


def measure(
    facts: AwsFacts,
    plans: Mapping[str, Mapping[Prices, TheirPlan]],
    graphs: Mapping[str, Graph],
    slos: Sequence[float],
    progress: Progress = lambda _: None,
) -> tuple[list[Comparison], list[Comparison]]:
    """Compare plans of theirs for each network with ours, under their cost models and under ours."""
    limit = PackageLimit(facts.functions.image_limit, DEPENDENCY_ALLOWANCE)
    there, here = list[Comparison](), list[Comparison]()
    for name, graph in graphs.items():
        budget = Budget(limit, facts, OURS_MB)
        network = Network(name, SIZE, with_tile_pools(graph), budget)
        gillis = Gillis(graph, budget, Options(memory_mb=FRONTIER_MB))
        for prices, plan in plans[name].items():
            progress(f"{name}: {prices.name}'s plan")
            costs = PublishedCosts(graph, prices)
            groups = plan.groups(costs)
            said = name, prices.name, written(groups)
            there.append(compare(*said, *under_theirs(costs, groups), slos))
            here.append(compare(*said, *under_ours(network, gillis, costs.ends, groups), slos))
    return there, here


def written(groups: Sequence[Group]) -> str:
    """Write groups of layers with their grids, `+` where the master has a part; `here` for what it has alone."""
    return ", ".join(
        f"{group.start} to {group.stop - 1}: " + (f"{group.grid}{'+' * group.here}" if group.workers else "here")
        for group in groups
    )


def results(there: Sequence[Comparison], here: Sequence[Comparison], slos: Sequence[float]) -> Results:
    """Return a table for each cost model, one of MPHB's templates, and how often ours is dearer."""
    head = ["network", "planner", "its plan, by layers", "its ms", "its $/M", "ours in its ms: $/M", "cheaper"]
    head += [f"in {slo:g} s: ours (its) $/M" for slo in slos]
    notes = []
    for found, model in ((there, "their"), (here, "our")):
        pairs = sum(pair.theirs is not None for row in found for pair in (row.as_theirs, *row.at) if pair)
        losses = sum(row.losses for row in found)
        notes.append(f"under {model} cost model ours is dearer in {losses} of {pairs} comparisons")
    records = [{"model": model, **asdict(row)} for found, model in ((there, "theirs"), (here, "ours")) for row in found]
    tables = [Table(head, [row.cells for row in found]) for found in (there, here)]
    if templates := [*rows(list(dict.fromkeys(row.network for row in there)))]:
        tables.append(Table(HEAD, templates))
    return Results(records, tables, notes)


def plans_of(
    graphs: Mapping[str, Graph], checkouts: Mapping[Prices, Path], seconds: float, progress: Progress
) -> Iterator[tuple[str, dict[Prices, TheirPlan]]]:
    """Yield the plans for each network: by the program of a checkout where there is one, else as recorded."""
    for name, graph in graphs.items():
        found = dict[Prices, TheirPlan]()
        for prices in PROGRAMS:
            if prices in checkouts:
                progress(f"{name}: {prices.name}'s program")
                found[prices] = run_program(graph, checkouts[prices], seconds)
            elif plan := RECORDED[prices.name].get(name):
                found[prices] = plan
        yield name, found


def command(
    model: Annotated[
        list[str] | None, typer.Option(help=f"A network, of {', '.join(NETWORKS)}; may be repeated. All by default.")
    ] = None,
    checkout: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="A checkout of Gillis's or MPHB's program, which is run in a process of its own; may be repeated. "
            "Without it, its plans of 2026-11-28.",
        ),
    ] = None,
    slo: Annotated[
        list[float] | None,
        typer.Option(min=0.001, help="Seconds; may be repeated. By default MPHB's 0.6, 0.8, 1.5, 2."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long a program may plan a network at most.")] = 3600,
    as_markdown: MarkdownOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare plans of Gillis's own planner and of MPHB's with ours: dollars within a time, under both cost models."""
    by_name = {prices.name: prices for prices in PROGRAMS}
    checkouts = {by_name[program_of(path)]: path for path in checkout or ()}
    if len(checkouts) < len(checkout or ()):
        raise UsageError("--checkout is given twice for one program")
    slos = slo or SLOS_S
    with status_line() as progress:
        graphs = {}
        for name in model or NETWORKS:
            progress(f"reading {name}")
            graphs[name] = read(name)
        plans = dict(plans_of(graphs, checkouts, seconds, progress))
        there, here = measure(load_settings().facts(), plans, graphs, slos, progress)
    publish(results(there, here, slos), as_json=as_json, as_markdown=as_markdown)
