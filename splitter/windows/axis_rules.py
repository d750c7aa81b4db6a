"""Windows by a rule along an axis of an image of any size.

A network whose image is longer by its stride computes the same as before, and as many rows more. So an axis is known by
how its length is past a multiple of the stride (its residue): windows at its beginning are the same for all lengths,
those at its end for all of a residue, and between them stands one kind.

       first   middle  middle  ...  last of the residue
    ├────────┼───────┼───────┼─────╫────────┤       ╫ both compute what lies between; it is written once
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from serfer.core.errors import UsageError
from serfer.core.geometry import Span
from serfer.core.plan import AxisEnd, AxisRule, AxisWindow
from serfer.splitter.network.graph import Graph
from serfer.splitter.tiling.receptive_field import spans_of
from serfer.splitter.tiling.regions import AxisWalk, axis_node
from serfer.splitter.tiling.tiling_rule import extent
from serfer.splitter.windows.position import place_of, placed
from serfer.splitter.windows.strides import Strides

_MOST_AT_END = 16


@dataclass(frozen=True)
class WindowKind:
    """A kind of windows along an axis: the rows of each tensor, of one that begins `units` after an image does.

    Those at the end are of images whose length is `past` a multiple of the unit, on one of this residue; others, None,
    are the same on all.
    """

    past: int | None
    units: int
    rows: dict[str, Span]

    def at(self, units: int, known: Strides) -> dict[str, Span]:
        """Return the rows of each tensor of a window of this kind that begins after so many units."""
        return {name: span.moved((units - self.units) * known.of(name)) for name, span in self.rows.items()}


@dataclass(frozen=True)
class NetworkAxis:
    """An axis of the network on an image: its graph, and how many rows of each tensor a unit of it makes."""

    graph: Graph
    axis: int
    known: Strides

    def extent(self, tensor: str) -> int:
        """Return the rows of a tensor."""
        return extent(self.graph, tensor, self.axis)

    @cached_property
    def size(self) -> int:
        """The image's pixels along it."""
        return self.extent(self.graph.input)

    def windows(self, made: Sequence[Span]) -> list[WindowKind]:
        """Return windows that make rows of the result, each from a multiple of the unit on."""
        output = self.graph.output
        nodes = [axis_node(self.graph, node, self.axis) for node in self.graph.nodes]
        walk = AxisWalk(nodes, {output: spans_of(made)})
        while walk.position:
            walk.step()
        of = self.known.of(output)
        columns = {name: rows.T.tolist() for name, rows in walk.spans.items()}
        return [
            WindowKind(None, span.start // of, {name: Span(*rows[number]) for name, rows in columns.items()})
            for number, span in enumerate(made)
        ]


@dataclass(frozen=True)
class RuledAxis:
    """The rule along an axis of windows of a side, and their kinds by number."""

    rule: AxisRule
    kinds: tuple[WindowKind, ...]


def ruled_axis(axes: Mapping[int, NetworkAxis], side: int, kinds: int) -> RuledAxis:
    """Return the rule of windows of a side along an axis, whose kinds have numbers from `kinds` on.

    Raises UsageError for windows that are too small for what the network reads.
    """
    axis = next(iter(axes.values()))
    known, output, source = axis.known, axis.graph.output, axis.graph.input
    unit = known.of(output)
    result = axis.extent(output)
    [middle] = axis.windows([Span(start, start + side) for start in [(result - side) // 2 // unit * unit]])
    at_zero = middle.at(0, known)
    clear = max(0, *(-(span.start // known.of(name)) for name, span in at_zero.items())) * unit
    count = max(1, ceil(clear / side))
    if 2 * (count * side + clear) > result or not _inside(middle, axis):
        raise UsageError(
            f"the network reads {clear:,} pixels around one of its result: too many for windows of {side} on images of "
            "any size; give a larger --window, or the sizes of your images"
        )
    first = axis.windows([Span(number * side, (number + 1) * side) for number in range(count)])
    middle = WindowKind(
        None, clear // unit, middle.at(clear // unit, known)
    )  # near 0, where coordinates round the least
    listed = [*first, middle]
    ends = []
    for residue, each in axes.items():
        last, windows = _last(each, at_zero, side)
        least = _least(each, first, windows, last - clear // unit)
        ends.append(
            AxisEnd(
                residue=residue,
                least=least,
                rest=each.extent(output) - each.size // known.stride * unit,
                last=(last - each.size // known.stride) * unit,
                windows=tuple(
                    _relative(window, kinds + len(listed) + number, each, each.size // known.stride)
                    for number, window in enumerate(windows)
                ),
                start=None,
            )
        )
        listed += [replace(window, past=residue) for window in windows]
    rule = AxisRule(
        unit=known.stride,
        unit_written=unit,
        first=tuple(_relative(window, kinds + number, axis, 0) for number, window in enumerate(first)),
        middle=AxisWindow(kinds + count, at_zero[source], at_zero[output]),
        ends=tuple(ends),
        step=float(1 / known.rates[output]),
    )
    return RuledAxis(_placed(rule, axes), tuple(listed))


def _inside(window: WindowKind, axis: NetworkAxis) -> bool:
    """Return whether a window reads nothing of either end of any tensor."""
    return all(span.start > 0 and span.stop < axis.extent(name) for name, span in window.rows.items())


def _relative(window: WindowKind, number: int, axis: NetworkAxis, units: int) -> AxisWindow:
    """Return a window, counted from where the axis has so many units."""
    unit = axis.known.stride
    read, written = window.rows[axis.graph.input], window.rows[axis.graph.output]
    return AxisWindow(number, read.moved(-units * unit), written.moved(-units * axis.known.of(axis.graph.output)))


def _last(axis: NetworkAxis, middle: Mapping[str, Span], side: int) -> tuple[int, list[WindowKind]]:
    """Return the last unit at which a window in the middle may begin, and the windows after it, aligned to the end."""
    known, output = axis.known, axis.graph.output
    unit, result = known.of(output), axis.extent(output)
    last = min((axis.extent(name) - span.stop) // known.of(name) for name, span in middle.items())
    starts = [(result - side) // unit * unit]
    while starts[0] - side > last * unit:
        starts.insert(0, starts[0] - side)
        if len(starts) > _MOST_AT_END:
            raise UsageError(
                f"windows of {side} pixels are too small for what the network reads around a pixel: give a larger "
                "--window"
            )
    stops = [*starts[1:], result]
    return last, axis.windows([Span(*ends) for ends in zip(starts, stops, strict=True)])


def _least(axis: NetworkAxis, first: Sequence[WindowKind], last: Sequence[WindowKind], between: int) -> int:
    """Return the shortest axis that ends as this one does and has these windows.

    It may be shorter until a window at one of its ends reads up to the other one, or by `between` units, until none
    fits between.
    """
    known = axis.known
    after = (
        (axis.extent(name) - span.stop) // known.of(name) for window in first for name, span in window.rows.items()
    )
    before = (span.start // known.of(name) for window in last for name, span in window.rows.items())
    return axis.size - min(between, *after, *before) * known.stride


def _placed(rule: AxisRule, axes: Mapping[int, NetworkAxis]) -> AxisRule:
    """Return the rule with where results start, which may differ from residue to residue."""
    ends = []
    for end in rule.ends:
        axis = axes[end.residue]
        windows = rule.at(axis.size)
        assert windows is not None  # noqa: S101 - the end is that of this axis
        place = place_of(axis.graph, axis.graph.output, axis.axis, axis.known.rates)
        ends.append(replace(end, start=placed(windows, place, 1 / axis.known.rates[axis.graph.output]).start))
    return replace(rule, ends=tuple(ends))
