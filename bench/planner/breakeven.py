"""From which network and image size on splitting pays, and where it never does, by the cost model.

For each network and size three plans compete: one function with one vCPU, one large function with all that Lambda
gives, and the best plan that splits; the last once for latency whatever it costs, and once for the large function's
dollars. One function is priced even where its weights do not fit a package, as a container image would hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from bench.core.options import MarkdownOption, StoreKindOption
from bench.core.results import Results, Table, publish
from bench.planner import breakeven_here
from bench.planner.planner import Network, Point, Progress, point, priced, read_network
from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.costs.aws import AwsFacts
from serfer.settings import load_settings
from splitter.planning.options import memory_sizes
from splitter.planning.search import LATENCY
from splitter.tiling import operators

NETWORKS = ("squeezenet", "mobilenet-v2", "alexnet", "resnet18", "resnet50", "densenet121", "inception-v3", "vgg16")
SIZES = (224, 448, 672, 896, 1120)
SPLIT, DEARER, ONE = "split", "split, for more dollars", "one function"
_EVEN = 1.05  # what is faster by less is called even: no prediction is that exact
_GIGA = 1e9


@dataclass(frozen=True)
class Race:
    """A network at one size; `at_cost` is the fastest plan for the large function's dollars, None for none."""

    model: str
    size: int
    gmacs: float
    small: Point | None
    large: Point
    fastest: Point
    at_cost: Point | None

    @property
    def speedup(self) -> float:
        """The speedup of the fastest plan over the large function."""
        return self.large.ms / self.fastest.ms

    @property
    def speedup_at_cost(self) -> float:
        """The speedup of the fastest plan for the large function's dollars; 0 where there is none."""
        return self.large.ms / self.at_cost.ms if self.at_cost else 0.0

    @property
    def verdict(self) -> str:
        """The winner."""
        if self.speedup_at_cost > _EVEN:
            return SPLIT
        if self.speedup > _EVEN:
            return DEARER
        return "even" if self.speedup > 1 else ONE

    def as_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        points = {"one_vcpu": self.small, "large": self.large, "fastest_split": self.fastest, "at_cost": self.at_cost}
        plans = {key: each and vars(each) for key, each in points.items()}
        ratios = {"speedup": self.speedup, "speedup_at_cost": self.speedup_at_cost, "verdict": self.verdict}
        return {"model": self.model, "size": self.size, "gmacs": self.gmacs, **plans, **ratios}


@dataclass(frozen=True)
class BreakEven:
    """All races, and on what machine the profiles were filled that they are modelled with."""

    races: tuple[Race, ...]
    profiled_on: str


def measure(
    facts: AwsFacts,
    networks: Sequence[str] = NETWORKS,
    sizes: Sequence[int] = SIZES,
    store: str = "redis",
    progress: Progress = lambda _: None,
) -> BreakEven:
    """Race the plans of every network at every size; raises ModelError for an unknown network."""
    races = []
    for name in networks:
        for size in sizes:
            progress(f"reading and planning {name} at {size} px")
            network = read_network(name, size, facts, store, memory_sizes(facts.functions))
            races.append(race(network))
    return BreakEven(tuple(races), network.profiled_on)


def race(network: Network) -> Race:
    """Find the fastest plans of a network, whatever they cost and for the large function's dollars."""
    small, large = network.unsplit
    search, graph = network.search, network.graph
    fastest, at_cost = search.fastest, search.best(replace(LATENCY, most_usd=large.usd))
    if fastest is None:
        raise AssertionError("a network's search finds a plan")
    work = sum(operators.macs(graph, node, graph.shape(node.output).whole.area) for node in graph.nodes)
    best = point(at_cost) if at_cost else None
    return Race(network.name, network.size, work / _GIGA, small, large, point(fastest), best)


_HEAD = (
    *("network", "px", "GMACs", "1 vCPU ms", "$/M", "large ms", "$/M", "fastest ms", "$/M", "faster"),
    *("for large's $: ms", "faster", "plan", "wins"),
)


def rows(result: BreakEven) -> list[tuple[str, ...]]:
    """Return the table's rows."""
    return [_row(one) for one in result.races]


def _row(one: Race) -> tuple[str, ...]:
    prices = [text for each in (one.small, one.large, one.fastest) for text in priced(each)]
    prices[2] += "" if one.large.fits else "*"
    at_cost = (f"{one.at_cost.ms:.0f}", f"{one.speedup_at_cost:.2f}x", one.at_cost.what) if one.at_cost else None
    return (
        *(one.model, str(one.size), f"{one.gmacs:.1f}", *prices, f"{one.speedup:.2f}x"),
        *(at_cost or ("none", "-", "-")),
        one.verdict,
    )


def summary(result: BreakEven) -> list[str]:
    """Return for each network from which size on splitting wins, if it does."""
    lines = []
    for name in dict.fromkeys(one.model for one in result.races):
        races = [one for one in result.races if one.model == name]
        same, more = (_first(races, verdicts) for verdicts in ((SPLIT,), (SPLIT, DEARER)))
        lines.append(f"{name}: {same} for the large function's dollars; {more} whatever it costs")
    return [
        *lines,
        "1 vCPU: none where so little memory does not hold the network",
        "* its weights do not fit a 250 MB package: one function would have to be a container image",
        f"modelled, warm, nothing measured; profiles: {result.profiled_on}",
    ]


def _first(races: Sequence[Race], verdicts: Sequence[str]) -> str:
    sizes = [one.size for one in races]
    won = [one.size for one in races if one.verdict in verdicts]
    if not won:
        return f"never up to {max(sizes)} px"
    lost = [size for size in sizes if size > min(won) and size not in won]
    return f"from {min(won)} px on" + (f" (not at {', '.join(map(str, lost))})" if lost else "")


def results(result: BreakEven) -> Results:
    """Return all races, and from which size on splitting wins."""
    records = ({**one.as_dict(), "profiles": result.profiled_on} for one in result.races)
    return Results(records, [Table(_HEAD, rows(result))], summary(result))


def command(
    model: Annotated[
        list[str] | None, typer.Option(help="A model of the zoo; may be repeated. By default eight of them.")
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(min=32, help="Height and width; may be repeated. By default 224 to 1120.")
    ] = None,
    store: StoreKindOption = "redis",
    here: Annotated[
        bool, typer.Option("--here", help="Measure on this machine: one function against a split over two.")
    ] = False,
    as_markdown: MarkdownOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict from which network and which image on splitting beats one large function, and where it never does."""
    settings = load_settings()
    with status_line() as progress:
        if here:
            networks, sizes = model or breakeven_here.NETWORKS, size or breakeven_here.SIZES
            measured = breakeven_here.results(breakeven_here.measure(settings, networks, sizes, progress=progress))
        else:
            measured = results(measure(settings.facts(), model or NETWORKS, size or SIZES, store, progress))
    publish(measured, as_json=as_json, as_markdown=as_markdown)
