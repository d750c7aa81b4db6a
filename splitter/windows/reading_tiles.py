"""The graphs of tiles that read maps of earlier passes: one input, in which their values lie one behind the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from serfer.core.geometry import Rect
from serfer.core.plan.statistics import partial_form
from serfer.splitter.network.graph import STATISTICS, Graph
from serfer.splitter.plan_dir.emit import TileGraph, input_name, tile_graph
from serfer.splitter.tiling.onnx_builder import OnnxBuilder
from serfer.splitter.tiling.regions import Regions
from serfer.splitter.windows.sections import read_maps

_PACKED = "serfer.packed"


def read_form(graph: Graph, regions: Regions) -> Rect:
    """Return the form of what a tile reads: a rectangle of the image, or the form of several maps' values."""
    maps = read_maps(graph)
    if maps == (graph.input,):
        return regions[graph.input]
    size = sum(graph.shape(name).channels * regions[name].area for name in maps)
    return Rect.whole(*partial_form(size, graph.shape(graph.input).channels))


def reading_tile(graph: Graph, regions: Regions, outputs: Mapping[str, Rect]) -> TileGraph:
    """Return the graph of a tile from what it reads, and what windows are told besides."""
    maps = read_maps(graph)
    told = {STATISTICS: graph.shape(STATISTICS).whole} if STATISTICS in graph.shapes else {}
    tile = tile_graph(graph, graph.nodes, {**regions, **told}, [*maps, *told], outputs)
    return tile if maps == (graph.input,) else _packed(tile, graph, regions, maps)


def _packed(tile: TileGraph, graph: Graph, regions: Regions, maps: tuple[str, ...]) -> TileGraph:
    """Return a tile's graph with the values of the maps that it reads as its first input, in their order."""
    builder = OnnxBuilder(graph)
    parts = [f"{_PACKED}.map{number}" for number in range(len(maps))]
    flat_form = builder.constant(f"{_PACKED}.form", np.array([0, -1]))
    flat = builder.append("Reshape", [input_name(0), flat_form], f"{_PACKED}.flat")
    axis = builder.constant(f"{_PACKED}.axis", np.array([1]))
    start = 0
    for part, name in zip(parts, maps, strict=True):
        shape = graph.shape(name).of(regions[name], batch=0)  # 0: as many images as there are
        stop = start + graph.shape(name).channels * regions[name].area
        ends = [builder.constant(f"{part}.{what}", np.array([at])) for what, at in (("start", start), ("stop", stop))]
        values = builder.append("Slice", [flat, *ends, axis], f"{part}.values")
        builder.append("Reshape", [values, builder.constant(f"{part}.form", np.array(shape))], part)
        start = stop
    names = {input_name(number): part for number, part in enumerate(parts)}
    statistics = {input_name(len(maps)): input_name(1)}
    form = read_form(graph, regions)
    packed: list[str | int | None] = ["N", graph.shape(graph.input).channels, form.rows.size, form.cols.size]
    return replace(
        tile,
        nodes=(*builder.nodes, *(_renamed(node, names | statistics) for node in tile.nodes)),
        constants=tile.constants | builder.constants,
        inputs=(
            helper.make_tensor_value_info(input_name(0), TensorProto.FLOAT, packed),
            *(_called(value, input_name(1)) for value in tile.inputs[len(maps) :]),
        ),
    )


def _renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    node.input[:] = [names.get(name, name) for name in node.input]
    return node


def _called(value: ValueInfoProto, name: str) -> ValueInfoProto:
    named = ValueInfoProto()
    named.CopyFrom(value)
    named.name = name
    return named
