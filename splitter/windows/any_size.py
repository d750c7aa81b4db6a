"""Windows by rules for images of any size, from the network at a few sizes.

A network whose image is longer by its stride computes the same as before, and as many rows more. So an axis is known by
how its length is past a multiple of the stride (its residue): windows at its beginning are the same for all lengths,
those at its end for all of a residue, and between them stands one kind.

       first   middle  middle  ...  last of the residue
    ├────────┼───────┼───────┼─────╫────────┤       ╫ both compute what lies between; it is written once

The windows are found on large images and compared with what the network has on the smallest for which there is a rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, lcm, prod

from serfer.core.errors import ModelError, UsageError
from serfer.core.geometry import Rect, Span
from serfer.core.plan import NO_TILE, AxisEnd, AxisRule, AxisWindow, AxisWindows, SizeRules, WindowRules, Windows
from serfer.splitter.network.graph import COL_AXIS, ROW_AXIS, Graph
from serfer.splitter.network.unsupported import CannotSplitError, refuse
from serfer.splitter.plan_dir.emit import TileGraph
from serfer.splitter.tiling.receptive_field import spans_of
from serfer.splitter.tiling.regions import AxisWalk, axis_node
from serfer.splitter.tiling.tiling_rule import extent
from serfer.splitter.windows.map_plan import Network, WindowTile, WindowTiles
from serfer.splitter.windows.position import place_of, placed
from serfer.splitter.windows.same_windows import check_alike, check_equal, weights_by_size
from serfer.splitter.windows.strides import LONGER, Strides, check_shifts
from serfer.splitter.windows.wanted_sizes import MOST_PIXELS, AnySize
from serfer.splitter.windows.window_kinds import AxisSpans, check_step

MOST_TILES = 1_200
"""Tiles of a plan at most: each is a graph in the function's package, and takes some milliseconds to write."""
MOST_SIDES = 5
_WINDOWS = 8
"""Windows along an axis of the large images, at least."""
_LEAST_SIDE = 32
"""Pixels of the image that the smallest windows stand for, at least."""
_MOST_AT_END = 16
_MOST_UNIT = 1_024
_MOST_PAST = 32
"""Sizes that follow each other, among which one is looked for that the network takes."""
_SMALLER = 8
"""By what large images are smaller on which residues are tried as well."""
_LENGTHS = 64
"""Lengths of images, one unit apart, for which it is asked whether the network goes the same way."""
_MOST_REASON = 300
"""Characters of why a network does not take some lengths, as the plan keeps it."""
_ONE_A_SIZE = "what it computes depends on the image's size: give the sizes of your images, --size HEIGHTxWIDTH"


@dataclass(frozen=True)
class _Kind:
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
class _Axis:
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

    def windows(self, made: Sequence[Span]) -> list[_Kind]:
        """Return windows that make rows of the result, each from a multiple of the unit on."""
        output = self.graph.output
        nodes = [axis_node(self.graph, node, self.axis) for node in self.graph.nodes]
        walk = AxisWalk(nodes, {output: spans_of(made)})
        while walk.position:
            walk.step()
        of = self.known.of(output)
        columns = {name: rows.T.tolist() for name, rows in walk.spans.items()}
        return [
            _Kind(None, span.start // of, {name: Span(*rows[number]) for name, rows in columns.items()})
            for number, span in enumerate(made)
        ]


@dataclass(frozen=True)
class _Side:
    """The rule along an axis of windows of a side, and their kinds by number."""

    rule: AxisRule
    kinds: tuple[_Kind, ...]


@dataclass(frozen=True)
class AnySizeNetwork:
    """A network and the sizes that images may have; `base` is about the side of images that its windows are found on.

    Its units divide `base`, and it takes images of `past` more pixels. `rows` and `cols` are the rows (or columns) of
    each tensor for a unit of the image, by which windows begin.
    """

    network: Network
    base: int
    past: int
    rows: Strides
    cols: Strides
    multiple: int

    @classmethod
    def of(cls, network: Network, wanted: AnySize) -> AnySizeNetwork:
        """Return the network with its units; raises ModelError where it looks at more than neighbourhoods."""
        base, past, graph = base_size(wanted), *_taken(network, wanted)
        if graph.statistics or len(graph.outputs) > 1:
            what = "looks at the whole image" if graph.statistics else "has several outputs"
            raise ModelError(f"the network {what}: give the sizes of your images, --size HEIGHTxWIDTH")
        known = network.strides(graph)
        rows, cols = (replace(each, stride=lcm(each.stride, wanted.multiple)) for each in known)
        if max(rows.stride, cols.stride) > _MOST_UNIT or base % rows.stride or base % cols.stride:
            raise ModelError(
                f"the network's strides of {rows.stride:,} and {cols.stride:,} pixels are too unusual for images of "
                "any size: give the sizes of your images, --size HEIGHTxWIDTH"
            )
        return cls(network, base, past, rows, cols, wanted.multiple)

    def for_side(self, side: int) -> AnySizeNetwork:
        """Return the network on images that have several windows of a side, in pixels of the result."""
        graph = self.graph
        least = min(extent(graph, graph.output, axis) for axis in (ROW_AXIS, COL_AXIS))
        return replace(self, base=self.base * ceil(_WINDOWS * side / least))

    @property
    def graph(self) -> Graph:
        """The network on a large image."""
        return self.network.at(self.base + self.past, self.base + self.past)

    @property
    def known(self) -> tuple[Strides, Strides]:
        """The units of rows and of columns."""
        return self.rows, self.cols

    def axis(self, size: tuple[int, int], axis: int) -> _Axis:
        """Return an axis of the network at a size; raises ModelError for one that it does not take as others."""
        height, width = size
        self._check_way((2 * height, width) if axis == COL_AXIS else (height, 2 * width))
        graph = self.network.checked(size)
        known = self.known[axis - ROW_AXIS]
        missing = next((node for node in graph.nodes if node.output not in known.rates), None)
        if missing is not None:
            raise refuse(missing.name, missing.kind, "whether the network has it depends on the image's size")
        check_shifts(graph, axis, known)
        return _Axis(graph, axis, known)

    def _check_way(self, size: tuple[int, int]) -> None:
        """Raise ModelError where the module's Python goes another way than for images of the base size."""
        sized = self.network.source.sized
        broken = sized.of((self.base + self.past,) * 2).guards.broken(size) if sized else None
        if broken:
            height, width = size
            raise ModelError(
                f"the network's Python looks at the image's size: {height} x {width} pixels do not meet {broken}; give "
                "the sizes of your images, --size HEIGHTxWIDTH"
            )

    def check_ways(self, lengths: Iterable[int]) -> None:
        """Raise ModelError where images of such lengths, high, wide or square, go another way than large ones."""
        if self.network.source.sized:
            for each in lengths:
                for size in ((each, each), (each, self.base), (self.base, each), (2 * each, each), (each, 2 * each)):
                    self._check_way(size)

    def axes(self, axis: int) -> tuple[dict[int, _Axis], str]:
        """Return the axis for each residue that the network takes, and why there are some that it does not.

        Raises ModelError where it takes none.
        """
        taken, errors = dict[int, _Axis](), dict[int, ModelError]()
        unit, other = self.known[axis - ROW_AXIS].stride, self.base + self.past
        smaller = max(1, self.base // _SMALLER // unit) * unit
        for residue in range(0, unit, self.multiple):
            lengths = [self.base + residue, smaller + residue]
            try:
                large, small = (
                    self.axis((each, other) if axis == ROW_AXIS else (other, each), axis) for each in lengths
                )
                check_extents(small.graph, large, (smaller - self.base) // unit)
            except ModelError as error:
                errors[residue] = error
            else:
                taken[residue] = large
        if not taken:
            raise errors[self.past % unit]
        return taken, _shortened(next(iter(errors.values()))) if errors else ""


def _taken(network: Network, wanted: AnySize) -> tuple[int, Graph]:
    """Return by how many pixels a square image is larger than the base size which the network takes, and its graph."""
    base, first = base_size(wanted), None
    for past in range(0, _MOST_PAST * wanted.multiple, wanted.multiple):
        try:
            return past, network.checked((base + past, base + past))
        except CannotSplitError as error:
            raise first or error from None
        except ModelError as error:
            first = first or error
    assert first is not None  # noqa: S101 - there is a first size
    raise first


def _shortened(why: ModelError) -> str:
    return str(why).split("; ")[0][:_MOST_REASON]


def base_size(wanted: AnySize) -> int:
    """Return the side of the images on which windows are found: so large that most windows are in the middle."""
    return lcm(LONGER, wanted.multiple)


def any_size_tiles(network: AnySizeNetwork, side: int) -> WindowTiles:
    """Return rules for windows of `side` pixels of the result and smaller ones, and their tiles.

    Raises ModelError where what the network computes depends on the image's size, UsageError for windows that are not
    multiples of the network's stride, or are of too many kinds.
    """
    check_step(side, *network.known, network.graph.output)
    (high, why), (wide, other) = (network.axes(axis) for axis in (ROW_AXIS, COL_AXIS))
    graphs = _Graphs(network, (high, wide), why or other)
    sides = _sides(graphs, side)
    _check_middle(graphs, sides)
    graphs = graphs.with_lengths(sides)
    if (left := _following(graphs, sides)) is not graphs:
        sides = _sides(left, side)
        graphs = left.with_lengths(sides)
    rules = SizeRules(tuple(WindowRules(down.rule, across.rule) for down, across in sides), graphs.refused)
    kinds = [(row, col) for down, across in sides for row in down.kinds for col in across.kinds]
    tiles = [graphs.tile(row, col) for row, col in kinds]
    own = weights_by_size(graphs.made)
    rows, cols = (
        rule.at(each.size) for rule, each in zip((rules.sides[0].rows, rules.sides[0].cols), graphs.first, strict=True)
    )
    assert rows is not None and cols is not None  # noqa: S101, PT018 - the rules are made for such images
    output = network.graph.output
    windows = Windows(
        (rows,),
        (cols,),
        _table(sides),
        stride=lcm(*(each.stride for each in network.known)),
        stride_written=lcm(*(each.of(output) for each in network.known)),
        rules=rules,
    )
    return WindowTiles(windows, tuple(replace(tile, own=own) for tile in tiles))


def _table(sides: Sequence[tuple[_Side, _Side]]) -> tuple[tuple[int, ...], ...]:
    """Return the tile of each kind of rows and kind of columns: kinds of windows of two sides never meet."""
    table, number = list[list[int]](), 0
    width, before = sum(len(across.kinds) for _, across in sides), 0
    for down, across in sides:
        for _ in down.kinds:
            numbers = [*range(number, number + len(across.kinds))]
            table.append([NO_TILE] * before + numbers + [NO_TILE] * (width - before - len(numbers)))
            number += len(numbers)
        before += len(across.kinds)
    return tuple(map(tuple, table))


def _sides(graphs: _Graphs, side: int) -> list[tuple[_Side, _Side]]:
    """Return the rules of windows of `side` and of halves of it: as many as there is room for, evenly chosen."""
    network, axes = graphs.network, graphs.axes
    wanted, largest = [*_halves(network, side)], (_side(each, side, 0, network) for each in axes)
    tiles = prod(len(each.kinds) for each in largest)
    if tiles > MOST_TILES:
        more = _fewer_residues(network, axes)
        raise UsageError(
            f"windows of images of any size are of {tiles:,} kinds, and a plan has at most {MOST_TILES:,}: make one "
            f"for sizes that are multiples of a number of pixels, such as --size any,multiple={more}, or give the "
            "sizes of your images"
        )
    count = min(len(wanted), MOST_TILES // tiles)
    wanted = [wanted[round((number + 0.5) * len(wanted) / count - 0.5)] for number in range(count)]
    sides, counts, tiles = list[tuple[_Side, _Side]](), [0, 0], 0
    for each in wanted:
        try:
            pair = _side(axes[0], each, counts[0], network), _side(axes[1], each, counts[1], network)
        except UsageError:
            if not sides:
                raise
            break  # too small for the network's reach
        tiles += prod(len(one.kinds) for one in pair)
        if sides and tiles > MOST_TILES:
            break
        sides.append(pair)
        counts = [count + len(one.kinds) for count, one in zip(counts, pair, strict=True)]
    return sides


def _halves(network: AnySizeNetwork, side: int) -> Iterator[int]:
    """Yield a side and halves of it that are multiples of the unit, as long as they stand for pixels enough."""
    graph = network.graph
    unit = lcm(*(each.of(graph.output) for each in network.known))
    least = _LEAST_SIDE * network.rows.of(graph.output) / network.rows.stride
    for _ in range(MOST_SIDES):
        yield side
        side = side // 2 // unit * unit
        if side < max(unit, least):
            return


def _fewer_residues(network: AnySizeNetwork, axes: Sequence[Mapping[int, _Axis]]) -> int:
    """Return the least multiple of pixels for which about half as many kinds of windows as there may be are left."""
    most = (MOST_TILES / 2) ** 0.5
    unit, residues = network.rows.stride, max(len(each) for each in axes)
    multiples = (each for each in range(2, unit + 1) if unit % each == 0 and residues * network.multiple / each <= most)
    return next(multiples, unit)


def _side(axes: Mapping[int, _Axis], side: int, kinds: int, network: AnySizeNetwork) -> _Side:
    """Return the rule of windows of a side along an axis, whose kinds have numbers from `kinds` on."""
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
    middle = _Kind(None, clear // unit, middle.at(clear // unit, known))  # near 0, where coordinates round the least
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
    return _Side(_placed(rule, axes, network), tuple(listed))


def _inside(window: _Kind, axis: _Axis) -> bool:
    """Return whether a window reads nothing of either end of any tensor."""
    return all(span.start > 0 and span.stop < axis.extent(name) for name, span in window.rows.items())


def _relative(window: _Kind, number: int, axis: _Axis, units: int) -> AxisWindow:
    """Return a window, counted from where the axis has so many units."""
    unit = axis.known.stride
    read, written = window.rows[axis.graph.input], window.rows[axis.graph.output]
    return AxisWindow(number, read.moved(-units * unit), written.moved(-units * axis.known.of(axis.graph.output)))


def _last(axis: _Axis, middle: Mapping[str, Span], side: int) -> tuple[int, list[_Kind]]:
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


def _least(axis: _Axis, first: Sequence[_Kind], last: Sequence[_Kind], between: int) -> int:
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


def _placed(rule: AxisRule, axes: Mapping[int, _Axis], network: AnySizeNetwork) -> AxisRule:
    """Return the rule with where results start, which may differ from residue to residue."""
    ends = []
    for end in rule.ends:
        axis = axes[end.residue]
        windows = rule.at(axis.size)
        assert windows is not None  # noqa: S101 - the end is that of this axis
        place = place_of(network.graph, axis.graph.output, axis.axis, axis.known.rates)
        ends.append(replace(end, start=placed(windows, place, 1 / axis.known.rates[axis.graph.output]).start))
    return replace(rule, ends=tuple(ends))


@dataclass(frozen=True)
class _Graphs:
    """The graphs of images of which tiles are made: those of the residues of rows and of columns that meet.

    `axes` are rows and columns by their residues, of large images; `refused` says why there are not all residues. Tiles
    are made of shorter images, whose `lengths` are by residues, too: ONNX Runtime rounds coordinates less there.
    """

    network: AnySizeNetwork
    axes: tuple[Mapping[int, _Axis], Mapping[int, _Axis]]
    refused: str
    lengths: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {})
    made: list[Graph] = field(default_factory=list)

    def with_lengths(self, sides: Sequence[tuple[_Side, _Side]]) -> _Graphs:
        """Return graphs of the shortest images that have the largest windows, and so all others."""
        rows, cols = ({end.residue: end.least for end in side.rule.ends} for side in sides[0])
        return replace(self, lengths=(rows, cols))

    @property
    def first(self) -> tuple[_Axis, _Axis]:
        """Rows and columns of the first residue."""
        rows, cols = (next(iter(axes.values())) for axes in self.axes)
        return rows, cols

    def of(self, size: tuple[int, int]) -> Graph:
        """Return the graph of an image's size."""
        graph = self.network.network.checked(size)
        if not any(graph is each for each in self.made):
            self.made.append(graph)
        return graph

    def at(self, past: Sequence[int]) -> Graph:
        """Return the graph of an image of these residues; raises ModelError where one side depends on the other."""
        rows, cols = (lengths[each] for lengths, each in zip(self.lengths, past, strict=True))
        graph = self.of((rows, cols))
        for axes, each, length in zip(self.axes, past, (rows, cols), strict=True):
            axis = axes[each]
            check_extents(graph, axis, (length - axis.size) // axis.known.stride)
        return graph

    def tile(self, row: _Kind, col: _Kind, past: tuple[int, int] | None = None) -> WindowTile:
        """Return the tile of a kind of rows and one of columns, of images of a residue where they say none."""
        residues, regions = [], []
        for number, (kind, axes) in enumerate(zip((row, col), self.axes, strict=True)):
            residues.append(kind.past if kind.past is not None else past[number] if past else next(iter(axes)))
            axis = axes[residues[-1]]
            shift = 0 if kind.past is None else (self.lengths[number][kind.past] - axis.size) // axis.known.stride
            regions.append(kind.at(kind.units + shift, axis.known))
        return _tile(self.at(residues), *regions)


def _tile(graph: Graph, rows: Mapping[str, Span], cols: Mapping[str, Span]) -> WindowTile:
    regions = {name: Rect(span, cols[name]) for name, span in rows.items()}
    return WindowTile(graph, regions, (regions[graph.output],))


def check_extents(graph: Graph, axis: _Axis, units: int) -> None:
    """Refuse a graph whose tensors are not as long as an axis's, but for so many units."""
    for node in axis.graph.nodes:
        wanted = axis.extent(node.output) + units * axis.known.of(node.output)
        if node.output not in graph.shapes or extent(graph, node.output, axis.axis) != wanted:
            raise refuse(node.name, node.kind, _ONE_A_SIZE)


def _check_middle(graphs: _Graphs, sides: Sequence[tuple[_Side, _Side]]) -> None:
    """Compare windows in the middle of large images with one another, and ask of other sizes for other ways."""
    network, (rows, cols) = graphs.network, graphs.first
    graph = graphs.of((rows.size, cols.size))
    rows, cols = replace(rows, graph=graph), replace(cols, graph=graph)
    for side in sides:
        down, across = _spans(rows, side[0].rule), _spans(cols, side[1].rule)
        check_alike(graph, *down, across[0], rows=True)
        check_alike(graph, *across, down[0], rows=False)
    ends = [(end.least, each.rule.unit) for each in sides[-1] for end in each.rule.ends]
    lengths = sorted({least + more * unit for least, unit in ends for more in range(_LENGTHS)})
    doubled = (network.base << power for power in range((MOST_PIXELS // network.base).bit_length()))
    network.check_ways((*lengths[:: max(1, len(lengths) // (2 * _LENGTHS))], *doubled))


def _spans(axis: _Axis, rule: AxisRule) -> tuple[AxisSpans, AxisWindows]:
    """Return the windows of an axis by a rule, with the rows of each tensor."""
    windows = rule.at(axis.size)
    assert windows is not None  # noqa: S101 - the rule is made of such axes
    kinds = axis.windows([each.computed for each in windows.windows])
    rows = {name: spans_of([kind.rows[name] for kind in kinds]) for name in kinds[0].rows}
    return AxisSpans(axis.size, rows, axis.graph.outputs, axis.graph.input, ((),) * len(kinds)), windows


def _following(graphs: _Graphs, sides: Sequence[tuple[_Side, _Side]]) -> _Graphs:
    """Return the graphs without the residues whose small images have other windows than their large ones.

    Raises ModelError, that names an operator whose size or constants do not follow the image's, where the first has.
    """
    dropped: list[set[int]] = [set(), set()]
    refused = graphs.refused
    for number, axes in enumerate(graphs.axes):
        for place, residue in enumerate(axes):
            try:
                for side in sides:
                    _check_residue(graphs, side, number, place)
            except ModelError as error:
                if place == 0:
                    raise
                dropped[number].add(residue)
                refused = refused or _shortened(error)
    if not any(dropped):
        return graphs
    rows, cols = (
        {residue: axis for residue, axis in axes.items() if residue not in out}
        for axes, out in zip(graphs.axes, dropped, strict=True)
    )
    return replace(graphs, axes=(rows, cols), refused=refused)


def _check_residue(graphs: _Graphs, sides: tuple[_Side, _Side], number: int, place: int) -> None:
    """Compare the windows of the smallest image of a residue, of one a unit larger and of a large one with tiles."""
    rows, cols = (side.rule.ends[place if axis == number else 0] for axis, side in enumerate(sides))
    least, units = (rows.least, cols.least), [side.rule.unit for side in sides]
    for size in (
        least,
        (least[0] + units[0], least[1] + units[1]),
        (graphs.axes[0][rows.residue].size, graphs.axes[1][cols.residue].size),
    ):
        _check_size(graphs, sides, size, (rows.residue, cols.residue))
    down, across = (side.kinds[: len(side.rule.first) + 1] for side in sides)  # which all residues have
    for row, col in ((row, col) for row in down for col in across):
        _compare(graphs.tile(row, col), graphs.tile(row, col, (rows.residue, cols.residue)), graphs.network.base)


def _check_size(graphs: _Graphs, sides: tuple[_Side, _Side], size: tuple[int, int], past: tuple[int, int]) -> None:
    """Compare windows of an image, all kinds of rows and of columns, with those of large images."""
    network = graphs.network
    graph = graphs.of(size)
    found: list[list[tuple[_Kind, _Kind]]] = []
    for number, side in enumerate(sides):
        large = graphs.axes[number][past[number]]
        axis = _Axis(graph, large.axis, large.known)
        check_extents(graph, large, (axis.size - large.size) // large.known.stride)
        windows = side.rule.at(axis.size)
        assert windows is not None  # noqa: S101 - the rule is for this size
        kinds = axis.windows([each.computed for each in windows.windows])
        offset = side.rule.first[0].kind
        pairs = {
            each.kind: (kind, side.kinds[each.kind - offset]) for each, kind in zip(windows.windows, kinds, strict=True)
        }
        for here, known in pairs.values():
            if known.at(here.units, large.known) != here.rows:
                wanted = known.at(here.units, large.known)
                differing = (node for node in graph.nodes if wanted.get(node.output) != here.rows.get(node.output))
                node = next(differing, graph.nodes[0])
                raise refuse(node.name, node.kind, _ONE_A_SIZE)
        found.append([*pairs.values()])
    rows, cols = found
    for number in range(max(len(rows), len(cols))):
        (row, known_row), (col, known_col) = rows[number % len(rows)], cols[number % len(cols)]
        _compare(graphs.tile(known_row, known_col, past), _tile(graph, row.rows, col.rows), network.base)


def _compare(one: WindowTile, other: WindowTile, size: int) -> None:
    """Refuse an operator whose graph or constants differ in two tiles."""
    if one.graph is other.graph:
        return
    own = weights_by_size((one.graph, other.graph))
    written: list[TileGraph] = [replace(each, own=own).write() for each in (one, other)]
    check_equal(one.graph.nodes, iter(written), size, _ONE_A_SIZE)
