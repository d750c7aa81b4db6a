"""Writes the operators of a stage as the ONNX graph of one tile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serfer.core.geometry import Rect
from serfer.splitter.network.graph import STATISTICS, Graph, Node, Weights
from serfer.splitter.network.onnx_models import model_of
from serfer.splitter.plan_dir.weights import WeightsFile
from serfer.splitter.tiling.onnx_builder import OnnxBuilder
from serfer.splitter.tiling.operators import TILE_SUM, is_replicated, rule_of, whole_rule
from serfer.splitter.tiling.regions import Regions, input_region, whole_regions
from serfer.splitter.tiling.tiling_rule import TileOperator

_SAME_CLASS = frozenset({"Cast", "Identity", "Squeeze", "Unsqueeze"})


def input_name(number: int) -> str:
    return f"input{number}"


def output_name(number: int) -> str:
    return f"output{number}"


@dataclass(frozen=True)
class TileGraph:
    """One tile's operators, with what they read: the network's `weights`, whole or sliced, and `constants` of its own.

    Weights in `half` are stored in fp16. `inside` has those that lie in the body of an operator, by its name, `domains`
    the versions of operator sets besides ONNX's own.
    """

    nodes: tuple[onnx.NodeProto, ...]
    weights: Weights
    constants: Weights
    half: frozenset[str]
    inputs: tuple[onnx.ValueInfoProto, ...]
    outputs: tuple[onnx.ValueInfoProto, ...]
    opset: int
    inside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    domains: Mapping[str, int] = field(default_factory=dict)

    def model(self, files: Mapping[str, WeightsFile]) -> onnx.ModelProto:
        """Write the ONNX model, with a free batch axis; large weights point into `files`, by relative path."""
        nodes: list[onnx.NodeProto] = []
        initializers = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        inside = {name for names in self.inside.values() for name in names}
        for name, value in self.weights.items():
            if name in inside:
                continue
            tensors, readers = _stored(name, value, files)
            initializers += tensors
            nodes += readers
        nodes += [self._with_inside(node, files) if node.name in self.inside else node for node in self.nodes]
        return model_of(
            nodes, self.inputs, self.outputs, initializers, opset=self.opset, name="tile", domains=self.domains
        )

    def _with_inside(self, node: onnx.NodeProto, files: Mapping[str, WeightsFile]) -> onnx.NodeProto:
        tensors = [tensor for name in self.inside[node.name] for tensor in _stored(name, self.weights[name], files)[0]]
        whole = onnx.NodeProto()
        whole.CopyFrom(node)
        next(item for item in whole.attribute if item.name == "body").g.initializer.extend(tensors)
        return whole


_Stored = tuple[list[TensorProto], list[onnx.NodeProto]]


def _stored(name: str, value: NDArray[Any], files: Mapping[str, WeightsFile]) -> _Stored:
    whole = next(((location, file) for location, file in files.items() if name in file), None)
    if whole:
        return _reference(whole[1], name, whole[0])
    parts = {part: (file, location) for location, file in files.items() for part in file.slices_of(name)}
    if sum(part.of(value).size for part in parts) != value.size:  # small parts are in no file
        return [numpy_helper.from_array(value, name)], []
    order = sorted(parts, key=lambda part: part.span)
    stored = [_reference(file, part.name, location) for part in order for file, location in [parts[part]]]
    join = helper.make_node("Concat", [part.name for part in order], [name], axis=order[0].axis)
    return [tensor for tensors, _ in stored for tensor in tensors], [
        *(cast for _, casts in stored for cast in casts),
        join,
    ]


def _reference(file: WeightsFile, key: str, location: str) -> _Stored:
    if not file.is_half(key):
        return [file.reference(key, key, location)], []
    half = f"{key}.half"
    cast = helper.make_node("Cast", [half], [key], to=TensorProto.FLOAT)
    return [file.reference(key, half, location)], [cast]


def tile_graph(
    graph: Graph, nodes: Iterable[Node], regions: Regions, inputs: Sequence[str], outputs: Mapping[str, Rect]
) -> TileGraph:
    """Write the operators of one tile: `inputs` are its input tensors, `outputs` the regions that it computes.

    In the graph, they are called by `input_name` and `output_name`.
    """
    builder = OnnxBuilder(graph)
    views = _Views(graph, regions, builder)
    for node in nodes:
        _write(views, node)
    targets = [views.of(name, rect) for name, rect in outputs.items()]
    used = {name for node in builder.nodes for name in node.input}
    used.update(name for names in builder.inside.values() for name in names)
    names = {name: input_name(number) for number, name in enumerate(inputs)}
    names |= {name: output_name(number) for number, name in enumerate(targets)}
    taken = {new: f"{new}.inner" for new in names.values()}  # other tensors with one of these names are renamed
    return TileGraph(
        nodes=tuple(renamed(node, {**taken, **names}) for node in builder.nodes),
        weights={taken.get(name, name): value for name, value in builder.weights.items() if name in used},
        constants={taken.get(name, name): value for name, value in builder.constants.items() if name in used},
        half=frozenset(taken.get(name, name) for name in builder.half & used),
        inputs=tuple(_value(graph, name, regions[name], input_name(number)) for number, name in enumerate(inputs)),
        outputs=tuple(
            _value(graph, name, rect, output_name(number)) for number, (name, rect) in enumerate(outputs.items())
        ),
        opset=graph.opset,
        inside=builder.inside,
        domains=builder.domains,
    )


class _Views:
    def __init__(self, graph: Graph, regions: Regions, builder: OnnxBuilder) -> None:
        self.graph, self.regions, self.builder = graph, regions, builder
        self._names: dict[tuple[str, Rect], str] = {}

    def of(self, name: str, part: Rect) -> str:
        have = self.regions[name]
        if have == part:
            return name
        if (name, part) not in self._names:
            view = self.builder.own_name(f"{name}.view{len(self._names)}")
            self._names[name, part] = self.builder.crop(name, part.within(have), self.graph.axes(name), view)
        return self._names[name, part]


def _write(views: _Views, node: Node) -> None:
    graph, region = views.graph, views.regions[node.output]
    reads = {name: input_region(graph, node, name, region) for name in graph.activations(node)}
    names = {"": ""}  # an input that is absent
    names |= {name: views.of(name, read.clipped) for name, read in reads.items()}
    names |= {name: views.builder.weight(name) for name in graph.constants(node)}
    inputs = [names[name] for name in node.inputs]
    whole = is_replicated(graph, node) and node.kind != TILE_SUM
    rule = None if whole else rule_of(graph, node)
    (rule or whole_rule(node)).write(
        views.builder, TileOperator(graph, node, region, reads, inputs, views.regions.get(graph.input))
    )


def renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """Give a node's tensors their names in `names`, and return it."""
    for tensors in (node.input, node.output):
        tensors[:] = [names.get(name, name) for name in tensors]
    return node


def _value(graph: Graph, tensor: str, region: Rect, name: str) -> onnx.ValueInfoProto:
    _, *sizes = graph.shape(tensor).of(region, batch=1)
    if graph.sizes is None:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *sizes])
    axes: list[str | int | None] = [None] * len(sizes)
    if tensor == graph.input:
        sides = (graph.sizes.input.rows, graph.sizes.input.columns)
        axes = [sizes[0], *(None if side.varies else side.least for side in sides)]
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *axes])


def in_one_piece(graph: Graph) -> TileGraph:
    whole = {name: graph.shape(name).whole for name in graph.outputs}
    return tile_graph(graph, graph.nodes, whole_regions(graph, graph.nodes), [graph.input], whole)


def whole_tile(graph: Graph) -> TileGraph:
    """Write the whole network as one tile; behind its outputs come the scores of those that are classes.

    Statistics over the whole image are its second input, where the graph has them cut out.
    """
    inputs = [graph.input, *([STATISTICS] if graph.statistics else [])]
    regions = whole_regions(graph, graph.nodes) | {name: graph.shape(name).whole for name in inputs}
    outputs = dict.fromkeys((*graph.outputs, *_scores(graph)))
    return tile_graph(graph, graph.nodes, regions, inputs, {name: regions[name] for name in outputs})


def _scores(graph: Graph) -> list[str]:
    """Return the maps whose largest channel the outputs name that are whole numbers; none if one is something else."""
    made = {node.output: node for node in graph.nodes}
    found = []
    for output, tensor in zip(graph.outputs, graph.output_tensors, strict=True):
        if tensor.dtype.startswith("float"):
            continue
        node = made[output]
        while node.kind in _SAME_CLASS and node.inputs[0] in made:
            node = made[node.inputs[0]]
        if node.kind != "ArgMax":
            return []
        found.append(node.inputs[0])
    return found if len({*found}) == len(found) else []
