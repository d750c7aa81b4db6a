"""The cold plan of a network: whether `split` writes one, which, and what it says of it.

Candidates are all chains of stages between the planner's cuts, on its grids and on columns of every number, with at
most so many environments, whose weights have the places and the precision of the plan itself; each group of columns
is a function of its own, so that an environment has its share of the weights and no more. Gangs are none of them: each
member has the weights of all their stages. The earliest of each number of environments compete, and of those that
answer at most SLACK later than the earliest of all, the cheapest is taken (search.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from serfer.core.costs.cold_starts import cold_seconds, critical_path
from serfer.core.costs.cost_model import Platform, ready_seconds, starting_usd
from serfer.core.errors import ModelError
from serfer.core.geometry import Grid
from serfer.core.plan import ZIP
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.source import Progress
from serfer.splitter.planning.cold.search import ColdChain, ColdSearch
from serfer.splitter.planning.explanation import alternative, describe
from serfer.splitter.planning.limits import WeightStorage, column_bytes
from serfer.splitter.planning.planner import Choice, Decision, choices_of, prepare
from serfer.splitter.planning.split_options import Budget, SplitOptions
from serfer.splitter.tiling.cuts import cut_points, cuts_at, weight_bytes
from serfer.splitter.tiling.grids import AUTO, GridChoice

SLACK = 0.05
"""A cold plan may answer this share later than the earliest one, for the sake of dollars."""
EARLIER = 0.2
"""With cold_plan=auto there is one where its first answer is predicted to come at least this share earlier."""
_MUCH = 1 / 3
"""A plan without a cold plan names the option where the first answer would come at least this share earlier."""
_MUCH_S = 1.0  # and at least so many seconds
_MILLION = 1_000_000


@dataclass(frozen=True)
class ColdOffer:
    """The cold plan to write, or None, and a sentence for the paragraph of the plan itself, which may be empty."""

    decision: Decision | None
    sentence: str


@dataclass(frozen=True)
class ColdFigures:
    """What a query takes on a plan where nothing is warm, and what warming all its environments costs."""

    seconds: float
    usd: float
    warm_up_usd: float


def cold_offer(
    decision: Decision, options: SplitOptions, budget: Budget, progress: Progress, most: int | None = None
) -> ColdOffer:
    """Choose the cold plan beside a plan, of at most so many environments, by default those that the plan leaves.

    Raises ModelError where one must be written and none is possible.
    """
    whole = cold_figures(decision, budget)
    if options.cold_plan == "never" and whole.seconds - _least_seconds(decision, budget) < _MUCH_S:
        return ColdOffer(None, "")
    progress("choosing a plan for cold starts")
    most = most or cold_environments(decision, options, budget)
    found = find_cold_plan(decision.graph, replace(options, cold_environments=most), budget)
    if found is None:
        if options.cold_plan == "always":
            fewer = most < options.cold_environments
            raise ModelError(
                f"no cold plan of at most {most} environments fits its functions: allow more by "
                f"{'account' if fewer else 'cold_environments'}, or use --set cold_plan=auto"
            )
        return ColdOffer(None, "")
    earlier = 1 - found.seconds / whole.seconds
    if options.cold_plan == "never":
        helps = earlier >= _MUCH and whole.seconds - found.seconds >= _MUCH_S
        return ColdOffer(None, f" {_would_help(found, whole)}" if helps else "")
    if options.cold_plan == "auto" and earlier < EARLIER:
        return ColdOffer(None, f" {_no_use(found, whole)}")
    cold_platform = replace(budget.platform, cold_share=0.0)
    return ColdOffer(_decision(decision, found, most, cold_platform), f" {_chosen(found, whole)}")


def cold_environments(decision: Decision, options: SplitOptions, budget: Budget) -> int:
    """Return how many environments a query may start on a cold plan, while those of the plan itself start."""
    if budget.account is None:
        return options.cold_environments
    widest = max(choice.grid.tiles for choice in decision.choices)
    return max(1, min(options.cold_environments, budget.account.at_once - widest))


def find_cold_plan(graph: Graph, options: SplitOptions, budget: Budget) -> ColdChain | None:
    """Return the plan with the earliest predicted first answer where nothing is warm, or None where none fits."""
    most = options.cold_environments
    within = replace(budget, max_tiles=min(most, budget.max_tiles or most), cold_share=0.0)
    columns = (Grid(1, count, columns=True) for count in range(2, most + 1))
    storage = WeightStorage(graph.half, always=bool(graph.half), places=options.places, apart=True)
    grids = GridChoice(tuple(dict.fromkeys((*AUTO, *columns))))
    search = prepare(graph, cut_points(graph, budget.limit.room), grids, None, within, storage)
    return ColdSearch(search, within.platform, most).best(SLACK) if search.fastest else None


def _decision(decision: Decision, found: ColdChain, most: int, platform: Platform) -> Decision:
    choices = choices_of(found.chain)
    text = describe(found.chain)
    why = (
        f"{text[:1].upper()}{text[1:]} has the earliest first answer where nothing is warm, within {SLACK:.0%} the "
        f"least dollars, of the plans with at most {most} environments: after {found.seconds:.2f} "
        f"s, {_price(found.usd)}, predicted. It is the cold plan of another plan, which warm queries run on."
    )
    return replace(
        decision,
        cuts=cuts_at(decision.graph, [choice.stop for choice in choices]),
        choices=choices,
        ways=(),
        why=why,
        alternatives=(alternative(found.chain, platform, chosen=True),),
        gangs=(),
        notes=(),
    )


def _chosen(found: ColdChain, whole: ColdFigures) -> str:
    return (
        f"A query that finds nothing warm has the cold plan ({describe(found.chain)}): its first answer is predicted "
        f"after {found.seconds:.2f} s, not {whole.seconds:.2f}, on {_count(found)}, for {_more(found, whole)}."
    )


def _would_help(found: ColdChain, whole: ColdFigures) -> str:
    return (
        f"With cold_plan=auto a query that finds nothing warm would have its first answer after {found.seconds:.2f} "
        f"s, as predicted, not {whole.seconds:.2f}, on {_count(found)}, for {_more(found, whole)}."
    )


def _no_use(found: ColdChain, whole: ColdFigures) -> str:
    return (
        f"There is no cold plan: its first answer would come after {found.seconds:.2f} s, as predicted, that of this "
        f"plan after {whole.seconds:.2f}."
    )


def _count(found: ColdChain) -> str:
    return f"{found.environments} environment{'s' if found.environments > 1 else ''}"


def _more(found: ColdChain, whole: ColdFigures) -> str:
    usd = found.usd + whole.warm_up_usd - whole.usd
    what = f"{_price(abs(usd))} such queries {'more' if usd >= 0 else 'less'}"
    return f"{what}, warming this plan beside it included"


def _price(usd: float) -> str:
    return f"${usd * _MILLION:.2f} a million"


def cold_figures(decision: Decision, budget: Budget) -> ColdFigures:
    facts = budget.facts.functions
    steps, usd, warming = [], 0.0, 0.0
    for number, step in enumerate(_steps(decision)):
        cold = cold_seconds(_bytes_of(decision.graph, step, budget), step[0].weights_in, facts)
        tasks, memory = step[0].grid.tiles, step[0].memory_mb
        ready = ready_seconds(tasks, cold, facts, first=not number)
        steps.append((ready, sum(choice.seconds for choice in step)))
        usd += sum(choice.usd for choice in step) + float(starting_usd(tasks, memory, cold, facts, first=not number))
        warming += float(starting_usd(tasks, memory, cold, facts, first=False))
    return ColdFigures(critical_path(steps)[-1].ended, usd, warming)


def _least_seconds(decision: Decision, budget: Budget) -> float:
    return budget.facts.functions.init + sum(choice.seconds for choice in decision.choices)


def _steps(decision: Decision) -> Iterator[Sequence[Choice]]:
    number = 0
    while number < len(decision.choices):
        stop = next((gang.stop for gang in decision.gangs if gang.start == number), number + 1)
        yield decision.choices[number:stop]
        number = stop


def _bytes_of(graph: Graph, step: Sequence[Choice], budget: Budget) -> int:
    first = step[0]
    start, stop = first.start, step[-1].stop
    size = weight_bytes(graph, start, stop, graph.half)
    if first.grid.columns and (first.apart or (first.weights_in == ZIP and size > budget.limit.room)):
        return column_bytes(graph, graph.nodes[start:stop], first.grid, graph.half)
    return size
