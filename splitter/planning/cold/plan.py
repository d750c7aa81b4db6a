"""The cold plan of a network: whether `split` writes one, which, and what it says of it.

Candidates are all chains of stages between the planner's cuts, on its grids and on columns of every number, with at
most so many environments, whose weights have the places and the precision of the plan itself; each group of columns
is a function of its own, so that an environment has its share of the weights and no more. Gangs are none of them: each
member has the weights of all their stages. The earliest of each number of environments compete, and of those that
answer at most SLACK later than the earliest of all, the cheapest is taken (search.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from serfer.core.costs.aws import LambdaFacts
from serfer.core.costs.cold_queries import ColdPrice, warm_up_usd
from serfer.core.costs.cost_model import Platform
from serfer.core.errors import ModelError
from serfer.core.geometry import Grid
from serfer.core.plan import Alternative
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.source import Progress
from serfer.splitter.planning.cold.search import ColdChain, ColdSearch
from serfer.splitter.planning.explanation import alternative, describe
from serfer.splitter.planning.limits import WeightStorage
from serfer.splitter.planning.planner import Decision, choices_of, prepare
from serfer.splitter.planning.split_options import Budget, SplitOptions
from serfer.splitter.tiling.cuts import cut_points, cuts_at
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
    """The cold plan to write, or None, and then a sentence for the paragraph of the plan itself, which may be empty."""

    decision: Decision | None = None
    sentence: str = ""


def cold_offer(
    decision: Decision, whole: ColdPrice, options: SplitOptions, budget: Budget, progress: Progress
) -> ColdOffer:
    """Choose the cold plan beside a plan, of at most as many environments as the plan leaves.

    `whole` is the price of the plan itself. Raises ModelError where a cold plan must be written and none is possible.
    """
    functions = budget.facts.functions
    if options.cold_plan == "never" and sum(time.waited for time in whole.times) - functions.init < _MUCH_S:
        return ColdOffer()
    progress("choosing a plan for cold starts")
    most = _most_environments(decision, options, budget)
    found = find_cold_plan(decision.graph, replace(options, cold_environments=most), budget)
    if found is None:
        if options.cold_plan == "always":
            fewer = most < options.cold_environments
            raise ModelError(
                f"no cold plan of at most {most} environments fits its functions: allow more by "
                f"{'account' if fewer else 'cold_environments'}, or use --set cold_plan=auto"
            )
        return ColdOffer()
    earlier = 1 - found.seconds / whole.seconds
    if options.cold_plan == "never":
        helps = earlier >= _MUCH and whole.seconds - found.seconds >= _MUCH_S
        return ColdOffer(None, _would_help(found, whole, functions) if helps else "")
    if options.cold_plan == "auto" and earlier < EARLIER:
        return ColdOffer(None, _no_use(found, whole))
    return ColdOffer(_decision(decision, found, most, budget.platform))


def _most_environments(decision: Decision, options: SplitOptions, budget: Budget) -> int:
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

    def why(chosen: Alternative, cold: ColdPrice) -> str:
        return (
            f"{chosen.stages[:1].upper()}{chosen.stages[1:]} has the earliest first answer where nothing is warm, "
            f"within {SLACK:.0%} the least dollars, of the plans with at most {most} environments: after "
            f"{cold.seconds:.2f} s, {_price(cold.usd)}, predicted. It is the cold plan of another plan, which warm "
            "queries run on."
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
        sentences="",
    )


def describe_cold(cold: ColdPrice, decision: Decision, whole: ColdPrice, functions: LambdaFacts) -> str:
    """Return the sentence on a cold plan, as written, for the paragraph of the plan itself."""
    return (
        f" A query that finds nothing warm has the cold plan ({describe(decision.steps)}): its first answer is "
        f"predicted after {cold.seconds:.2f} s, not {whole.seconds:.2f}, on {_count(cold)}, for "
        f"{_more(cold, whole, functions)}."
    )


def _would_help(found: ColdChain, whole: ColdPrice, functions: LambdaFacts) -> str:
    return (
        f" With cold_plan=auto a query that finds nothing warm would have its first answer after {found.seconds:.2f} "
        f"s, as predicted, not {whole.seconds:.2f}, on {_count(found)}, for {_more(found, whole, functions)}."
    )


def _no_use(found: ColdChain, whole: ColdPrice) -> str:
    return (
        f" There is no cold plan: its first answer would come after {found.seconds:.2f} s, as predicted, that of this "
        f"plan after {whole.seconds:.2f}."
    )


def _count(cold: ColdChain | ColdPrice) -> str:
    return f"{cold.environments} environment{'s' if cold.environments > 1 else ''}"


def _more(cold: ColdChain | ColdPrice, whole: ColdPrice, functions: LambdaFacts) -> str:
    usd = cold.usd + warm_up_usd(whole, functions) - whole.usd
    what = f"{_price(abs(usd))} such queries {'more' if usd >= 0 else 'less'}"
    return f"{what}, warming this plan beside it included"


def _price(usd: float) -> str:
    return f"${usd * _MILLION:.2f} a million"
