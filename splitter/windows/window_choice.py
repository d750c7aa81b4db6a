"""The choice of windows: their side, and the memory of the function that computes them, by what a pixel costs."""

from __future__ import annotations

from dataclasses import dataclass

from serfer.core.errors import UsageError
from serfer.core.plan import FETCHED, ZIP
from serfer.core.units import MS_PER_S
from serfer.splitter.network.graph import Graph
from serfer.splitter.planning.limits import room_in
from serfer.splitter.planning.ort_kernels import predicted_ms, tile_works
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling.cuts import weight_bytes
from serfer.splitter.tiling.regions import Regions
from serfer.splitter.windows.memory import window_mb
from serfer.splitter.windows.sections import read_maps
from serfer.splitter.windows.strides import Strides
from serfer.splitter.windows.window_kinds import middle_regions, rounded_step

STEPS = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Sides of windows, in pixels of the result, among which the planner chooses."""


@dataclass(frozen=True)
class WindowChoice:
    """The side of windows in pixels of the (finest) result, and what the function that computes them has."""

    step: int
    memory_mb: int
    weights_in: str


def choose_windows(graph: Graph, known: tuple[Strides, Strides], budget: Budget, window: int | None) -> WindowChoice:
    """Return the windows that cost the least for a pixel of the result, among those that functions can hold.

    Raises UsageError where none of `window` pixels, or none at all, fits the memory.
    """
    weights = weight_bytes(graph, 0, len(graph.nodes))
    place = ZIP if weights <= room_in(ZIP, budget) else FETCHED
    output = known[0].finest(graph.outputs)
    # Of maps as coarse as a detector's, windows of the usual sides in pixels of the image.
    scale = known[0].rates[output] if len(graph.outputs) > 1 else 1
    sides = [window] if window else [int(scale * side) for side in STEPS]
    steps = [rounded_step(side, *known, output) for side in sides]
    if window and steps != [window]:
        raise UsageError(
            f"--window {window} is not a multiple of the network's stride: the nearest ones are {steps[0]} and "
            f"{steps[0] + rounded_step(1, *known, output)}"
        )
    best: tuple[float, WindowChoice] | None = None
    for step in dict.fromkeys(steps):
        regions = middle_regions(graph, *known, step)
        needed = window_mb(graph, regions, weights, place)
        for memory in (size for size in budget.memory_mb if size >= needed):
            usd = window_usd(graph, regions, budget, memory) / regions[output].area
            if best is None or usd < best[0]:
                best = usd, WindowChoice(step, memory, place)
    if best is None:
        raise UsageError(
            f"windows of {steps[0]} pixels take about {needed:,} MB, and functions have at most "
            f"{max(budget.memory_mb):,}: choose smaller ones, or more --memory"
        )
    return best[1]


def window_usd(graph: Graph, regions: Regions, budget: Budget, memory_mb: int) -> float:
    """Price the computing of a window: dollars without what all windows pay alike."""
    serial, parallel = window_ms(graph, regions, budget)
    functions = budget.facts.functions
    vcpus = memory_mb / functions.memory_per_vcpu
    seconds = (serial / min(1.0, vcpus) + parallel / vcpus) / MS_PER_S
    return functions.price_request + seconds * memory_mb / 1024 * functions.price_gb_second


def window_ms(graph: Graph, regions: Regions, budget: Budget) -> tuple[float, float]:
    outputs = {name: regions[name] for name in graph.outputs}
    return predicted_ms(budget.profiles, tile_works(graph, graph.nodes, regions, read_maps(graph), outputs))
