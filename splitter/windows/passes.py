"""The passes over the image that come before a map whose network looks at the whole of it, as tiles of its plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import lcm

from serfer.core.errors import UsageError
from serfer.core.plan import NO_TILE, ImageWindows, StatisticsPass
from serfer.splitter.network.graph import Graph
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling.cuts import weight_bytes
from serfer.splitter.tiling.regions import tile_macs
from serfer.splitter.windows.any_size import any_size_tiles, with_common_sizes
from serfer.splitter.windows.any_size_network import AnySizeNetwork
from serfer.splitter.windows.global_statistics import passes_of
from serfer.splitter.windows.map_plan import Network, WindowChoice, WindowTiles, window_tiles, window_usd
from serfer.splitter.windows.memory import window_mb
from serfer.splitter.windows.strides import Strides

MOST_TIMES = 3.0
"""Multiply-accumulates of all passes, in those of the map alone, above which a user is asked first."""
_Size = tuple[int, int]


def with_passes(network: Network, sizes: Sequence[_Size], cut: WindowTiles, choice: WindowChoice) -> WindowTiles:
    """Return the windows of a map with those of the passes before it; the same where there are none.

    Windows of a pass are as large on the image as those of the map, or smaller, where the map's function would not hold
    them. Raises what `window_tiles` raises, and UsageError for a function that holds no window of a pass.
    """
    made = []
    for number in range(passes_of(network.cut(sizes[0]))):
        part = replace(network, number=number)
        graph = part.checked(sizes[0])
        cut_part = partial(window_tiles, part, sizes)
        made.append(_fitting(cut_part, graph, _stride(part.strides(graph)), _pixels(cut, choice), choice))
    return _joined(cut, made)


def with_ruled_passes(parts: Sequence[AnySizeNetwork], cut: WindowTiles, choice: WindowChoice) -> WindowTiles:
    """Return the same for windows by rules, of the passes in order; raises as `any_size_tiles` besides."""

    def cut_part(part: AnySizeNetwork, side: int) -> WindowTiles:
        return any_size_tiles(part.for_side(side), side, 1 + len(parts))

    pixels = _pixels(cut, choice)
    made = [_fitting(partial(cut_part, part), part.graph, _stride(part.known), pixels, choice) for part in parts]
    return _joined(*_of_common_sizes([cut, *made])) if made else cut


def _of_common_sizes(parts: Sequence[WindowTiles]) -> tuple[WindowTiles, list[WindowTiles]]:
    """Return a map and its passes for the sizes that all of them take, explained by an image of one size."""
    given = [each.windows for each in parts]
    rules = with_common_sizes([each.rules for each in given if each.rules])
    smallest = rules[0].sides[-1]
    size = smallest.rows.near(given[0].heights[0].size), smallest.cols.near(given[0].widths[0].size)
    made = []
    for part, own in zip(parts, rules, strict=True):
        axes = own.of(*size)
        assert axes is not None  # noqa: S101 - all take such an image
        made.append(replace(part, windows=replace(part.windows, rules=own, heights=axes[:1], widths=axes[1:])))
    return made[0], made[1:]


def _pixels(cut: WindowTiles, choice: WindowChoice) -> int:
    """Return the pixels of the image that a side of the map's windows stands for."""
    return choice.step * cut.windows.stride // cut.windows.stride_written


def _joined(cut: WindowTiles, made: Sequence[WindowTiles]) -> WindowTiles:
    """Return the windows of a map behind passes, whose tiles come behind the map's."""
    tiles, passes = [*cut.tiles], list[StatisticsPass]()
    for number, each in enumerate(made):
        windows = each.windows
        numbers = tuple(tuple(tile if tile == NO_TILE else tile + len(tiles) for tile in row) for row in windows.tiles)
        maps = tuple(one.values for one in each.tiles[0].graph.statistics if one.number == number)
        passes.append(StatisticsPass(windows.heights, windows.widths, numbers, maps, windows.rules))
        tiles += each.tiles
    return WindowTiles(replace(cut.windows, passes=tuple(passes)), tuple(tiles)) if passes else cut


def check_times(cut: WindowTiles, choice: WindowChoice, budget: Budget) -> None:
    """Refuse passes that take more than MOST_TIMES the map's own work; raises UsageError with both prices."""
    windows, size = cut.windows, (cut.windows.heights[0].size, cut.windows.widths[0].size)
    work, usd = zip(
        *(_work(cut, each, choice, budget) for each in (windows.first, *(one.of(*size) for one in windows.passes))),
        strict=True,
    )
    times = sum(work) / (work[0] or 1)
    if times <= MOST_TIMES:
        return
    raise UsageError(
        f"the network looks at the whole image in {len(windows.passes)} steps that follow from one another, so that "
        f"its exact result takes {len(work)} passes over it, {times:.1f} times the multiply-accumulates of one: about "
        f"${sum(usd):.6f} for an image of {size[0]:,} x {size[1]:,} pixels in place of ${usd[0]:.6f}. --statistics "
        "exact makes that plan; --statistics sample takes one pass, with what a sample has in place of the image"
    )


def _work(cut: WindowTiles, image: ImageWindows, choice: WindowChoice, budget: Budget) -> tuple[int, float]:
    """Return the multiply-accumulates and the dollars of a pass over an image."""
    macs, usd = 0, 0.0
    for number, count in Counter(window.tile for window in image).items():
        tile = cut.tiles[number]
        macs += count * tile_macs(tile.graph, tile.graph.nodes, tile.regions)
        usd += count * window_usd(tile.graph, tile.regions, budget, choice.memory_mb)
    return macs, usd


def _fitting(
    cut: Callable[[int], WindowTiles], graph: Graph, unit: int, pixels: int, choice: WindowChoice
) -> WindowTiles:
    """Return the windows of a pass, cut by their side, a multiple of a unit, of about so many pixels as fit."""
    weights = weight_bytes(graph, 0, len(graph.nodes))
    while True:
        side = max(unit, pixels // unit * unit)
        made = cut(side)
        needed = max(window_mb(each.graph, each.regions, weights, choice.weights_in) for each in made.tiles)
        if needed <= choice.memory_mb:
            return made
        if side == unit:
            raise UsageError(
                f"windows of {side} pixels, in which statistics over the whole image are added up, take about "
                f"{needed:,} MB, and the map's function has {choice.memory_mb:,}: choose more --memory"
            )
        pixels = side // 2


def _stride(known: tuple[Strides, Strides]) -> int:
    rows, cols = (each.stride for each in known)
    return lcm(rows, cols)
