"""GroupNormalization of opset 21, whose shape ONNX does not infer, as exporters write it up to opset 20."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

_FIRST_OPSET = 21
"""Before, an operator of this name had a scale for each group: no exporter writes it."""


def with_plain_group_norms(model: onnx.ModelProto) -> None:
    """Write GroupNormalization of maps as Reshape, InstanceNormalization, Reshape, and scale and bias of channels."""
    graph = model.graph
    opset = max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0)
    if opset < _FIRST_OPSET or all(node.op_type != "GroupNormalization" for node in graph.node):
        return
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "GroupNormalization":
            written, constants = _written(node)
            nodes.extend(written)
            graph.initializer.extend(constants)
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _written(node: onnx.NodeProto) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    source, scale, bias = node.input
    output = node.output[0]
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    groups = attributes["num_groups"]
    values = {
        "groups": np.array([0, groups, -1]),
        "channels": np.array([-1, 1, 1]),
        "ones": np.ones(groups, np.float32),
        "zeros": np.zeros(groups, np.float32),
    }
    names = {
        tensor: f"{output}.{tensor}"
        for tensor in (*values, "grouped", "normal", "size", "map", "scale", "bias", "scaled")
    }
    epsilon = attributes.get("epsilon", 1e-5)
    steps = [
        ("Reshape", [source, names["groups"]], "grouped", {}),
        ("InstanceNormalization", [names["grouped"], names["ones"], names["zeros"]], "normal", {"epsilon": epsilon}),
        ("Shape", [source], "size", {}),
        ("Reshape", [names["normal"], names["size"]], "map", {}),
        ("Reshape", [scale, names["channels"]], "scale", {}),
        ("Mul", [names["map"], names["scale"]], "scaled", {}),
        ("Reshape", [bias, names["channels"]], "bias", {}),
    ]
    nodes = [
        helper.make_node(kind, inputs, [names[tensor]], name=f"{node.name or output}.{tensor}", **given)
        for kind, inputs, tensor, given in steps
    ]
    nodes.append(helper.make_node("Add", [names["scaled"], names["bias"]], [output], name=node.name or output))
    return nodes, [numpy_helper.from_array(value, names[tensor]) for tensor, value in values.items()]
