"""Explanations of a plan: its goal in words, its alternatives, and advice where the goal is out of reach."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from serfer.core.costs.cold_starts import COLD_SHARE, cold_seconds
from serfer.core.costs.cost_model import MEASURED_MEMBERS, Platform
from serfer.core.errors import ModelError
from serfer.core.plan import CONTAINER, FETCHED, OBJECTS, TIMED, ZIP, Alternative, PackageLimit
from serfer.core.units import MIB, MS_PER_S
from serfer.splitter.network.as_is import IN_8_BITS
from serfer.splitter.network.graph import Graph, Node
from serfer.splitter.planning.cold.share import expected_seconds, first_answer
from serfer.splitter.planning.limits import FunctionLimits, WeightStorage, memory_needed, room_in
from serfer.splitter.planning.planner import Choice, choices_of, prepare, steps_of
from serfer.splitter.planning.search import COST, LATENCY, Chain, Goal, Search
from serfer.splitter.planning.split_options import MAX_GANG_STAGES, Budget, SplitOptions
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.as_is import part_of
from serfer.splitter.tiling.cuts import Cut, weight_bytes
from serfer.splitter.tiling.grids import ONE, GridChoice

_MEANINGS = {
    "latency": "the least latency",
    "cost": "the least dollars",
    "balanced": "the least product of latency and dollars",
    "work": "the fewest multiply-accumulates, and of those the least latency",
}
IN_PLACE = {ZIP: "in zips", FETCHED: "fetched", CONTAINER: "in an image"}
"""Places of weights in words, after "weights"."""
_MOST_REASONS = 4
_LEAST_SHOWN = 0.01  # times as much: below it two decimals show nothing
_ENDLESS = PackageLimit(1 << 62, 0)
_ENDLESS_MB = 1 << 30
_MILLION = 1_000_000


@dataclass(frozen=True)
class Constraints:
    """The choices that the user fixed and those left to the planner, in words; `fixed` may be empty."""

    fixed: tuple[str, ...]
    chosen: tuple[str, ...]


def out_of_reach(search: Search, goal: Goal) -> ModelError:
    fastest, cheapest = search.fastest, search.cheapest
    if fastest is None or cheapest is None:
        raise AssertionError("no chain at all: nothing fits")
    if fastest.seconds > goal.most_seconds:
        missed = (fastest.seconds - goal.most_seconds) * MS_PER_S
        return ModelError(
            f"--slo-ms {_ms(goal.most_seconds)} is out of reach by {missed:.1f} ms: the fastest plan is predicted at "
            f"{_describe_prediction(fastest)}"
        )
    if cheapest.usd > goal.most_usd:
        return ModelError(
            f"max_cost_usd={goal.most_usd:g} is out of reach by {cheapest.usd - goal.most_usd:.3g} dollars: the "
            f"cheapest plan is predicted at {_describe_prediction(cheapest)}"
        )
    cheapest = search.best(replace(COST, most_seconds=goal.most_seconds))
    quickest = search.best(replace(LATENCY, most_usd=goal.most_usd))
    if cheapest is None or quickest is None:
        raise AssertionError("each bound alone can be kept")
    return ModelError(
        f"--slo-ms {_ms(goal.most_seconds)} and max_cost_usd={goal.most_usd:g} contradict each other: within the "
        f"first the cheapest plan is predicted at {_describe_prediction(cheapest)}, within the second the fastest at "
        f"{_describe_prediction(quickest)}"
    )


def why_nothing_fits(
    graph: Graph, cuts: Sequence[Cut], grids: GridChoice, stages: int | None, budget: Budget, storage: WeightStorage
) -> str:
    endless = replace(budget, limit=PackageLimit(sys.maxsize, 0), memory_mb=(_ENDLESS_MB,))
    chain = prepare(graph, cuts, grids, stages, endless, most_stages=MAX_GANG_STAGES).fastest
    if chain is None:
        return _why_no_chain(graph, cuts, grids, stages, budget)
    spans = [(choice.start, choice.stop) for choice in choices_of(chain)]
    free = stages is None and not grids.per_stage
    if free:  # only indivisible parts count: the others could still be cut
        spans = [(left.position, right.position) for left, right in pairwise(cuts)]
    place, full = storage.places[-1], [weight_bytes(graph, *span) for span in spans]
    needs = [
        memory_needed(graph, *span, size, ZIP if size <= budget.limit.room else place)
        for span, size in zip(spans, full, strict=True)
    ]
    if max(needs) > max(budget.memory_mb):
        most, account = max(budget.memory_mb), budget.account
        allowed = f"{account} allows {most:,}" if account and account.memory_mb == most else f"--memory allows {most:,}"
        return f"a stage needs about {max(needs):,} MB of memory, {allowed}: allow more, or more stages"
    sizes = [weight_bytes(graph, *span, storage.half) for span in spans]
    size = max(sizes)
    worst = sizes.index(size)
    room, limit = room_in(place, budget), budget.limit
    package = room + limit.dependencies
    nodes = graph.nodes[slice(*spans[worst])]
    heaviest = max(nodes, key=lambda node: sum(graph.weights[name].nbytes for name in graph.constants(node)))
    what = "a part that no cut divides" if free else f"stage {worst} of {len(spans)}"
    return (
        f"{what}, with operator {heaviest.name!r} ({heaviest.kind}), cannot be deployed: it has {size:,} bytes of "
        f"weights{' in fp16' if storage.half else ''}, a function has room for {room:,} ({package:,} less "
        f"{limit.dependencies:,} of dependencies), {size - room:,} too few ({(size - room) / MIB:.1f} MB); "
        f"{_advice(graph, heaviest, storage, free=free)}"
    )


def list_alternatives(
    search: Search, chosen: Chain, graph: Graph, budget: Budget, storage: WeightStorage
) -> tuple[Alternative, ...]:
    """Return a plan's alternatives, the fastest first: the frontier's hull, itself, and the network unsplit.

    The hull is that of warm seconds and expected dollars.
    """
    chains = {(chain.seconds, chain.usd): chain for chain in (*search.convex_hull, chosen)}
    mine = (chosen.seconds, chosen.usd)
    listed = [alternative(chain, budget.platform, chosen=key == mine) for key, chain in chains.items()]
    known = {other.stages for other in listed}
    listed += [other for other in unsplit_alternatives(graph, budget, storage) if other.stages not in known]
    return tuple(sorted(listed, key=lambda other: other.ms))


def unsplit_alternatives(graph: Graph, budget: Budget, storage: WeightStorage) -> list[Alternative]:
    """Price the whole network as one function: one vCPU, and one large function with all that Lambda gives.

    In fp32, except where fp16 was requested or allowed. One that does not fit has its weights in zips, too many.
    """
    whole = [Cut(0, (graph.input,)), Cut(len(graph.nodes), graph.outputs)]
    storage = storage if storage.always or storage.allowed else WeightStorage(places=storage.places)
    facts = budget.facts.functions
    priced = []
    for memory in (facts.memory_per_vcpu, facts.memory_max):
        within = replace(budget, memory_mb=(memory,))
        for limits in (within, replace(within, limit=_ENDLESS)):
            chain = prepare(graph, whole, GridChoice((ONE,)), None, limits, storage).fastest
            if chain:
                priced.append(replace(alternative(chain, budget.platform, chosen=False), fits=limits is within))
                break
    return priced


def explain_choice(
    options: SplitOptions, chosen: Alternative, others: Sequence[Alternative], budget: Budget, constraints: Constraints
) -> str:
    """Return a paragraph: the plan's objective and constraints, its alternatives, and the source of predictions.

    `chosen` is the plan as one of the alternatives, whose figures are expected with a share of cold queries.
    """
    goal, profiles = options.goal, budget.profiles
    bounds = []
    if goal.most_seconds < float("inf"):
        bounds.append(f"within {_ms(goal.most_seconds)} ms")
    if goal.most_usd < float("inf"):
        bounds.append(f"for at most ${goal.most_usd * _MILLION:.2f} a million queries")
    wanted = " ".join([_MEANINGS[options.objective], *bounds])
    mine = _price(chosen.ms / MS_PER_S, chosen.usd)
    among = "of all plans that fit"
    if constraints.fixed:
        among = f"of the plans that fit with what was given ({'; '.join(constraints.fixed)})"
    first = (
        f"{chosen.stages} has {wanted} {among}: {mine}, predicted, {_describe_cold_share(chosen, budget.cold_share)}."
    )
    left = [f"The planner chose {_join_names(constraints.chosen)}."] if constraints.fixed else []
    whole = [other for other in others if other.tasks == 1 and not other.chosen]
    beaten = [_compare_with(chosen, other) for other in whole]
    if constraints.fixed and any(other.fits and _is_better(other, chosen) for other in whole):
        beaten.append("This plan loses to that in both, because of what was given.")
    safety = f", plus {profiles.safety:.0%} for safety" if profiles.safety else ""
    source = f"Compute is predicted by profiles of {profiles.date} from {profiles.machine}{safety}."
    return " ".join([first[:1].upper() + first[1:], *left, *beaten, source])


def _describe_cold_share(chosen: Alternative, cold_share: float) -> str:
    if not cold_share or chosen.warm_ms is None or chosen.cold_ms is None:
        return "warm"
    assumed = ", as assumed" if cold_share == COLD_SHARE else ""
    share = f"where {100 * cold_share:.3g}% of the queries find nothing warm{assumed} (cold_share)"
    return f"{share}: {chosen.warm_ms:.4g} ms warm, {chosen.cold_ms:,.0f} ms where nothing is warm"


def store_sentence(choices: Sequence[Choice]) -> str:
    """Name the stages whose tensors a plan sends to the object store; empty where it has no choice."""
    numbers = [str(number) for number, choice in enumerate(choices) if choice.path == OBJECTS]
    if not numbers:
        return ""
    return f" What stage {' and '.join(numbers)} hand{'s' if len(numbers) == 1 else ''} on goes to the object store."


def _join_names(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _is_better(other: Alternative, chosen: Alternative) -> bool:
    return other.ms < chosen.ms and other.usd < chosen.usd


def _compare_with(chosen: Alternative, other: Alternative) -> str:
    seconds, usd = other.ms / MS_PER_S, other.usd
    times, dollars = _times(other.ms / chosen.ms), _times(usd / chosen.usd)
    verdict = f"takes {times} times as long and costs {dollars} times as much ({_price(seconds, usd)})"
    if other.fits:
        return f"Unsplit, {other.stages} {verdict}."
    ruled_out = (
        "weights=zip rules it out" if _is_better(other, chosen) else "with --set weights=fetched it could be had"
    )
    return f"Unsplit, {other.stages} {verdict}, and does not fit a function's package: {ruled_out}."


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= _LEAST_SHOWN else f"{ratio:.1g}"


def alternative(chain: Chain, platform: Platform, *, chosen: bool) -> Alternative:
    cold_s = first_answer(chain, platform)
    starts = sum(float(edge.cold_usd[memory]) for edge, memory in chain.steps if edge.cold_usd is not None)
    return Alternative(
        describe(steps_of(chain)),
        tasks=sum(step[0].grid.tiles for step in steps_of(chain)),
        ms=expected_seconds(chain.seconds, cold_s, platform) * MS_PER_S,
        usd=chain.usd,
        fits=True,
        chosen=chosen,
        warm_ms=chain.seconds * MS_PER_S,
        cold_ms=cold_s * MS_PER_S,
        warm_usd=chain.usd - starts,
    )


def describe(steps: Iterable[Sequence[Choice]]) -> str:
    """Write stages in short form: "2x2 (2 stages) at 1769 MB, then 1 at 3538 MB", or "a gang of 9 stages on 2x1"."""
    steps = [*steps]
    if [len(step) for step in steps] == [1] and steps[0][0].grid == ONE:
        return f"one function of {steps[0][0].memory_mb} MB{_weights(steps[0][0].half, steps[0][0].weights_in)}"
    parts = []
    for (grid, memory, stages, half, place), group in groupby(
        steps, key=lambda step: (step[0].grid, step[0].memory_mb, len(step), step[0].half, step[0].weights_in)
    ):
        count = len(list(group))
        what = f"{grid}{f' ({count} stages)' if count > 1 else ''}"
        if stages > 1:
            what = f"{'a gang' if count == 1 else f'{count} gangs'} of {stages} stages on {grid}"
        simulated = ", simulated" if stages > 1 and grid.tiles > MEASURED_MEMBERS else ""
        parts.append(f"{what} at {memory} MB{_weights(half, place)}{simulated}")
    return ", then ".join(parts)


def _weights(half: bool, place: str) -> str:  # noqa: FBT001 - what a function's weights are
    if place == ZIP:
        return ", fp16 weights" if half else ""
    return f",{' fp16' if half else ''} weights {IN_PLACE[place]}"


def faster_in_half(chosen: Chain, other: Chain, option: str) -> str:
    """Name a plan in fp16 where it is faster or cheaper than the chosen one, and the option that would allow it."""
    if other.seconds >= chosen.seconds and other.usd >= chosen.usd:
        return ""
    return f" Weights stay in fp32 by default: with fp16 allowed ({option}) it would be {_describe_prediction(other)}."


def starts_sooner_in_half(graph: Graph, chain: Chain, storage: WeightStorage, budget: Budget, option: str) -> str:
    """Name what the chosen plan would save in cold starts with weights in fp16, where it fetches any; else empty."""
    limits, now, then = FunctionLimits(graph, budget, storage), 0.0, 0.0
    for step in steps_of(chain):
        if step[0].weights_in == ZIP:
            continue
        start, stop = step[0].start, step[-1].stop
        fit = limits.of_gang(start, stop)
        if fit:
            now += cold_seconds(weight_bytes(graph, start, stop), step[0].weights_in, budget.facts.functions)
            then += fit.cold_start(budget.platform).seconds
    if then >= now:
        return ""
    return (
        f" Weights stay in fp32 by default: with fp16 allowed ({option}) cold starts of what is not in zips would take "
        f"{then:.1f} s, not {now:.1f}."
    )


def as_is_reason(graph: Graph) -> str:
    """Say how many operators run as they are, and why; empty where everything can be split."""
    part = next(filter(None, map(part_of, graph.nodes)), None)
    if part is None:
        return ""
    count = len(part.operators)
    what = f"{count} operator{'' if count == 1 else 's'} run{'s' if count == 1 else ''} as given, in one task"
    because = f", because of {'; '.join(map(str, part.reasons[:_MOST_REASONS]))}" if part.reasons else ""
    more = len(part.reasons) - _MOST_REASONS
    return f"{what}{because}{f', and {more} more' if more > 0 else ''}"


def as_is_sentence(graph: Graph) -> str:
    part = next(filter(None, map(part_of, graph.nodes)), None)
    if part is None:
        return ""
    parts = [f" {as_is_reason(graph)}."]
    if part.costs and part.costs.times == TIMED:
        ms, mb = part.costs.work.measured_s * MS_PER_S, part.costs.peak_bytes / MIB
        parts.append(
            f"One image takes {ms:.4g} ms and {mb:.0f} MB of memory there, measured here on one thread, beside a "
            "network that the profiles know."
        )
    elif part.costs:
        parts.append(f"What they take is {part.costs.times}, as where the network is split.")
    if any(kind in IN_8_BITS for _, kind in part.operators):
        parts.append("It computes in 8 bits: answers differ between processors by a few steps of rounding.")
    return " ".join(parts)


def _describe_prediction(chain: Chain) -> str:
    return f"{_price(chain.seconds, chain.usd)} ({describe(steps_of(chain))})"


def _price(seconds: float, usd: float) -> str:
    return f"{_ms(seconds)} ms and ${usd * _MILLION:.2f} a million queries"


def _ms(seconds: float) -> str:
    return f"{seconds * MS_PER_S:.4g}"


def _advice(graph: Graph, heaviest: Node, storage: WeightStorage, *, free: bool) -> str:
    """List remedies for a part that is too large: only those that were not tried and apply to it."""
    remedies = [] if free else ["allow more stages"]
    if storage.places == (ZIP,):
        remedies.append("have weights fetched (--set weights=fetched)")
    if not storage.half:
        remedies.append("allow --precision fp16")
    if operators.is_fully_connected(graph, heaviest):
        remedies.append("allow columns (col4), or a pooled head (--set gap=always)")
    return ", or ".join([*remedies, "raise limit_mb (--set limit_mb=MB), for workers on this machine only"])


def _why_no_chain(graph: Graph, cuts: Sequence[Cut], grids: GridChoice, stages: int | None, budget: Budget) -> str:
    too_fine = [grid for grid in grids.per_stage if grid.tiles > (budget.max_tiles or grid.tiles)]
    if too_fine:
        return f"the grid {too_fine[0]} has {too_fine[0].tiles} tiles, max_tiles allows {budget.max_tiles}"
    blocked = next((node for node in graph.nodes if not operators.tileable(graph, node)), None)
    parts = f"{stages} stages" if stages else "any number of stages"
    wanted = ",".join(str(grid) for grid in grids.per_stage) or "any grid"
    reason = f"; from operator {blocked.name!r} ({blocked.kind}) on, stages have no tiles" if blocked else ""
    return f"the network has no chain of {parts} with grids {wanted} ({len(cuts) - 2} cuts){reason}"
