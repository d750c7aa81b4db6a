"""An ONNX model to a plain graph.

Plain means: one image input (1, C, H, W), one output (1, K), constants apart from activations, explicit padding, no
batch size baked into a shape, and only operators that lie between the input and the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxscript.optimizer
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference

from serfer.core.errors import ModelError
from splitter import operators
from splitter.graph import Graph, Node, Weights
from splitter.windows import explicit_pads, floor_pads


def from_onnx(model: onnx.ModelProto, height: int, width: int) -> Graph:
    """Make the graph of an ONNX model at an input of height x width.

    Raises ModelError for a model that is not one image in, one (N, K) score tensor out.
    """
    model = _with_static_input(model, height, width)
    try:
        model = onnxscript.optimizer.optimize(_without_late_windows(model))
        model = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except ModelError:
        raise
    except Exception as error:  # the checkers raise many kinds, all meaning that the model is not sound
        raise ModelError(f"the model does not fit an input of {height} x {width}: {_first_line(error)}") from error
    graph = _read(model)
    return _with_free_batch(_with_explicit_padding(_without_dead_nodes(graph)))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _with_static_input(model: onnx.ModelProto, height: int, width: int) -> onnx.ModelProto:
    """Fix the input to (1, C, height, width), so that every shape becomes a number."""
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        raise ModelError(
            f"the model has {len(inputs)} inputs and {len(model.graph.output)} outputs; one image in and one score "
            "tensor out are needed"
        )
    tensor = inputs[0].type.tensor_type
    dims = tensor.shape.dim
    if len(dims) != 4 or tensor.elem_type != onnx.TensorProto.FLOAT:  # noqa: PLR2004 - (N, C, H, W)
        raise ModelError(f"the model's input {inputs[0].name!r} is no float32 image tensor (N, C, H, W)")
    for axis, size in ((2, height), (3, width)):
        if dims[axis].HasField("dim_value") and dims[axis].dim_value not in (0, size):
            raise ModelError(
                f"the model takes {dims[2].dim_value} x {dims[3].dim_value} images, the example has {height} x {width}"
            )
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    constants_free = [value for value in copy.graph.input if value.name not in constants]
    for axis, size in ((0, 1), (2, height), (3, width)):
        constants_free[0].type.tensor_type.shape.dim[axis].dim_value = size
    del copy.graph.value_info[:]
    copy.graph.output[0].type.tensor_type.ClearField("shape")
    return copy


def _without_late_windows(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write pools in floor mode where ceil mode adds a window that would start past the map.

    ONNX leaves such a window out, and so do runtimes; ONNX's shape inference counts it.
    """
    rounded_up = [node for node in model.graph.node if _attributes(node).get("ceil_mode")]
    for node in rounded_up:  # in order: each may change the size of the maps after it
        inferred = shape_inference.infer_shapes(model, data_prop=True)
        shapes = {value.name: _static_shape(value) for value in (*inferred.graph.value_info, *inferred.graph.input)}
        sizes = [shapes.get(name, ())[2:] for name in (node.input[0], node.output[0])]
        pads = floor_pads(_attributes(node), *sizes) if all(sizes) else None
        if pads is None:
            continue
        if node.op_type == "AveragePool" and pads != list(_attributes(node).get("pads") or [0, 0, 0, 0]):
            raise ModelError(f"operator {node.name!r} (AveragePool) has a window past its map; turn its ceil mode off")
        kept = [item for item in node.attribute if item.name not in ("ceil_mode", "pads")]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("pads", pads)])
    return model


def _attributes(proto: onnx.NodeProto) -> dict[str, Any]:
    return {item.name: helper.get_attribute_value(item) for item in proto.attribute}


def _read(model: onnx.ModelProto) -> Graph:
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values = [*model.graph.value_info, *model.graph.input, *model.graph.output]
    shapes = {value.name: _static_shape(value) for value in values}
    nodes: list[Node] = []
    for index, proto in enumerate(model.graph.node):
        if proto.op_type == "Constant":
            weights[proto.output[0]] = _constant(proto)
            continue
        if proto.op_type == "Split":
            nodes.extend(_slices(proto, shapes, weights))
            continue
        if proto.domain not in ("", "ai.onnx"):
            raise ModelError(f"operator {proto.op_type} of domain {proto.domain!r} is not part of ONNX")
        nodes.append(
            Node(
                name=proto.name or f"{proto.op_type}_{index}",
                kind=proto.op_type,
                inputs=tuple(proto.input),
                output=proto.output[0],
                attributes=_attributes(proto),
            )
        )
    graph_input = next(value.name for value in model.graph.input if value.name not in weights)
    opset = next(item.version for item in model.opset_import if item.domain in ("", "ai.onnx"))
    return Graph(tuple(nodes), weights, graph_input, model.graph.output[0].name, shapes, opset)


def _slices(proto: onnx.NodeProto, shapes: dict[str, tuple[int, ...]], weights: Weights) -> Iterator[Node]:
    """Write a Split as one Slice for each of its outputs; a node has one output here."""
    axis = _attributes(proto).get("axis", 0)
    start = 0
    for output in proto.output:
        stop = start + shapes[output][axis]
        bounds = {f"{output}.starts": start, f"{output}.stops": stop, f"{output}.axes": axis}
        weights.update({name: np.array([value]) for name, value in bounds.items()})
        yield Node(f"{proto.name}.{output}", "Slice", (proto.input[0], *bounds), output)
        start = stop


def _constant(proto: onnx.NodeProto) -> NDArray[Any]:
    value = helper.get_attribute_value(proto.attribute[0])
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _static_shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims)


def _without_dead_nodes(graph: Graph) -> Graph:
    """Keep the nodes that the output depends on, with the constants they read; identities vanish."""
    needed = {graph.output}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.output in needed:
            kept.append(node)
            needed.update(graph.activations(node))
    kept.reverse()
    unknown = needed - {graph.input, *(node.output for node in kept)}
    if unknown:
        raise ModelError(f"{min(unknown)!r} is a second output of its operator; such a network cannot be split")
    if graph.input not in needed:
        raise ModelError("the model's output does not depend on its input")
    for name in needed:
        shape = graph.shapes.get(name)
        if not shape or min(shape) < 1:
            raise ModelError(f"the shape of {name!r} depends on the data; such a network cannot be split")
    output_shape = graph.shapes[graph.output]
    if len(output_shape) != 2 or output_shape[0] != 1:  # noqa: PLR2004 - (N, K)
        raise ModelError(f"the model's output has shape {output_shape}; one score for each class, (N, K), is needed")
    weights = {name: graph.weights[name] for node in kept for name in graph.constants(node)}
    shapes = {name: graph.shapes[name] for name in needed}
    return replace(graph, nodes=tuple(kept), weights=weights, shapes=shapes)


def _with_explicit_padding(graph: Graph) -> Graph:
    """Write `auto_pad` and absent pads as four numbers: top, left, bottom, right."""
    nodes = []
    for node in graph.nodes:
        if node.kind not in operators.WINDOWED:
            nodes.append(node)
            continue
        _, _, height, width = _image_shape(graph, node.inputs[0], node)
        attributes = dict(node.attributes)
        if node.kind == "Conv":
            attributes["kernel_shape"] = list(graph.weights[node.inputs[1]].shape[2:])
        attributes["pads"] = explicit_pads(attributes, (height, width))
        attributes.pop("auto_pad", None)
        nodes.append(replace(node, attributes=attributes))
    return replace(graph, nodes=tuple(nodes))


def _image_shape(graph: Graph, tensor: str, node: Node) -> tuple[int, ...]:
    shape = graph.shapes.get(tensor, ())
    if len(shape) != 4 or (node.kind == "Conv" and node.inputs[1] not in graph.weights):  # noqa: PLR2004 - N, C, H, W
        raise ModelError(f"operator {node.name!r} ({node.kind}) does not work on a 2-D image with constant weights")
    return shape


def _with_free_batch(graph: Graph) -> Graph:
    """Rewrite reshapes that name the batch size of the example, so that N is free."""
    nodes, weights = [], dict(graph.weights)
    for node in graph.nodes:
        if node.kind != "Reshape":
            nodes.append(node)
            continue
        target = graph.shapes[node.output]
        if target[0] != 1:
            raise ModelError(
                f"operator {node.name!r} (Reshape) mixes images of a batch; such a network cannot be split"
            )
        if len(target) == 2:  # noqa: PLR2004 - (N, K)
            nodes.append(Node(node.name, "Flatten", node.inputs[:1], node.output, {"axis": 1}))
            continue
        shape = f"{node.name}.shape"
        weights[shape] = np.array([0, *target[1:]], dtype=np.int64)  # 0 keeps the input's batch axis
        nodes.append(Node(node.name, "Reshape", (node.inputs[0], shape), node.output, {}))
    used = {name for node in nodes for name in node.inputs}
    return replace(graph, nodes=tuple(nodes), weights={name: weights[name] for name in weights if name in used})
