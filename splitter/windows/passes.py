"""The passes over the image that come before a map whose network looks at the whole of it, as tiles of its plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import lcm

from serfer.core.errors import UsageError
from serfer.core.plan import IMAGE_READ, NO_TILE, ZIP, ImageWindows, KeptMap, StatisticsPass
from serfer.core.units import FLOAT_BYTES
from serfer.splitter.network.graph import Graph, Node
from serfer.splitter.planning.ort_kernels import operator_work
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling.cuts import weight_bytes
from serfer.splitter.tiling.regions import tile_macs, whole_regions
from serfer.splitter.windows.any_size import any_size_tiles, with_common_sizes
from serfer.splitter.windows.any_size_network import AnySizeNetwork
from serfer.splitter.windows.global_statistics import passes_of
from serfer.splitter.windows.map_plan import WindowTiles, window_tiles
from serfer.splitter.windows.memory import window_mb
from serfer.splitter.windows.network_at_sizes import Network
from serfer.splitter.windows.positions import is_positioned
from serfer.splitter.windows.sections import Prices, Section, read_maps, sections_of
from serfer.splitter.windows.strides import Strides
from serfer.splitter.windows.window_choice import WindowChoice, window_usd
from serfer.splitter.windows.window_kinds import rounded_step

_ANY_MB = 1 << 30
_ALWAYS, _NEVER = "always", "never"
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
    return _joined(cut, made, network.sections)


def windows_in_memory(network: Network, size: _Size, side: int) -> WindowTiles:
    """Return windows of about `side` pixels of an image, with their passes, whatever memory they take.

    They are computed in this process, and in no function. Raises as `window_tiles`.
    """
    graph = network.checked(size)
    known = network.strides(graph)
    step = rounded_step(side, *known, known[0].finest(graph.outputs))
    return with_passes(network, [size], window_tiles(network, [size], step), WindowChoice(step, _ANY_MB, ZIP))


def with_ruled_passes(parts: Sequence[AnySizeNetwork], cut: WindowTiles, choice: WindowChoice) -> WindowTiles:
    """Return the same for windows by rules, of the passes in order; raises as `any_size_tiles` besides."""

    def cut_part(part: AnySizeNetwork, side: int) -> WindowTiles:
        return any_size_tiles(part.for_side(side), side, 1 + len(parts))

    pixels = _pixels(cut, choice)
    made = [_fitting(partial(cut_part, part), part.graph, _stride(part.known), pixels, choice) for part in parts]
    return _joined(*_of_common_sizes([cut, *made])) if made else cut


def _of_common_sizes(parts: Sequence[WindowTiles]) -> tuple[WindowTiles, list[WindowTiles]]:
    given = [pass_part.windows for pass_part in parts]
    rules = with_common_sizes([windows.rules for windows in given if windows.rules])
    smallest = rules[0].sides[-1]
    size = smallest.rows.near(given[0].heights[0].size), smallest.cols.near(given[0].widths[0].size)
    made = []
    for part, own in zip(parts, rules, strict=True):
        axes = own.of(*size)
        assert axes is not None  # noqa: S101 - all take such an image
        made.append(replace(part, windows=replace(part.windows, rules=own, heights=axes[:1], widths=axes[1:])))
    return made[0], made[1:]


def _pixels(cut: WindowTiles, choice: WindowChoice) -> int:
    return choice.step * cut.windows.stride // cut.windows.stride_written


def _joined(cut: WindowTiles, made: Sequence[WindowTiles], sections: Sequence[Section] = ()) -> WindowTiles:
    if not made:
        return cut
    tiles, passes, kept = [*cut.tiles], list[StatisticsPass](), list[str]()
    for number, made_pass in enumerate(made):
        windows, graph = made_pass.windows, made_pass.tiles[0].graph
        numbers = tuple(tuple(tile if tile == NO_TILE else tile + len(tiles) for tile in row) for row in windows.tiles)
        maps = tuple(statistic.values for statistic in graph.statistics if statistic.number == number)
        names = sections[number].keeps if sections else ()
        keeps, reads = tuple(KeptMap(graph.shape(name).channels) for name in names), _numbers(graph, kept)
        passes.append(
            StatisticsPass(windows.heights, windows.widths, numbers, maps, windows.rules, reads=reads, keeps=keeps)
        )
        kept += names
        tiles += made_pass.tiles
    windows = replace(cut.windows, passes=tuple(passes), reads=_numbers(cut.tiles[0].graph, kept))
    return WindowTiles(windows, tuple(tiles))


def _numbers(graph: Graph, kept: Sequence[str]) -> tuple[int, ...]:
    maps = read_maps(graph)
    return () if maps == (graph.input,) else tuple(kept.index(name) if name in kept else IMAGE_READ for name in maps)


def with_sections(network: Network, sizes: Sequence[_Size], choice: WindowChoice, budget: Budget, kept: str) -> Network:
    """Return the network cut at the maps that its passes keep, where that costs less than computing them again.

    `kept` is one of KEPT_MAPS (splitter/map_plan.py). Windows that are told where they are read the image.
    """
    images = [*product(*zip(*sizes, strict=True))]
    graphs = [network.cut((height, width)) for height, width in images]
    graph, count = graphs[0], passes_of(graphs[0])
    if not count or kept == _NEVER or is_positioned(graph):
        return network
    sections = sections_of(graph, count, _prices(graph, choice, budget, free=kept == _ALWAYS))
    names = {name for section in sections for name in (*section.reads, *section.keeps)}
    # A network that is built otherwise at another size is computed from the image in every pass.
    return (
        replace(network, sections=sections)
        if all(names <= part_graph.shapes.keys() for part_graph in graphs)
        else network
    )


def _prices(graph: Graph, choice: WindowChoice, budget: Budget, *, free: bool) -> Prices:
    functions = budget.facts.functions
    vcpus = choice.memory_mb / functions.memory_per_vcpu

    def compute(node: Node) -> float:
        work = operator_work(graph, node, graph.shape(node.output).whole)
        return budget.profiles.seconds(work, vcpus) if work else 0.0

    def move(name: str) -> float:
        return 0.0 if free else FLOAT_BYTES * graph.shape(name).elements / functions.bandwidth

    return Prices(compute, move, move)


def check_times(network: Network, cut: WindowTiles, choice: WindowChoice, budget: Budget) -> None:
    """Refuse passes of more than MOST_TIMES the work of the network once; raises UsageError with both prices."""
    windows, size = cut.windows, (cut.windows.heights[0].size, cut.windows.widths[0].size)
    work, usd = zip(
        *(
            _work(cut, image, choice, budget)
            for image in (windows.first, *(pass_.of(*size) for pass_ in windows.passes))
        ),
        strict=True,
    )
    once = work[0]
    if windows.kept:  # the map's windows compute a part of the network
        graph = replace(network, sections=()).checked(size)
        once = tile_macs(graph, graph.nodes, whole_regions(graph, graph.nodes))
    times = sum(work) / (once or 1)
    if times <= MOST_TIMES:
        return
    raise UsageError(
        f"the network looks at the whole image in {len(windows.passes)} steps that follow from one another, so that "
        f"its exact result takes {len(work)} passes over it, {times:.1f} times the multiply-accumulates of one: about "
        f"${sum(usd):.6f} for an image of {size[0]:,} x {size[1]:,} pixels in place of ${sum(usd) / times:.6f}. "
        "statistics=exact makes that plan (with kept_maps=always it computes less, and moves maps instead)"
    )


def _work(cut: WindowTiles, image: ImageWindows, choice: WindowChoice, budget: Budget) -> tuple[int, float]:
    macs, usd = 0, 0.0
    for number, count in Counter(window.tile for window in image).items():
        tile = cut.tiles[number]
        macs += count * tile_macs(tile.graph, tile.graph.nodes, tile.regions)
        usd += count * window_usd(tile.graph, tile.regions, budget, choice.memory_mb)
    return macs, usd


def _fitting(
    cut: Callable[[int], WindowTiles], graph: Graph, unit: int, pixels: int, choice: WindowChoice
) -> WindowTiles:
    weights = weight_bytes(graph, 0, len(graph.nodes))
    while True:
        side = max(unit, pixels // unit * unit)
        made = cut(side)
        needed = max(window_mb(tile.graph, tile.regions, weights, choice.weights_in) for tile in made.tiles)
        if needed <= choice.memory_mb:
            return made
        if side == unit:
            raise UsageError(
                f"windows of {side} pixels, in which statistics over the whole image are added up, take about "
                f"{needed:,} MB, and the map's function has {choice.memory_mb:,}: choose more --memory"
            )
        pixels = side // 2


def _stride(known: tuple[Strides, Strides]) -> int:
    rows, cols = (strides.stride for strides in known)
    return lcm(rows, cols)
