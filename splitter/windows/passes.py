"""The passes over the image that come before a map whose network looks at the whole of it, as tiles of its plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import lcm

from serfer.core.errors import UsageError
from serfer.core.plan import ImageWindows, StatisticsPass
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling.cuts import weight_bytes
from serfer.splitter.tiling.regions import tile_macs
from serfer.splitter.windows.global_statistics import passes_of, with_statistics
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
    count = passes_of(network.of_maps(sizes[0]).once(with_statistics))
    tiles, passes = [*cut.tiles], list[StatisticsPass]()
    pixels = choice.step * cut.windows.stride // cut.windows.stride_written
    for number in range(count):
        part = replace(network, number=number)
        made = _fitting(part, sizes, pixels, choice)
        first, windows = len(tiles), made.windows
        numbers = tuple(tuple(tile + first for tile in row) for row in windows.tiles)
        maps = tuple(each.values for each in made.tiles[0].graph.statistics if each.number == number)
        passes.append(StatisticsPass(windows.heights, windows.widths, numbers, maps))
        tiles += made.tiles
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


def _fitting(part: Network, sizes: Sequence[_Size], pixels: int, choice: WindowChoice) -> WindowTiles:
    """Return the windows of a pass of about so many pixels that a function holds."""
    graph = part.checked(sizes[0])
    unit = _stride(part.strides(graph))
    weights = weight_bytes(graph, 0, len(graph.nodes))
    while True:
        side = max(unit, pixels // unit * unit)
        cut = window_tiles(part, sizes, side)
        needed = max(window_mb(each.graph, each.regions, weights, choice.weights_in) for each in cut.tiles)
        if needed <= choice.memory_mb:
            return cut
        if side == unit:
            raise UsageError(
                f"windows of {side} pixels, in which statistics over the whole image are added up, take about "
                f"{needed:,} MB, and the map's function has {choice.memory_mb:,}: choose more --memory"
            )
        pixels = side // 2


def _stride(known: tuple[Strides, Strides]) -> int:
    rows, cols = (each.stride for each in known)
    return lcm(rows, cols)
