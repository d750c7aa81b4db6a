"""From which network and image size on splitting pays, and where it never does, by the cost model.

For each network and size one function with one vCPU and one large function, with all that Lambda gives, compete with
the best plans that split, without gangs and with them: whatever they cost, for the large function's dollars, and for
1.3 times as many. One function is priced even where its weights do not fit a package, as a container image would hold
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.costs.aws import AwsFacts
from serfer.settings import load_settings
from serfer.splitter.planning.search import LATENCY, Search
from serfer.splitter.planning.split_options import memory_sizes
from serfer.splitter.tiling import operators
from serfer_bench.core.options import MarkdownOption, StoreKindOption
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.study.planner import breakeven_here
from serfer_bench.study.planner.planner import Network, Point, Progress, point, priced, read_network

NETWORKS = (
    *("squeezenet", "mobilenet-v2", "efficientnet-b0", "alexnet", "resnet18"),
    *("resnet50", "densenet121", "inception-v3", "vgg16"),
)
SIZES = (224, 448, 672, 896, 1120)
SPLIT, DEARER, ONE = "split", "split, for more dollars", "one function"
_EVEN = 1.05  # what is faster by less is called even: no prediction is that exact
_MORE = 1.3  # times the large function's dollars
_GIGA = 1e9


@dataclass(frozen=True)
class Best:
    """The fastest plans of one kind: of all, for the large function's dollars, for 1.3 times as many; None for none."""

    fastest: Point
    at_cost: Point | None
    at_more: Point | None

    @classmethod
    def of(cls, search: Search, usd: float) -> Best:
        if search.fastest is None:
            raise AssertionError("a network's search finds a plan")
        at_cost, at_more = (search.best(replace(LATENCY, most_usd=most)) for most in (usd, _MORE * usd))
        return cls(point(search.fastest), point(at_cost) if at_cost else None, point(at_more) if at_more else None)

    def speedups(self, large: Point) -> tuple[float, float, float]:
        """Return the speedups of the three plans over the large function; 0 where there is none."""
        fastest, at_cost, at_more = (large.ms / one.ms if one else 0.0 for one in vars(self).values())
        return fastest, at_cost, at_more

    def verdict(self, large: Point) -> str:
        fastest, at_cost, _ = self.speedups(large)
        if at_cost > _EVEN:
            return SPLIT
        if fastest > _EVEN:
            return DEARER
        return "even" if fastest > 1 else ONE

    def as_dict(self, large: Point) -> dict[str, object]:
        plans = {"fastest": self.fastest, "at_cost": self.at_cost, "at_1.3_times_the_cost": self.at_more}
        names = "speedup", "speedup_at_cost", "speedup_at_1.3_times_the_cost"
        named = {key: each and vars(each) for key, each in plans.items()}
        return {**named, **dict(zip(names, self.speedups(large), strict=True))}


@dataclass(frozen=True)
class Race:
    """A network at one size: one function with one vCPU, a large one, and plans that split, without and with gangs."""

    model: str
    size: int
    gmacs: float
    small: Point | None
    large: Point
    staged: Best
    gangs: Best

    @property
    def verdict(self) -> str:
        return self.gangs.verdict(self.large)

    def as_dict(self) -> dict[str, object]:
        whole = {"one_vcpu": self.small and vars(self.small), "large": vars(self.large)}
        split = {"without_gangs": self.staged.as_dict(self.large), "with_gangs": self.gangs.as_dict(self.large)}
        verdicts = {"verdict_without_gangs": self.staged.verdict(self.large), "verdict": self.verdict}
        return {"model": self.model, "size": self.size, "gmacs": self.gmacs, **whole, **split, **verdicts}


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
    races = []
    for name in networks:
        for size in sizes:
            progress(f"reading and planning {name} at {size} px")
            network = read_network(name, size, facts, store, memory_sizes(facts.functions))
            races.append(race(network))
    return BreakEven(tuple(races), network.profiled_on)


def race(network: Network) -> Race:
    small, large = network.unsplit
    graph = network.graph
    work = sum(operators.macs(graph, node, graph.shape(node.output).whole.area) for node in graph.nodes)
    staged, gangs = (Best.of(search, large.usd) for search in (network.search, network.search_with_gangs))
    return Race(network.name, network.size, work / _GIGA, small, large, staged, gangs)


_HEAD = (
    *("network", "px", "GMACs", "1 vCPU ms", "$/M", "large ms", "$/M"),
    *("stages, fastest ms", "$/M", "large's $: faster", "1.3 x $: faster"),
    *("gangs, fastest ms", "$/M", "large's $: faster", "1.3 x $: faster", "plan for large's $", "wins"),
)


def _row(one: Race) -> tuple[str, ...]:
    alone = [text for each in (one.small, one.large) for text in priced(each)]
    alone[2] += "" if one.large.fits else "*"
    split = [
        text
        for best in (one.staged, one.gangs)
        for text in (*priced(best.fastest), *map(_times, best.speedups(one.large)[1:]))
    ]
    at_cost = one.gangs.at_cost.what if one.gangs.at_cost else "none"
    return (one.model, str(one.size), f"{one.gmacs:.1f}", *alone, *split, at_cost, one.verdict)


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio else "-"


def summary(result: BreakEven) -> list[str]:
    lines = []
    for name in dict.fromkeys(one.model for one in result.races):
        races = [one for one in result.races if one.model == name]
        for kind, verdicts in (
            ("without gangs", [one.staged.verdict(one.large) for one in races]),
            ("with gangs", [one.verdict for one in races]),
        ):
            won = dict(zip((one.size for one in races), verdicts, strict=True))
            same, more = (_first(won, winning) for winning in ((SPLIT,), (SPLIT, DEARER)))
            lines.append(f"{name}, {kind}: {same} for the large function's dollars; {more} whatever it costs")
    return [
        *lines,
        "1 vCPU: none where so little memory does not hold the network",
        "* its weights do not fit a 250 MB package: one function would have to be a container image",
        f"modelled, warm, for account=default, nothing measured; profiles: {result.profiled_on}",
    ]


def _first(verdicts: Mapping[int, str], winning: Sequence[str]) -> str:
    won = [size for size, verdict in verdicts.items() if verdict in winning]
    if not won:
        return f"never up to {max(verdicts)} px"
    lost = [size for size in verdicts if size > min(won) and size not in won]
    return f"from {min(won)} px on" + (f" (not at {', '.join(map(str, lost))})" if lost else "")


def results(result: BreakEven) -> Results:
    records = ({**one.as_dict(), "profiles": result.profiled_on} for one in result.races)
    return Results(records, [Table(_HEAD, [_row(one) for one in result.races])], summary(result))


def command(
    model: Annotated[
        list[str] | None, typer.Option(help="A model of the zoo; may be repeated. By default nine of them.")
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
