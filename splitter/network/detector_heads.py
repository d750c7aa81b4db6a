"""A detector in two: the maps of its heads, which windows compute, and what makes boxes of them.

    image ──convolutions──▶ maps of heads, of several strides ──reshaped, joined, decoded──▶ predictions (N, K, C)
            local: the trunk                                     constants of one size: the decoder

The heads are the last tensors that are local, that is maps of which each position follows from a neighbourhood of the
image, before operators that mix positions. The decoder is kept as the file has it, at the size of a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxscript import ir

from serfer.core.errors import ModelError
from serfer.core.plan.answers import Answer, as_answer
from serfer.splitter.network.as_is import names_read
from serfer.splitter.network.as_is_tail import InferredTensors, made_by, part_of
from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.graph import MAP_RANK
from serfer.splitter.network.ingest import prepared
from serfer.splitter.network.onnx_models import session_of
from serfer.splitter.network.outputs import MOST_OUTPUTS
from serfer.splitter.network.size_guards import Size, SizedExport, SizedExports
from serfer.splitter.network.source import Array, Source
from serfer.splitter.network.unsupported import refuse

_WINDOWS = frozenset({"AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool", "Resize", "Upsample"})
_LOCAL = _WINDOWS | frozenset(
    {
        *("Add", "BatchNormalization", "Cast", "Clip", "Concat", "DepthToSpace", "Div", "Dropout", "Elu", "Exp"),
        *("Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Max", "Min", "Mish", "Mul", "Neg", "PRelu"),
        *("Pad", "Pow", "Relu", "Selu", "Sigmoid", "Slice", "Softplus", "SpaceToDepth", "Split", "Sqrt", "Sub"),
        *("Swish", "Tanh"),
    }
)
"""Operators of which a map's position follows from a neighbourhood, along whatever axes of a map they work."""
_ALONG_CHANNELS = frozenset({"Concat", "Split"})
_KEEPS_THE_BEST = frozenset({"NonMaxSuppression", "NonZero", "TopK", "EfficientNMS_TRT"})


@dataclass(frozen=True)
class DetectorParts:
    """The parts of a detector: the names of its `heads`, and what makes its `output` of them in a frame."""

    heads: tuple[str, ...]
    output: str
    decoder: onnx.ModelProto

    def trunk(self, model: ExternalWeightsModel) -> ExternalWeightsModel:
        """Return the model up to the heads, for images of any size; raises ModelError where it has no such tensors."""
        makers = {name: node for node in model.proto.graph.node for name in node.output if name}
        if missing := [name for name in self.heads if name not in makers]:
            raise ModelError(f"the maps of the detector's heads cannot be found in the file: {', '.join(missing)}")
        image = model.inputs[0].name
        trunk = part_of(model, made_by(makers, self.heads, {image}), self.heads)
        for dim in trunk.inputs[0].type.tensor_type.shape.dim[2:]:
            dim.Clear()
        return trunk

    def decoded(self) -> Callable[[Mapping[str, NDArray[Any]]], list[NDArray[Any]]]:
        session = session_of(self.decoder)
        return lambda maps: list(session.run(None, dict(maps)))


def detector_parts(model: ExternalWeightsModel, size: tuple[int, int], output: str) -> DetectorParts:
    """Find the heads of a detector at images of `size`, from which it makes its `output`.

    Raises ModelError that names the operator where one looks at the whole image before the heads, or keeps the best
    boxes itself.
    """
    light = prepared(model, *size)
    graph, image = light.proto.graph, light.inputs[0].name
    makers = {name: node for node in graph.node for name in node.output if name}
    local = _local(light, size)
    nodes = made_by(makers, [output], local)
    if output in local or not nodes:
        raise ModelError(f"the output {output!r} is a map, of which no boxes are made: leave --output boxes out")
    order = {id(node): number for number, node in enumerate(graph.node)}
    nodes.sort(key=lambda node: order[id(node)])
    for node in nodes:
        if node.op_type in _KEEPS_THE_BEST:
            why = (
                "it keeps the best boxes of an image, and boxes of windows are chosen together; export the network "
                "without it (nms=None, ultralytics' default)"
            )
            raise refuse(node.name or node.output[0], node.op_type, why)
    _check_decoder(light, nodes, local, image)
    heads = tuple(
        name for name in _in_order(graph) if name in local and any(name in names_read(node) for node in nodes)
    )
    if not 0 < len(heads) <= MOST_OUTPUTS:
        raise ModelError(f"a detector has 1 to {MOST_OUTPUTS} maps of heads, and this network has {len(heads)}")
    return DetectorParts(heads, output, _decoder(light, nodes, heads, output))


def _in_order(graph: onnx.GraphProto) -> list[str]:
    return [name for node in graph.node for name in node.output if name]


def _local(model: ExternalWeightsModel, size: tuple[int, int]) -> set[str]:
    graph, tensors = model.proto.graph, InferredTensors.of(model.proto)
    constants = {tensor.name: numpy_helper.to_array(tensor).shape for tensor in graph.initializer}
    constants |= {name: value.shape for name, value in model.large.items()}
    local = {model.inputs[0].name}
    for node in graph.node:
        read = [name for name in node.input if name]
        maps = [name for name in read if name not in constants]
        shapes = [tensors.shapes.get(name, ()) for name in node.output if name]
        whole = all(_is_map(shape, size) for shape in shapes)
        if (
            maps
            and whole
            and node.op_type in _LOCAL
            and local.issuperset(maps)
            and _keeps_places(node, read, constants)
        ):
            local.update(name for name in node.output if name)
    return local


def _is_map(shape: tuple[int, ...], size: tuple[int, int]) -> bool:
    return (
        len(shape) == MAP_RANK
        and shape[0] == 1
        and all(0 < cells <= 4 * side for cells, side in zip(shape[2:], size, strict=True))
    )


def _keeps_places(node: onnx.NodeProto, read: Sequence[str], constants: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether an operator has no constant for each position, and joins or splits channels alone."""
    if node.op_type in _ALONG_CHANNELS:
        axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
        return axis in (1, 1 - MAP_RANK)
    if node.op_type in _WINDOWS or node.op_type in ("Pad", "Slice", "BatchNormalization"):
        return True
    sides = [constants[name][-2:] for name in read if len(constants.get(name, ())) > 1]
    return all(max(side) == 1 for side in sides)


def _check_decoder(model: ExternalWeightsModel, nodes: Sequence[onnx.NodeProto], local: set[str], image: str) -> None:
    """Refuse a decoder that has convolutions of neighbourhoods: what comes before it is not all of the network."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.proto.graph.initializer}
    shapes |= {name: value.shape for name, value in model.large.items()}
    convolving = [node for node in nodes if node.op_type in _WINDOWS and max(_kernel(node, shapes)) > 1]
    if not convolving and not any(image in names_read(node) for node in nodes):
        return
    first = next((node for node in nodes if local & {*names_read(node)}), nodes[0])
    why = "it looks at the whole image, which no window has; use a detector without it"
    raise refuse(first.name or first.output[0], first.op_type, why)


def _kernel(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    if node.op_type in ("Conv", "ConvTranspose") and len(node.input) > 1:
        return shapes.get(node.input[1], (1,))[2:] or (1,)
    return (2,)


def _decoder(
    model: ExternalWeightsModel, nodes: Sequence[onnx.NodeProto], heads: Sequence[str], output: str
) -> onnx.ModelProto:
    shapes = InferredTensors.of(model.proto).shapes
    part = part_of(model, nodes, [output])
    graph, image = part.proto.graph, model.inputs[0].name
    given = [value for value in graph.input if value.name != image]
    del graph.input[:]
    graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in heads)
    graph.input.extend(given)
    whole = part.whole()
    return ir.to_proto(whole)


def trunk_of(source: Source, parts: DetectorParts) -> Source:
    trunk, sized = parts.trunk(source.onnx), source.sized
    session = session_of(ir.to_proto(trunk.whole()))
    name = trunk.inputs[0].name

    def run(batch: Array) -> Answer:
        values = session.run([*parts.heads], {name: np.ascontiguousarray(batch)})
        return as_answer(dict(zip(parts.heads, values, strict=True)))

    def export(size: Size) -> SizedExport:
        assert sized is not None  # noqa: S101 - of a module
        whole = sized.of(size)
        return replace(whole, onnx=parts.trunk(whole.onnx))

    outputs = parts.heads if source.outputs else ()
    return replace(source, onnx=trunk, run=run, outputs=outputs, sized=SizedExports(export) if sized else None)
