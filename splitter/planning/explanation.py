"""Explanations of a plan: its goal in words, its alternatives, and advice where the goal is out of reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from serfer.core.costs.operator_costs import Profiles
from serfer.core.errors import ModelError
from serfer.core.plan import OBJECTS, Alternative, PackageLimit
from serfer.core.units import MS_PER_S
from splitter.network.graph import Graph
from splitter.planning.options import Budget
from splitter.planning.planner import Choice, choices_of, prepare
from splitter.planning.search import COST, LATENCY, Chain, Goal, Search
from splitter.tiling.cuts import Cut, weight_bytes
from splitter.tiling.grids import ONE, GridChoice

_MEANINGS = {
    "latency": "the least latency",
    "cost": "the least dollars",
    "balanced": "the least product of latency and dollars",
    "work": "the fewest multiply-accumulates, and of those the least latency",
}
_LEAST_SHOWN = 0.01  # times as much: below it two decimals show nothing
_ENDLESS = PackageLimit(1 << 62, 0)
_MILLION = 1_000_000


@dataclass(frozen=True)
class Constraints:
    """The choices that the user fixed and those left to the planner, in words; `fixed` may be empty."""

    fixed: tuple[str, ...]
    chosen: tuple[str, ...]


def out_of_reach(search: Search, goal: Goal) -> ModelError:
    """Return the error that names the bound no plan keeps, by how much, and the nearest plan."""
    fastest, cheapest = search.fastest, search.cheapest
    if fastest is None or cheapest is None:
        raise AssertionError("no chain at all: nothing fits")
    if fastest.seconds > goal.most_seconds:
        missed = (fastest.seconds - goal.most_seconds) * MS_PER_S
        return ModelError(
            f"--slo-ms {_ms(goal.most_seconds)} is out of reach by {missed:.1f} ms: the fastest plan is predicted at "
            f"{_predicted(fastest)}"
        )
    if cheapest.usd > goal.most_usd:
        return ModelError(
            f"--max-cost-usd {goal.most_usd:g} is out of reach by {cheapest.usd - goal.most_usd:.3g} dollars: the "
            f"cheapest plan is predicted at {_predicted(cheapest)}"
        )
    cheapest = search.best(replace(COST, most_seconds=goal.most_seconds))
    quickest = search.best(replace(LATENCY, most_usd=goal.most_usd))
    if cheapest is None or quickest is None:
        raise AssertionError("each bound alone can be kept")
    return ModelError(
        f"--slo-ms {_ms(goal.most_seconds)} and --max-cost-usd {goal.most_usd:g} contradict each other: within the "
        f"first the cheapest plan is predicted at {_predicted(cheapest)}, within the second the fastest at "
        f"{_predicted(quickest)}"
    )


def alternatives(search: Search, chosen: Chain, unsplit: Sequence[Alternative]) -> tuple[Alternative, ...]:
    """Return a plan's alternatives, the fastest first: the frontier's hull, itself, and the network unsplit."""
    chains = {(chain.seconds, chain.usd): chain for chain in (*search.convex_hull, chosen)}
    mine = (chosen.seconds, chosen.usd)
    listed = [_alternative(chain, chosen=key == mine) for key, chain in chains.items()]
    known = {each.stages for each in listed}
    return tuple(sorted([*listed, *(each for each in unsplit if each.stages not in known)], key=lambda each: each.ms))


def unsplit(graph: Graph, budget: Budget) -> list[Alternative]:
    """Price the whole network as one function: one vCPU, and one large function with all that Lambda gives."""
    whole = [Cut(0, (graph.input,)), Cut(len(graph.nodes), (graph.output,))]
    fits = weight_bytes(graph, 0, len(graph.nodes)) <= budget.limit.room
    facts = budget.facts.functions
    priced = []
    for memory in (facts.memory_per_vcpu, facts.memory_max):
        endless = replace(budget, limit=_ENDLESS, memory_mb=(memory,))
        chain = prepare(graph, whole, GridChoice((ONE,)), None, endless).fastest
        if chain:
            priced.append(replace(_alternative(chain, chosen=False), fits=fits))
    return priced


def why(
    objective: str,
    goal: Goal,
    chosen: Chain,
    others: Sequence[Alternative],
    profiles: Profiles,
    constraints: Constraints,
) -> str:
    """Return a paragraph: the plan's objective and constraints, its alternatives, and the source of predictions."""
    bounds = []
    if goal.most_seconds < float("inf"):
        bounds.append(f"within {_ms(goal.most_seconds)} ms")
    if goal.most_usd < float("inf"):
        bounds.append(f"for at most ${goal.most_usd * _MILLION:.2f} a million queries")
    wanted = " ".join([_MEANINGS[objective], *bounds])
    mine = _price(chosen.seconds, chosen.usd)
    among = "of all plans that fit"
    if constraints.fixed:
        among = f"of the plans that fit with what was given ({'; '.join(constraints.fixed)})"
    first = f"{_stages(choices_of(chosen))} has {wanted} {among}: {mine}, predicted, warm."
    left = [f"The planner chose {_listed(constraints.chosen)}."] if constraints.fixed else []
    whole = [other for other in others if other.tasks == 1 and not other.chosen]
    beaten = [_compared(chosen, other) for other in whole]
    if constraints.fixed and any(_beats(other, chosen) for other in whole):
        beaten.append("This plan loses to that in both, because of what was given.")
    safety = f", plus {profiles.safety:.0%} for safety" if profiles.safety else ""
    source = f"Compute is predicted by profiles of {profiles.date} from {profiles.machine}{safety}."
    return " ".join([first[:1].upper() + first[1:], *left, *_apart(choices_of(chosen)), *beaten, source])


def _apart(choices: Sequence[Choice]) -> list[str]:
    """Name the stages whose tensors a plan sends to the object store; empty where it has no choice."""
    numbers = [str(number) for number, choice in enumerate(choices) if choice.path == OBJECTS]
    if not numbers:
        return []
    return [f"What stage {' and '.join(numbers)} hand{'s' if len(numbers) == 1 else ''} on goes to the object store."]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _beats(other: Alternative, chosen: Chain) -> bool:
    """Describe another plan that fits and is predicted to be faster and cheaper, if there is one."""
    return other.fits and other.ms < chosen.seconds * MS_PER_S and other.usd < chosen.usd


def _compared(chosen: Chain, other: Alternative) -> str:
    seconds, usd = other.ms / MS_PER_S, other.usd
    times, dollars = _times(seconds / chosen.seconds), _times(usd / chosen.usd)
    verdict = f"takes {times} times as long and costs {dollars} times as much ({_price(seconds, usd)})"
    return f"Unsplit, {other.stages} {verdict}" + ("." if other.fits else ", and does not fit a function's package.")


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= _LEAST_SHOWN else f"{ratio:.1g}"


def _alternative(chain: Chain, *, chosen: bool) -> Alternative:
    choices = choices_of(chain)
    return Alternative(
        _stages(choices),
        tasks=sum(choice.grid.tiles for choice in choices),
        ms=round(chain.seconds * MS_PER_S, 3),
        usd=chain.usd,
        fits=True,
        chosen=chosen,
    )


def _stages(choices: Sequence[Choice]) -> str:
    """Write stages in short form: "2x2 (2 stages) at 1769 MB, then 1 at 3538 MB"."""
    if len(choices) == 1 and choices[0].grid == ONE:
        return f"one function of {choices[0].memory_mb} MB"
    parts = []
    for (grid, memory), group in groupby(choices, key=lambda each: (str(each.grid), each.memory_mb)):
        count = len(list(group))
        parts.append(f"{grid}{f' ({count} stages)' if count > 1 else ''} at {memory} MB")
    return ", then ".join(parts)


def _predicted(chain: Chain) -> str:
    return f"{_price(chain.seconds, chain.usd)} ({_stages(choices_of(chain))})"


def _price(seconds: float, usd: float) -> str:
    return f"{_ms(seconds)} ms and ${usd * _MILLION:.2f} a million queries"


def _ms(seconds: float) -> str:
    return f"{seconds * MS_PER_S:.4g}"
