"""The windows of a pass that adds up statistics over the whole image, and the graphs of their partial results.

along an axis   ┌ owns: from every map that statistics are of, the rows that begin with the window's own pixels
┌──────┬──────┬─┴────┐
│      │      │ rest │   The last window owns what is left of each map, so each element of a map has one owner.
└──────┴──────┴──────┘
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from serfer.core.geometry import Rect, Span
from serfer.core.plan.statistics import MAX, MEAN, MIN, SUM, VARIANCE, partial_form
from serfer.splitter.network.graph import NCHW, STATISTICS, Axes, Bins, Graph, Statistic
from serfer.splitter.plan_dir.emit import TileGraph, input_name, output_name, renamed, tile_graph
from serfer.splitter.tiling.by_position import Place, append_bins
from serfer.splitter.tiling.onnx_builder import OnnxBuilder
from serfer.splitter.tiling.receptive_field import spans_of
from serfer.splitter.tiling.regions import Regions
from serfer.splitter.tiling.tiling_rule import append_slice, extent
from serfer.splitter.windows.owned_elements import OwnedElements
from serfer.splitter.windows.same_windows import inlined
from serfer.splitter.windows.sections import read_maps
from serfer.splitter.windows.strides import Strides
from serfer.splitter.windows.window_kinds import AxisSpans, owned, spans_that_make

_NUMBER = "the window's number"
_PARTIAL = "serfer.partial"
_BATCH = f"{_PARTIAL}.batch"
_REDUCTIONS = {MEAN: "ReduceMean", VARIANCE: "ReduceSum", SUM: "ReduceSum", MAX: "ReduceMax", MIN: "ReduceMin"}
_PACKED = "serfer.packed"


def pass_spans(graph: Graph, axis: int, known: Strides, step: int) -> AxisSpans:
    """Return the windows of a pass along an axis of the image, `step` pixels each, a multiple of the stride.

    What they write is their own number.
    """
    units = {name: int(known.rates[name] * step) for name in graph.outputs}
    sizes = {name: extent(graph, name, axis) for name in graph.outputs}
    count = max(1, min(-(-sizes[name] // unit) for name, unit in units.items()))
    targets = {
        name: spans_of([Span(at * unit, (at + 1) * unit if at + 1 < count else sizes[name]) for at in range(count)])
        for name, unit in units.items()
    }
    numbers = np.arange(count)
    spans = spans_that_make(graph, axis, known, targets, numbers * (step // known.stride))
    own = {owned(name): rows for name, rows in targets.items()}
    shapes = [
        (*shape, *(tuple((own[owned(name)][:, at] - at * unit).tolist()) for name, unit in units.items()))
        for at, shape in enumerate(spans.shapes)
    ]
    written = {_NUMBER: np.stack([numbers, numbers + 1])}
    return replace(spans, rows={**spans.rows, **own, **written}, outputs=(_NUMBER,), shapes=tuple(shapes))


@dataclass(frozen=True)
class PassTile:
    """One kind of windows of a pass: the regions that its partial result depends on, and the `parts` that it owns.

    Those of `keeps` are kept for later passes. `own` is as of other windows (map_plan.py). Where windows overlap,
    `units` are those of rows and columns that the window is told how many to skip of its parts (owned_elements.py).
    """

    graph: Graph
    regions: Regions
    parts: Mapping[str, Rect]
    number: int
    keeps: tuple[str, ...] = ()
    own: frozenset[str] = frozenset()
    units: tuple[Strides, Strides] | None = None

    @classmethod
    def of(
        cls, graph: Graph, spans: Mapping[str, Rect], number: int, keeps: tuple[str, ...], own: frozenset[str]
    ) -> PassTile:
        regions = {name: rect for name, rect in spans.items() if name in graph.shapes}
        return cls(graph, regions, {name: spans[owned(name)] for name in graph.outputs}, number, keeps, own)

    @property
    def channels(self) -> int:
        [tensor] = self.graph.output_tensors
        return prod(tensor.dims[:-2])

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        return tuple(statistic for statistic in self.graph.statistics if statistic.number == self.number)

    @property
    def read(self) -> Rect:
        return read_form(self.graph, self.regions)

    @property
    def written(self) -> tuple[Rect, ...]:
        """The form of its one output: its partial result, and what it keeps."""
        return (Rect.whole(*partial_form(self._size, self.channels)),)

    @property
    def _size(self) -> int:
        kept = sum(self.graph.shape(name).channels * self.parts[name].area for name in self.keeps)
        return sum(statistic.values.partial_size for statistic in self.statistics) + kept

    def write(self) -> TileGraph:
        return inlined(self._with_partial_result(reading_tile(self.graph, self.regions, self.parts)), self.own)

    def _owned(self, builder: OnnxBuilder, source: str, part: str) -> OwnedElements | None:
        if self.units is None:
            return None
        graph, (rows, cols) = self.graph, self.units
        axes, units = graph.axes(source) or NCHW, (rows.of(source), cols.of(source))
        return OwnedElements.of(builder, graph, part, len(graph.shapes[source]), axes, self.parts[source], units)

    def _with_partial_result(self, tile: TileGraph) -> TileGraph:
        graph, builder = self.graph, OnnxBuilder(self.graph)
        builder.append("Shape", [_part(0)], _BATCH, {"start": 0, "end": 1})
        found = list[str]()
        for statistic in self.statistics:
            number = graph.outputs.index(statistic.source)
            part, rect = _part(number), self.parts[statistic.source]
            axes = graph.axes(statistic.source) or NCHW
            if statistic.bins is None:
                owned_ones = self._owned(builder, statistic.source, part)
                found += _partial(builder, part, axes, statistic.values.kinds, rect.area, owned_ones)
            else:
                found += self._bins(builder, part, statistic.bins, rect)
        for name in self.keeps:
            part = _part(graph.outputs.index(name))
            flat = builder.constant(f"{part}.kept.form", np.array([0, -1]))
            found.append(builder.append("Reshape", [part, flat], f"{part}.kept"))
        [written] = self.written
        rows, cols = written.rows.size, written.cols.size
        missing = self.channels * rows * cols - self._size
        if missing:
            found.append(_same(builder, f"{_PARTIAL}.rest", missing, 0.0))
        joined = builder.append("Concat", found, f"{_PARTIAL}.flat", {"axis": 1})
        form = builder.constant(f"{_PARTIAL}.form", np.array([0, self.channels, rows, cols]))
        builder.append("Reshape", [joined, form], output_name(0))
        names = {output_name(number): _part(number) for number in range(len(graph.outputs))}
        shape: list[str | int | None] = ["N", self.channels, rows, cols]
        return replace(
            tile,
            nodes=(*(renamed(node, names) for node in tile.nodes), *builder.nodes),
            constants=tile.constants | builder.constants,
            outputs=(helper.make_tensor_value_info(output_name(0), TensorProto.FLOAT, shape),),
        )

    def _bins(self, builder: OnnxBuilder, part: str, bins: Bins, rect: Rect) -> list[str]:
        name = f"{part}.bins{bins.counts[0]}x{bins.counts[1]}"
        image = self.regions[self.graph.input]
        sides = zip(NCHW, (rect.rows, rect.cols), (image.rows, image.cols), bins.growth, strict=True)
        places = [Place(*side, input_name(1)) for side in sides]
        means = append_bins(builder, part, name, bins, places)
        flat = builder.constant(f"{name}.form", np.array([0, -1]))
        count = _same(builder, f"{name}.count", 1, rect.area)
        return [count, builder.append("Reshape", [means, flat], f"{name}.flat")]


def _part(number: int) -> str:
    return f"{_PARTIAL}.owned{number}"


def _same(builder: OnnxBuilder, name: str, count: int, value: float) -> str:
    one = builder.constant(f"{name}.length", np.array([count]))
    shape = builder.append("Concat", [_BATCH, one], f"{name}.shape", {"axis": 0})
    filled = numpy_helper.from_array(np.array([value], np.float32))
    return builder.append("ConstantOfShape", [shape], name, {"value": filled})


def _partial(
    builder: OnnxBuilder, part: str, axes: Axes, kinds: Sequence[str], area: int, owned: OwnedElements | None
) -> list[str]:
    values = [owned.count if owned else _same(builder, f"{part}.count", 1, area)]
    mean = ""
    for kind in kinds:
        name, source, reduction = f"{part}.{kind}", part, _REDUCTIONS[kind]
        if kind == VARIANCE:
            apart = builder.append("Sub", [part, mean], f"{name}.apart")
            source = builder.append("Mul", [apart, apart], f"{name}.square")
        if owned:
            source = owned.only(source, kind, name)
            reduction = _REDUCTIONS[SUM] if kind == MEAN else reduction
        reduced = _reduced(builder, source, axes, reduction, name)
        if kind == MEAN:
            mean = reduced = builder.append("Div", [reduced, owned.mean_count], f"{name}.mean") if owned else reduced
        flat = builder.constant(f"{name}.form", np.array([0, -1]))
        values.append(builder.append("Reshape", [reduced, flat], f"{name}.flat"))
    return values


def _reduced(builder: OnnxBuilder, source: str, axes: Axes, kind: str, name: str) -> str:
    """Append a reduction over columns, then over rows: sums of few numbers at once lose fewer digits."""
    for number, axis in enumerate(sorted(axes, reverse=True)):
        along = builder.constant(f"{name}.axis{number}", np.array([axis]))
        source = builder.append(kind, [source, along], f"{name}.{number}", {"keepdims": 1})
    return source


def read_form(graph: Graph, regions: Regions) -> Rect:
    """Return the form of what a tile reads: a rectangle of the image, or the form of several maps' values."""
    maps = read_maps(graph)
    if maps == (graph.input,):
        return regions[graph.input]
    size = sum(graph.shape(name).channels * regions[name].area for name in maps)
    return Rect.whole(*partial_form(size, graph.shape(graph.input).channels))


def reading_tile(graph: Graph, regions: Regions, outputs: Mapping[str, Rect]) -> TileGraph:
    maps = read_maps(graph)
    told = {STATISTICS: graph.shape(STATISTICS).whole} if STATISTICS in graph.shapes else {}
    tile = tile_graph(graph, graph.nodes, {**regions, **told}, [*maps, *told], outputs)
    return tile if maps == (graph.input,) else _packed(tile, graph, regions, maps)


def _packed(tile: TileGraph, graph: Graph, regions: Regions, maps: tuple[str, ...]) -> TileGraph:
    builder = OnnxBuilder(graph)
    parts = [f"{_PACKED}.map{number}" for number in range(len(maps))]
    flat_form = builder.constant(f"{_PACKED}.form", np.array([0, -1]))
    flat = builder.append("Reshape", [input_name(0), flat_form], f"{_PACKED}.flat")
    start = 0
    for part, name in zip(parts, maps, strict=True):
        shape = graph.shape(name).of(regions[name], batch=0)  # 0: as many images as there are
        stop = start + graph.shape(name).channels * regions[name].area
        values = append_slice(builder, flat, f"{part}.values", 1, Span(start, stop))
        builder.append("Reshape", [values, builder.constant(f"{part}.form", np.array(shape))], part)
        start = stop
    names = {input_name(number): part for number, part in enumerate(parts)}
    statistics = {input_name(len(maps)): input_name(1)}
    form = read_form(graph, regions)
    packed: list[str | int | None] = ["N", graph.shape(graph.input).channels, form.rows.size, form.cols.size]
    return replace(
        tile,
        nodes=(*builder.nodes, *(renamed(node, names | statistics) for node in tile.nodes)),
        constants=tile.constants | builder.constants,
        inputs=(
            helper.make_tensor_value_info(input_name(0), TensorProto.FLOAT, packed),
            *(_called(value, input_name(1)) for value in tile.inputs[len(maps) :]),
        ),
    )


def _called(value: ValueInfoProto, name: str) -> ValueInfoProto:
    named = ValueInfoProto()
    named.CopyFrom(value)
    named.name = name
    return named
