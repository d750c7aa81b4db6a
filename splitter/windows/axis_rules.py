"""Windows by a rule along an axis of an image of any size.

A network whose image is longer by its stride computes the same as before, and as many rows more. So an axis is known by
how its length is past a multiple of the stride (its residue): windows at its beginning are the same for all lengths,
those at its end for all of a residue, and between them stands one kind.

       first   middle  middle  ...  last of the residue
    ├────────┼───────┼───────┼─────╫────────┤       ╫ both compute what lies between; it is written once
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from serfer.core.errors import ModelError, UsageError
from serfer.core.geometry import Span
from serfer.core.plan import AxisEnd, AxisResult, AxisRule, AxisWindow, AxisWindows
from serfer.core.plan.windows import Ending, at_least
from serfer.splitter.network.graph import Graph
from serfer.splitter.tiling.receptive_field import spans_of
from serfer.splitter.tiling.regions import AxisWalk, axis_node
from serfer.splitter.tiling.tiling_rule import extent
from serfer.splitter.windows.position import place_of, placed
from serfer.splitter.windows.strides import Strides

_MOST_AT_END = 16


Units = tuple[int, int | None]
"""The first unit of a window and the one after its last, None for all that is left of the image."""


@dataclass(frozen=True)
class WindowKind:
    """A kind of windows along an axis: the rows of each tensor, of one that begins `units` after an image does.

    It has `made` of the outputs, and `rows` of all tensors. Those at the end are of images that end as `past` says, on
    one of these; others, None, are the same on all.
    """

    past: Ending | None
    units: int
    rows: dict[str, Span]
    made: dict[str, Span]

    def at(self, units: int, known: Strides) -> WindowKind:
        rows, made = (
            {name: span.moved((units - self.units) * known.of(name)) for name, span in spans.items()}
            for spans in (self.rows, self.made)
        )
        return WindowKind(self.past, units, rows, made)


@dataclass(frozen=True)
class NetworkAxis:
    """An axis of the network on an image: its graph, and how many rows of each tensor a unit of it makes.

    What windows write are rows of the first output, or of a pass (`in_units`), which writes statistics, units.
    """

    graph: Graph
    axis: int
    known: Strides
    in_units: bool = False

    def extent(self, tensor: str) -> int:
        return extent(self.graph, tensor, self.axis)

    @cached_property
    def size(self) -> int:
        return self.extent(self.graph.input)

    @cached_property
    def units(self) -> int:
        return min(self.extent(name) // self.known.of(name) for name in self.graph.outputs)

    @property
    def unit_written(self) -> int:
        return 1 if self.in_units else self.known.of(self.graph.output)

    @property
    def pixels(self) -> int:
        """What a unit makes of what sides of windows are counted in: the finest output, or of a pass the image."""
        return self.known.stride if self.in_units else self.known.of(self.known.finest(self.graph.outputs))

    @property
    def result(self) -> int:
        return self.units if self.in_units else self.extent(self.graph.output)

    def moving(self, window: WindowKind) -> Iterator[tuple[str, Span]]:
        return ((name, span) for name, span in window.rows.items() if self.known.rates[name])

    def written(self, window: WindowKind) -> Span:
        if not self.in_units:
            return window.made[self.graph.output]
        return Span(window.units, min(span.stop // self.known.of(name) for name, span in window.made.items()))

    def windows(self, units: Sequence[Units]) -> list[WindowKind]:
        made = {
            name: [Span(start * of, self.extent(name) if stop is None else stop * of) for start, stop in units]
            for name, of in ((name, self.known.of(name)) for name in self.graph.outputs)
        }
        nodes = [axis_node(self.graph, node, self.axis) for node in self.graph.nodes]
        walk = AxisWalk(nodes, {name: spans_of(spans) for name, spans in made.items()})
        while walk.position:
            walk.step()
        columns = {name: rows.T.tolist() for name, rows in walk.spans.items()}
        return [
            WindowKind(
                None,
                start,
                {name: Span(*rows[number]) for name, rows in columns.items()},
                {name: spans[number] for name, spans in made.items()},
            )
            for number, (start, _) in enumerate(units)
        ]

    def ruled(self, windows: AxisWindows) -> list[WindowKind]:
        spans = [window.computed for window in windows.windows]
        of = self.unit_written
        return self.windows(
            [(span.start // of, None if span.stop == windows.result else span.stop // of) for span in spans]
        )


@dataclass(frozen=True)
class RuledAxis:
    """The rule along an axis of windows of a side, and their kinds by number."""

    rule: AxisRule
    kinds: tuple[WindowKind, ...]


def ruled_axis(axes: Mapping[Ending, NetworkAxis], side: int, kinds: int) -> RuledAxis:
    """Return the rule of windows of `side` units along an axis, whose kinds have numbers from `kinds` on.

    Raises UsageError for windows that are too small for what the network reads, ModelError for outputs that do not end
    together.
    """
    axis = next(iter(axes.values()))
    known, source = axis.known, axis.graph.input
    start = (axis.units - side) // 2
    [middle] = axis.windows([(start, start + side)])
    at_zero = middle.at(0, known)
    clear = max(0, *(-(span.start // known.of(name)) for name, span in axis.moving(at_zero)))
    count = max(1, ceil(clear / side))
    if 2 * (count * side + clear) > axis.units or not _inside(middle, axis):
        raise UsageError(
            f"the network reads {clear * axis.pixels:,} pixels around one of its result: too many for windows of "
            f"{side * axis.pixels} on images of any size; give a larger --window, or the sizes of your images"
        )
    first = axis.windows([(number * side, (number + 1) * side) for number in range(count)])
    listed = [*first, middle.at(clear, known)]  # near 0, where coordinates round the least
    ends = []
    for (residue, sizes), examples in axes.items():
        last, windows = _last(examples, at_zero, side)
        units = examples.size // known.stride
        least = _least(examples, first, windows, last - clear)
        ends.append(
            AxisEnd(
                residue=residue,
                least=at_least(least, (residue, sizes), known.stride) or examples.size,
                rest=examples.result - units * examples.unit_written,
                last=(last - units) * examples.unit_written,
                windows=tuple(
                    _relative(window, kinds + len(listed) + number, examples, units)
                    for number, window in enumerate(windows)
                ),
                start=None,
                sizes=sizes,
            )
        )
        listed += [replace(window, past=(residue, sizes)) for window in windows]
    rule = AxisRule(
        unit=known.stride,
        unit_written=axis.unit_written,
        first=tuple(_relative(window, kinds + number, axis, 0) for number, window in enumerate(first)),
        middle=AxisWindow(kinds + count, at_zero.rows[source], axis.written(at_zero)),
        ends=tuple(ends),
        step=known.stride / axis.unit_written,
    )
    return RuledAxis(rule if axis.in_units else _placed(rule, axes), tuple(listed))


def _inside(window: WindowKind, axis: NetworkAxis) -> bool:
    return all(span.start > 0 and span.stop < axis.extent(name) for name, span in axis.moving(window))


def _relative(window: WindowKind, number: int, axis: NetworkAxis, units: int) -> AxisWindow:
    read, written = window.rows[axis.graph.input], axis.written(window)
    return AxisWindow(number, read.moved(-units * axis.known.stride), written.moved(-units * axis.unit_written))


def _last(axis: NetworkAxis, middle: WindowKind, side: int) -> tuple[int, list[WindowKind]]:
    known = axis.known
    longest = max(axis.graph.outputs, key=lambda name: axis.extent(name) // known.of(name))
    if axis.extent(longest) // known.of(longest) >= axis.units + side:
        raise ModelError(
            f"the outputs cover parts of the image that are too different for common windows: {longest!r} has "
            f"{axis.extent(longest)} rows or columns, which end more than a window after those of another output"
        )
    last = min((axis.extent(name) - span.stop) // known.of(name) for name, span in axis.moving(middle))
    starts = [axis.units - side]
    while starts[0] - side > last:
        starts.insert(0, starts[0] - side)
        if len(starts) > _MOST_AT_END:
            raise UsageError(
                f"windows of {side * axis.pixels} pixels are too small for what the network reads around a pixel: "
                "give a larger --window"
            )
    return last, axis.windows([*zip(starts, [*starts[1:], None], strict=True)])


def _least(axis: NetworkAxis, first: Sequence[WindowKind], last: Sequence[WindowKind], between: int) -> int:
    """Return the shortest axis that ends as this one does and has these windows.

    It may be shorter until a window at one of its ends reads up to the other one, or by `between` units, until none
    fits between. The last window is needed where any output has more than whole units.
    """
    known = axis.known
    left = any(axis.extent(name) > axis.units * known.of(name) for name in axis.graph.outputs)
    needed = int(left and axis.result == axis.units * axis.unit_written)
    after = (
        (axis.extent(name) - span.stop) // known.of(name) - needed
        for window in first
        for name, span in axis.moving(window)
    )
    before = (span.start // known.of(name) for window in last for name, span in axis.moving(window))
    return axis.size - min(between, *after, *before) * known.stride


def _placed(rule: AxisRule, axes: Mapping[Ending, NetworkAxis]) -> AxisRule:
    ends = []
    for end in rule.ends:
        axis = axes[end.ending]
        units, outputs = axis.size // axis.known.stride, axis.graph.outputs
        others = tuple(
            AxisResult(axis.extent(name) - units * axis.known.of(name), None, axis.known.stride / axis.known.of(name))
            for name in outputs[1:]
        )
        few = end.least + 2 * ceil(rule.middle.written.size / rule.unit_written) * rule.unit  # with some in the middle
        windows = replace(rule, ends=(replace(end, others=others, sizes=()),)).at(few)
        assert windows is not None  # noqa: S101 - it is no shorter than the end's least
        start, *starts = (
            placed(
                windows.of_output(number),
                place_of(axis.graph, name, axis.axis, axis.known.rates),
                1 / axis.known.rates[name],
            ).start
            for number, name in enumerate(outputs)
        )
        others = tuple(replace(other, start=first) for other, first in zip(others, starts, strict=True))
        ends.append(replace(end, start=start, others=others))
    return replace(rule, ends=tuple(ends))
