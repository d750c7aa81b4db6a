"""Gangs: consecutive stages that one function runs while its tiles exchange halos (serfer.core.plan.Gang)."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from serfer.core.plan import ZIP
from splitter.network.graph import Graph
from splitter.planning.limits import memory_needed, room_in
from splitter.planning.options import Budget
from splitter.planning.planner import Choice
from splitter.tiling.cuts import weight_bytes


def gangs_of_runs(
    graph: Graph,
    choices: Sequence[Choice],
    budget: Budget,
    half: Container[str] = (),
    places: Sequence[str] = (ZIP,),
) -> tuple[list[Choice], tuple[range, ...]]:
    """Return every maximal run of stages that can be a gang, from the first stage on, and the stages with its memory.

    Its weights are in the first of the `places` that holds them, and it has the most memory that one of its stages was
    given, or the least that holds them.
    """
    kept, gangs, start = [*choices], list[range](), 0
    while start < len(choices):
        stop, held = start + 1, (choices[start].memory_mb, choices[start].weights_in)
        while stop < len(choices) and (longer := _held(graph, choices[start : stop + 1], budget, half, places)):
            stop, held = stop + 1, longer
        if stop - start > 1:
            gangs.append(range(start, stop))
            memory, place = held
            kept[start:stop] = [replace(each, memory_mb=memory, weights_in=place) for each in choices[start:stop]]
        start = stop
    return kept, tuple(gangs)


def _held(
    graph: Graph, run: Sequence[Choice], budget: Budget, half: Container[str], places: Sequence[str]
) -> tuple[int, str] | None:
    """Return the MB of a gang of some stages, and the place of its weights, or None where they cannot be one."""
    first, sizes = run[0].grid, [weight_bytes(graph, each.start, each.stop, half if each.half else ()) for each in run]
    place = next((place for place in places if sum(sizes) <= room_in(place, budget)), None)
    if first.tiles == 1 or any(each.grid.columns for each in run) or not place:
        return None
    if any(each.grid != first and each.grid.tiles >= first.tiles for each in run):
        return None
    whole = weight_bytes(graph, run[0].start, run[-1].stop)
    least = max(memory_needed(graph, run[0].start, run[-1].stop, whole, place), *(each.memory_mb for each in run))
    return next(((size, place) for size in budget.memory_mb if size >= least), None)
