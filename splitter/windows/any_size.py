"""One plan for images of any size: rules of windows of several sides, and their tiles.

The windows are found on large images and compared with what the network has on the smallest for which there is a rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import lcm, prod

from serfer.core.errors import ModelError, UsageError
from serfer.core.plan import NO_TILE, SizeRules, WindowRules, Windows
from serfer.core.plan.windows import Ending
from serfer.splitter.network.graph import COL_AXIS, ROW_AXIS
from serfer.splitter.windows.any_size_checks import SizeGraphs, check_middle, check_numbers, following
from serfer.splitter.windows.any_size_network import AnySizeNetwork
from serfer.splitter.windows.axis_rules import NetworkAxis, RuledAxis, ruled_axis
from serfer.splitter.windows.map_plan import WindowTiles
from serfer.splitter.windows.same_windows import weights_by_size
from serfer.splitter.windows.window_kinds import check_step

MOST_TILES = 1_200
"""Tiles of a plan at most: each is a graph in the function's package, and takes some milliseconds to write."""
MOST_SIDES = 5
_LEAST_SIDE = 32
"""Pixels of the image that the smallest windows stand for, at least."""


def any_size_tiles(network: AnySizeNetwork, side: int, parts: int = 1) -> WindowTiles:
    """Return rules for windows of `side` pixels and smaller ones, and their tiles.

    The pixels are those of the finest output, or of a pass those of the image. The map and its passes are so many
    `parts` of the plan, which share the room for tiles. Raises ModelError where what the network computes depends on
    the image's size, UsageError for windows that are not multiples of the network's stride, or are of too many kinds.
    """
    if network.network.number is None:
        check_step(side, *network.known, network.rows.finest(network.graph.outputs))
    (high, why), (wide, other) = (network.axes(axis) for axis in (ROW_AXIS, COL_AXIS))
    graphs = SizeGraphs(network, (high, wide), why or other)
    sides = _sides(graphs, side, MOST_TILES // parts)
    check_middle(graphs, sides)
    graphs = graphs.with_lengths(sides)
    if (left := following(graphs, sides)) is not graphs:
        sides = _sides(left, side, MOST_TILES // parts)
        graphs = left.with_lengths(sides)
    check_numbers(graphs, [axis_side.rule for axis_side in sides[-1]])
    rules = SizeRules(tuple(WindowRules(down.rule, across.rule) for down, across in sides), graphs.refused)
    kinds = [(row, col) for down, across in sides for row in down.kinds for col in across.kinds]
    tiles = [graphs.tile(row, col) for row, col in kinds]
    own = weights_by_size(graphs.made)
    first = rules.sides[0]
    rows, cols = (rule.at(axis.size) for rule, axis in zip((first.rows, first.cols), graphs.first, strict=True))
    assert rows is not None and cols is not None  # noqa: S101, PT018 - the rules are made for such images
    windows = Windows(
        (rows,),
        (cols,),
        _table(sides),
        stride=lcm(first.rows.unit, first.cols.unit),
        stride_written=lcm(first.rows.unit_written, first.cols.unit_written),
        rules=rules,
    )
    return WindowTiles(windows, tuple(replace(tile, own=own) for tile in tiles))


def _table(sides: Sequence[tuple[RuledAxis, RuledAxis]]) -> tuple[tuple[int, ...], ...]:
    table, number = list[list[int]](), 0
    width, before = sum(len(across.kinds) for _, across in sides), 0
    for down, across in sides:
        for _ in down.kinds:
            numbers = [*range(number, number + len(across.kinds))]
            table.append([NO_TILE] * before + numbers + [NO_TILE] * (width - before - len(numbers)))
            number += len(numbers)
        before += len(across.kinds)
    return tuple(map(tuple, table))


def _sides(graphs: SizeGraphs, side: int, most: int) -> list[tuple[RuledAxis, RuledAxis]]:
    network, axes = graphs.network, graphs.axes
    wanted, largest = [*_halves(network, side)], (_ruled(axis, side, 0) for axis in axes)
    tiles = prod(len(axis_rule.kinds) for axis_rule in largest)
    if tiles > most:
        more = _fewer_residues(network, axes, most)
        raise UsageError(
            f"windows of images of any size are of {tiles:,} kinds, and a plan has at most {most:,}: make one "
            f"for sizes that are multiples of a number of pixels, such as --size any,multiple={more}, or give the "
            "sizes of your images"
        )
    count = min(len(wanted), most // tiles)
    wanted = [wanted[round((number + 0.5) * len(wanted) / count - 0.5)] for number in range(count)]
    sides, counts, tiles = list[tuple[RuledAxis, RuledAxis]](), [0, 0], 0
    for rules_pair in wanted:
        try:
            pair = _ruled(axes[0], rules_pair, counts[0]), _ruled(axes[1], rules_pair, counts[1])
        except UsageError:
            if not sides:
                raise
            break  # too small for the network's reach
        tiles += prod(len(axis_rule.kinds) for axis_rule in pair)
        if sides and tiles > most:
            break
        sides.append(pair)
        counts = [count + len(axis_rule.kinds) for count, axis_rule in zip(counts, pair, strict=True)]
    return sides


def _ruled(axes: Mapping[Ending, NetworkAxis], side: int, kinds: int) -> RuledAxis:
    return ruled_axis(axes, side // next(iter(axes.values())).pixels, kinds)


def _halves(network: AnySizeNetwork, side: int) -> Iterator[int]:
    rows, cols = network.large
    unit = lcm(rows.pixels, cols.pixels)
    least = _LEAST_SIDE * rows.pixels / rows.known.stride
    for _ in range(MOST_SIDES):
        yield side
        side = side // 2 // unit * unit
        if side < max(unit, least):
            return


def _fewer_residues(network: AnySizeNetwork, axes: Sequence[Mapping[Ending, NetworkAxis]], tiles: int) -> int:
    """Return the least multiple of pixels for which about half as many kinds of windows as there may be are left."""
    most = (tiles / 2) ** 0.5
    unit, residues = network.rows.stride, max(len(axis) for axis in axes)
    multiples = (
        number for number in range(2, unit + 1) if unit % number == 0 and residues * network.multiple / number <= most
    )
    return next(multiples, unit)


def with_common_sizes(rules: Sequence[SizeRules]) -> list[SizeRules]:
    """Return the rules of a map and its passes with the sizes that all of them take; raises ModelError for none."""
    parts = [list(size_rules.sides) for size_rules in rules]
    for name in ("rows", "cols"):
        axes = [[getattr(side, name) for side in sides] for sides in parts]
        leasts = [{end.ending: end.least for end in sides[-1].ends} for sides in axes]
        least = {
            ending: max(shortest[ending] for shortest in leasts)
            for ending in leasts[0]
            if all(ending in shortest for shortest in leasts)
        }
        if not least:
            raise ModelError("no image has a size that all passes over it take: give the sizes of your images")
        for number, sides in enumerate(axes):
            for place, rule in enumerate(sides):
                ends = (replace(e, least=max(e.least, least[e.ending])) for e in rule.ends if e.ending in least)
                parts[number][place] = replace(parts[number][place], **{name: replace(rule, ends=tuple(ends))})
    refused = next((size_rules.refused for size_rules in rules if size_rules.refused), "")
    return [SizeRules(tuple(sides), refused) for sides in parts]
