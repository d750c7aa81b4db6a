"""The paper's two optimisations under S_i + D < M, automatic and in its order (SerFer, section 5).

A network whose parts fit their functions in fp32 stays as it is, and so does one whose functions may fetch their
weights. Where a part does not fit, its weights are stored in fp16; where that is not enough, global average pooling
takes the place of its fully connected head, if there is labelled data to fit the new head to; and where there is none,
the head's columns go to several functions, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.cold_queries import ColdPrice
from serfer.core.errors import ModelError
from serfer.core.exactness import agreement, relative_error
from serfer.core.geometry import Grid
from serfer.core.plan import CONTAINER, FETCHED, ZIP, Alternative, DeploymentOption, ModelChange
from serfer.core.plan.answers import Answer, joined
from serfer.splitter.head.calibration import Calibration
from serfer.splitter.head.find import find_head
from serfer.splitter.head.gap import HeadFit, replace_head, replace_head_blind
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.source import Progress
from serfer.splitter.plan_dir.check import whole_runner
from serfer.splitter.planning import precision
from serfer.splitter.planning.cold.share import best_chain
from serfer.splitter.planning.explanation import (
    IN_PLACE,
    Constraints,
    as_is_reason,
    explain_choice,
    faster_in_half,
    list_alternatives,
    out_of_reach,
    starts_sooner_in_half,
    store_sentence,
    why_nothing_fits,
)
from serfer.splitter.planning.gang_candidates import exchange_points, gang_grids
from serfer.splitter.planning.limits import WeightStorage, memory_needed, room_in
from serfer.splitter.planning.optional import optional
from serfer.splitter.planning.planner import (
    Choice,
    Decision,
    choices_of,
    gangs_of,
    gangs_of_runs,
    prepare,
)
from serfer.splitter.planning.search import Chain, Search
from serfer.splitter.planning.split_options import (
    DEFAULT_WEIGHTS,
    MAX_GANG_STAGES,
    MAX_STAGES,
    Budget,
    SplitOptions,
    exchanges,
    memory_sizes,
)
from serfer.splitter.tiling.cuts import MOST_TENSORS, Cut, cut_points, cuts_after, cuts_at, weight_bytes
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer.splitter.tiling.grids import COLUMNS, ONE

_RANDOM_INPUTS = 16
_MEASURED_AT_ONCE = 8
_Run = Callable[[NDArray[np.float32]], Answer]


def fit(
    original: Graph, options: SplitOptions, budget: Budget, calibration: Calibration | None, progress: Progress
) -> Decision:
    """Choose stages for a network so that each fits its functions, changing the network only where it must be.

    The decision has a note where one grid was requested and no stage can have it, or gangs and there can be none, or
    where fp16 storage loses more than was allowed, so that weights stay in fp32.

    Raises ModelError where nothing fits (the message names the bound), fp16 was requested and loses more than was
    allowed, or a GAP head was requested and there is no head to replace; UsageError for options that contradict each
    other.
    """

    def decided(allowed: SplitOptions) -> Decision:
        return _decide(original, allowed, budget, calibration, progress)

    if _searches_gangs(options, budget) or options.gang == "always":
        without = replace(options, gang="never")
        return optional("the search for gangs", lambda: decided(options), lambda: decided(without))
    return decided(options)


@dataclass(frozen=True)
class _Fitted:
    graph: Graph
    cuts: Sequence[Cut]
    search: Search
    storage: WeightStorage
    changes: tuple[ModelChange, ...] = ()


@dataclass(frozen=True)
class _Chosen:
    chain: Chain
    choices: Sequence[Choice]
    gangs: tuple[range, ...]
    half: frozenset[str]


def _decide(
    original: Graph, options: SplitOptions, budget: Budget, calibration: Calibration | None, progress: Progress
) -> Decision:
    fitted = _fit_functions(original, options, budget, calibration, progress)
    chosen = _choose_chain(fitted, options, budget)
    graph, changes, notes = fitted.graph, fitted.changes, list[str]()
    if chosen.half:
        progress("measuring what fp16 storage loses")
        rounded = precision.with_half(graph, chosen.half)
        change = _measure_half(graph, rounded, chosen.half, calibration)
        if excess := _excess_loss(change, options):
            notes.append(excess)
            options = replace(options, precision="fp32", max_loss=None)
            fitted = _fit_functions(original, options, budget, calibration, progress)
            chosen = _choose_chain(fitted, options, budget)
            graph, changes = fitted.graph, fitted.changes
        else:
            graph, changes = rounded, (*changes, change)
    unmet = _explain_unmet(fitted, chosen, options, budget)
    others = optional(
        "the list of alternatives",
        lambda: list_alternatives(fitted.search, chosen.chain, fitted.graph, budget, fitted.storage),
        tuple[Alternative, ...],
    )
    deployments = optional(
        "the list of deployments",
        lambda: _deployment_options(original, options, budget, changes),
        tuple[DeploymentOption, ...],
    )
    in_half = optional("the explanation", lambda: _half_instead(fitted, chosen, options, budget), str)
    constraints = _constraints(options, budget)

    def why(mine: Alternative, _cold: ColdPrice) -> str:
        paragraph = optional("the explanation", lambda: explain_choice(options, mine, others, budget, constraints), str)
        return f"{unmet[:1].upper()}{unmet[1:]}{paragraph}{store_sentence(chosen.choices)}{in_half}"

    return Decision(
        graph,
        cuts_at(graph, [choice.stop for choice in chosen.choices]),
        chosen.choices,
        changes,
        deployments,
        why,
        others,
        chosen.gangs,
        (*notes, *filter(None, [unmet])),
    )


def _fit_functions(
    original: Graph, options: SplitOptions, budget: Budget, calibration: Calibration | None, progress: Progress
) -> _Fitted:
    progress("choosing cuts and grids")
    network, changes = original, tuple[ModelChange, ...]()
    if options.gap == "always":
        network, changes = _with_gap(original, calibration, progress)
    spread = options.asks_for_columns or budget.cold_share > 0  # functions start sooner with a part of the weights
    fitted = _first_that_fits(network, options, budget, _storages(network, options, spread=spread))
    if fitted is None and options.gap == "auto" and calibration is not None and find_head(original):
        pooled, pooling = _with_gap(original, calibration, progress)
        fitted = _first_that_fits(pooled, options, budget, _storages(pooled, options, spread=False))
        if fitted is not None:
            changes = pooling
    if fitted is None:
        fitted = _first_that_fits(network, _with_columns(options), budget, _storages(network, options, spread=True))
    if fitted is None:
        raise _nothing_fits(network, options, budget)
    return replace(fitted, changes=changes)


def _choose_chain(fitted: _Fitted, options: SplitOptions, budget: Budget) -> _Chosen:
    chain = best_chain(fitted.search, options.goal, budget.platform)
    if chain is None:
        raise out_of_reach(fitted.search, options.goal)
    choices, gangs, storage = choices_of(chain), gangs_of(chain), fitted.storage
    if options.gang == "always" and not _searches_gangs(options, budget):
        choices, gangs = gangs_of_runs(fitted.graph, choices, budget, storage.half, storage.places)
    return _Chosen(chain, choices, gangs, _half_weights(fitted.graph, choices) & storage.half)


def _explain_unmet(fitted: _Fitted, chosen: _Chosen, options: SplitOptions, budget: Budget) -> str:
    untiled = _why_untiled(fitted.graph, fitted.cuts, options.grids.requested, chosen.choices, budget.max_tiles)
    if untiled or chosen.gangs:
        return untiled
    return _why_no_gang(fitted.graph, options, budget, chosen.choices)


def _excess_loss(change: ModelChange, options: SplitOptions) -> str:
    """Return a warning, empty for none; raises ModelError where fp16 was requested."""
    if options.max_loss is None or change.error is None or change.error <= options.max_loss:
        return ""
    text = (
        f"fp16 storage changes the outputs by {change.error:.2g} of their range on {change.samples} "
        f"{change.measured_on}, max_loss allows {options.max_loss:g}"
    )
    if options.precision == "fp16":
        raise ModelError(f"{text}: allow more, or use --precision fp32")
    return f"{text}: weights stay in fp32"


def _half_instead(fitted: _Fitted, chosen: _Chosen, options: SplitOptions, budget: Budget) -> str:
    """Name the plan in fp16 that a plan in fp32 leaves out by default, where it would save something; else empty.

    That is another plan where weights must be in zips, which hold twice as many in fp16. Elsewhere it is the same plan,
    whose cold starts have fewer bytes to wait for. Networks that one zip holds have nothing to save.
    """
    graph, storage = fitted.graph, fitted.storage
    nodes = len(graph.nodes)
    full = weight_bytes(graph, 0, nodes)
    decided = chosen.half or options.precision == "fp32" or options.max_loss is not None
    names = frozenset() if decided or full <= budget.limit.room else precision.storable(graph, graph.nodes)
    if not names:
        return ""
    with_half = replace(storage, half=names, allowed=True)
    loss = precision.predicted_loss(graph, names)
    option = f"max_loss={precision.rounded_up(loss):g}, as predicted from rounding"
    if storage.places == (ZIP,):
        search = _search(graph, fitted.cuts, options, budget, with_half, options.gang)
        other = best_chain(search, options.goal, budget.platform) if search.fastest else None
        return faster_in_half(chosen.chain, other, option) if other else ""
    return starts_sooner_in_half(graph, chosen.chain, with_half, budget, option)


def _why_untiled(
    graph: Graph, cuts: Sequence[Cut], wanted: Grid | None, choices: Sequence[Choice], max_tiles: int | None
) -> str:
    if wanted in (None, ONE) or any(choice.grid == wanted for choice in choices):
        return ""
    if max_tiles is not None and wanted.tiles > max_tiles:
        what = f"it has {wanted.tiles} tiles, and at most {max_tiles} are allowed"
    elif wanted.columns:
        what = "no fully connected layer between two cuts has so many columns, or fits its functions so"
    else:
        maps = [shape for cut in cuts[1:] for name in cut.tensors if not (shape := graph.shape(name)).flat]
        largest = max(maps, key=lambda shape: shape.height * shape.width, default=None)
        what = f"the largest map at a cut is {largest.height} x {largest.width}" if largest else "no cut has a map"
        if not largest and (reason := as_is_reason(graph)):
            return f"no stage can be spread {wanted}: {reason}. "
    return f"no stage can be spread {wanted}: {what}; ask for another grid. "


def _why_no_gang(graph: Graph, options: SplitOptions, budget: Budget, choices: Sequence[Choice]) -> str:
    if options.gang != "always":
        return ""
    wanted, most = options.grids.requested, budget.max_tiles
    if not _searches_gangs(options, budget):
        tiled = any(choice.grid.tiles > 1 and not choice.grid.columns for choice in choices[:-1])
        what = (
            "no function holds two of the consecutive stages, or their grids differ"
            if tiled
            else "no stage before the last has tiles of rows and columns"
        )
    elif wanted and not gang_grids(wanted):
        what = f"stages on the grid {wanted} have no neighbours that could exchange halos"
    elif most is not None and all(grid.tiles > most for grid in gang_grids(wanted, budget.gang_width)):
        what = f"at most {most} tiles are allowed"
    elif not exchange_points(graph):
        what = "the network has neither windows of several rows nor global pooling, before which tiles exchange"
    else:
        width = f" of at most {budget.gang_width} tiles (gang_width)" if budget.gang_width else ""
        grid = f"the grid {wanted}" if wanted else f"any grid{width}"
        what = f"no stages on {grid} have maps that are large enough, or a function that holds them"
    return f"no stages can be a gang: {what}. "


def _count(stages: int) -> str:
    return f"{stages} stage" if stages == 1 else f"{stages} stages"


def _constraints(options: SplitOptions, budget: Budget) -> Constraints:
    grids, memory = options.grids, budget.memory_mb
    place = IN_PLACE.get(options.weights, "in zips or fetched")
    any_memory = set(memory) == set(memory_sizes(budget.facts.functions))
    fixed = {
        "grids": f"grids {', '.join(map(str, grids.per_stage))}" if grids.per_stage else "",
        "grid": f"grid {grids.requested} for every stage that can have it" if grids.requested else "",
        "cuts": f"cuts after {', '.join(options.cuts)}" if options.cuts else "",
        "stages": _count(options.stages) if options.stages and not (grids.per_stage or options.cuts) else "",
        "memory": "" if any_memory else f"{' or '.join(map(str, memory))} MB of memory",
        "tiles": f"at most {budget.max_tiles} tasks a stage" if budget.max_tiles else "",
        "precision": f"weights in {options.precision}" if options.precision != "auto" else "",
        "weights": "" if options.weights == DEFAULT_WEIGHTS else f"weights {place}",
        "gangs": "gangs wherever stages can be one" if options.gang == "always" else "",
        "head": {"auto": "", "never": "no pooled head", "always": "a pooled head"}[options.gap],
    }
    free = {
        "cuts": not options.cuts,
        "grids": not (grids.per_stage or grids.requested),
        "memory": not fixed["memory"] or len(memory) > 1,
    }
    chosen = [name for name, is_free in free.items() if is_free]
    return Constraints(tuple(filter(None, fixed.values())), (*chosen, "how stages hand on"))


def _storages(graph: Graph, options: SplitOptions, *, spread: bool) -> Iterator[WeightStorage]:
    exact = WeightStorage(spread=spread, places=options.places)
    if options.precision == "fp16":
        yield replace(exact, half=precision.storable(graph, graph.nodes), always=True)
    elif options.max_loss:
        yield replace(exact, half=precision.storable_within(graph, options.max_loss), allowed=True)
    else:
        yield exact
        if options.precision == "auto" and options.max_loss is None and FETCHED not in options.places:
            yield replace(exact, half=precision.storable(graph, graph.nodes))


def _with_columns(options: SplitOptions) -> SplitOptions:
    return options if options.grids.per_stage else replace(options, grids=replace(options.grids, for_large=COLUMNS))


def _first_that_fits(
    network: Graph, options: SplitOptions, budget: Budget, storages: Iterator[WeightStorage]
) -> _Fitted | None:
    graph = with_tile_pools(network)
    cuts = _cuts(graph, options, budget)
    for storage in storages:
        for gang in _gang_modes(options, budget):
            search = _search(graph, cuts, options, budget, storage, gang)
            if search.fastest:
                return _Fitted(graph, cuts, search, storage)
    return None


def _search(
    graph: Graph, cuts: Sequence[Cut], options: SplitOptions, budget: Budget, storage: WeightStorage, gang: str
) -> Search:
    return prepare(
        graph,
        cuts,
        options.grids,
        len(cuts) - 1 if options.cuts else options.stages,
        budget,
        storage,
        least_work=options.objective == "work",
        most_stages=MAX_STAGES if options.gang != "always" else MAX_GANG_STAGES,
        gang=gang,
        goal=options.goal,
    )


def _gang_modes(options: SplitOptions, budget: Budget) -> Sequence[str]:
    """Return which gangs to search, in order: where there must be one and cannot be, a plan has none."""
    if not _searches_gangs(options, budget):
        return ("never",)
    return ("always", "never") if options.gang == "always" else (options.gang,)


def _searches_gangs(options: SplitOptions, budget: Budget) -> bool:
    fixed = options.stages or options.cuts or options.grids.per_stage or options.objective == "work"
    return not fixed and options.gang != "never" and exchanges(budget.store)


def _cuts(graph: Graph, options: SplitOptions, budget: Budget) -> list[Cut]:
    most_tensors = MOST_TENSORS if options.gang != "always" else len(graph.nodes)
    return cuts_after(graph, options.cuts, most_tensors) if options.cuts else cut_points(graph, budget.limit.room)


def _nothing_fits(network: Graph, options: SplitOptions, budget: Budget) -> ModelError:
    graph = with_tile_pools(network)
    cuts = _cuts(graph, options, budget)
    stages = len(cuts) - 1 if options.cuts else options.stages
    *_, smallest = _storages(graph, options, spread=False)
    return ModelError(why_nothing_fits(graph, cuts, options.grids, stages, budget, smallest))


def _with_gap(
    original: Graph, calibration: Calibration | None, progress: Progress
) -> tuple[Graph, tuple[ModelChange, ...]]:
    if find_head(original) is None:
        raise ModelError("the network has no fully connected head that pooling could replace: use --set gap=never")
    if calibration is None:
        progress("making a pooling head without data")
        graph, how = replace_head_blind(original, progress=progress)
    else:
        progress("fitting a pooling head")
        graph, how = replace_head(original, calibration, progress=progress)
    return graph, (_gap_change(how),)


def _gap_change(how: HeadFit) -> ModelChange:
    return ModelChange(
        what="global average pooling head",
        how=f"{how.how}: {how.note}",
        measured_on="images held out" if how.accuracy_after is not None else "random inputs",
        samples=how.held_out,
        error=None,
        agreement=how.agreement,
        accuracy_before=how.accuracy_before,
        accuracy_after=how.accuracy_after,
    )


def _half_weights(graph: Graph, choices: Sequence[Choice]) -> frozenset[str]:
    nodes = [node for choice in choices if choice.half for node in graph.nodes[choice.start : choice.stop]]
    return precision.storable(graph, nodes)


def _measure_half(before: Graph, after: Graph, half: frozenset[str], calibration: Calibration | None) -> ModelChange:
    shape = before.shape(before.input)
    if calibration is None:
        size = (_RANDOM_INPUTS, shape.channels, shape.height, shape.width)
        images, on = np.random.default_rng(0).standard_normal(size, dtype=np.float32), "random inputs"
    else:
        images, on = calibration.images, "calibration images"
    wanted, got = (_run_all(whole_runner(graph), images) for graph in (before, after))
    large = [value for value in before.weights.values() if value.dtype == np.float32]
    share = sum(before.weights[name].nbytes for name in half) / sum(value.nbytes for value in large)
    accuracies = [
        float((logits.argmax(axis=1) == calibration.labels).mean()) if calibration else None for logits in (wanted, got)
    ]
    return ModelChange(
        what="fp16 storage",
        how=f"{len(half)} weights, {share:.0%} of the network's bytes",
        measured_on=on,
        samples=len(images),
        error=relative_error(got, wanted),
        agreement=agreement(got, wanted),
        accuracy_before=accuracies[0],
        accuracy_after=accuracies[1],
    )


def _run_all(run: _Run, images: NDArray[np.float32]) -> Answer:
    starts = range(0, len(images), _MEASURED_AT_ONCE)
    return joined([run(images[start : start + _MEASURED_AT_ONCE]) for start in starts])


def _deployment_options(
    original: Graph, options: SplitOptions, budget: Budget, changes: Sequence[ModelChange]
) -> tuple[DeploymentOption, ...]:
    graph = with_tile_pools(original)
    room = budget.limit.room
    spans = [(left.position, right.position) for left, right in pairwise(_cuts(graph, options, budget))]
    start, stop = max(spans, key=lambda span: weight_bytes(graph, *span))
    full = weight_bytes(graph, start, stop)
    if full <= room:
        return ()
    half = weight_bytes(graph, start, stop, precision.storable(graph, graph.nodes[start:stop]))
    listed = [DeploymentOption("fp32, one function", 1, full, full <= room, exact=True)]
    listed.append(DeploymentOption("fp16 storage, one function", 1, half, half <= room, exact=False))
    for place in (FETCHED, CONTAINER):
        needed = memory_needed(graph, start, stop, full, place)
        fits = full <= room_in(place, budget) and needed <= max(budget.memory_mb)
        listed.append(DeploymentOption(f"fp32, one function, weights {IN_PLACE[place]}", 1, full, fits, exact=True))
    head = find_head(original)
    if head:
        for what, size, exact in (("fp32", full, True), ("fp16", half, False)):
            parts = -(-size // room)
            if parts > 1:
                listed.append(
                    DeploymentOption(
                        f"{what}, columns over functions", parts, -(-size // parts), fits=True, exact=exact
                    )
                )
        classes = graph.shape(graph.output).elements
        pooled = 4 * classes * (graph.shape(head.trunk_end).channels + 1)
        fitted = next((change.how for change in changes if "pooling" in change.what), "needs --set calibration=DIR")
        listed.append(DeploymentOption(f"global average pooling head ({fitted})", 1, pooled, fits=True, exact=False))
    return tuple(listed)
