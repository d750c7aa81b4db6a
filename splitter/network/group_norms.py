"""GroupNormalization, whose shape ONNX does not infer, as exporters write it: InstanceNormalization of groups.

From opset 21 on it has a scale and a bias for each channel, before for each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

_SCALES_CHANNELS = 21
"""The opset from which on there is a scale for each channel."""


def with_plain_group_norms(model: onnx.ModelProto) -> None:
    """Write GroupNormalization as Reshape, InstanceNormalization, Reshape, and scale and bias of channels."""
    graph = model.graph
    opset = max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0)
    if all(node.op_type != "GroupNormalization" for node in graph.node):
        return
    write = _with_channels_scaled if opset >= _SCALES_CHANNELS else _with_groups_scaled
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "GroupNormalization":
            written, constants = write(node)
            nodes.extend(written)
            graph.initializer.extend(constants)
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


_Written = tuple[list[onnx.NodeProto], list[onnx.TensorProto]]
_Step = tuple[str, list[str], str, dict[str, Any]]
"""Kind, inputs, output and attributes of an operator."""


def _with_channels_scaled(node: onnx.NodeProto) -> _Written:
    source, scale, bias = node.input
    groups, epsilon = _attributes(node)
    values = {
        "groups": np.array([0, groups, -1]),
        "channels": np.array([-1, 1, 1]),
        "ones": np.ones(groups, np.float32),
        "zeros": np.zeros(groups, np.float32),
    }
    name = partial("{}.{}".format, node.output[0])
    steps: list[_Step] = [
        ("Reshape", [source, name("groups")], name("grouped"), {}),
        ("InstanceNormalization", [name("grouped"), name("ones"), name("zeros")], name("normal"), {"epsilon": epsilon}),
        ("Shape", [source], name("size"), {}),
        ("Reshape", [name("normal"), name("size")], name("map"), {}),
        ("Reshape", [scale, name("channels")], name("scale"), {}),
        ("Mul", [name("map"), name("scale")], name("scaled"), {}),
        ("Reshape", [bias, name("channels")], name("bias"), {}),
        ("Add", [name("scaled"), name("bias")], node.output[0], {}),
    ]
    return _write_norm(node, steps, values)


def _with_groups_scaled(node: onnx.NodeProto) -> _Written:
    source, scale, bias = node.input
    groups, epsilon = _attributes(node)
    name = partial("{}.{}".format, node.output[0])
    steps: list[_Step] = [
        ("Reshape", [source, name("groups")], name("grouped"), {}),
        ("InstanceNormalization", [name("grouped"), scale, bias], name("normal"), {"epsilon": epsilon}),
        ("Shape", [source], name("size"), {}),
        ("Reshape", [name("normal"), name("size")], node.output[0], {}),
    ]
    return _write_norm(node, steps, {"groups": np.array([0, groups, -1])})


def _attributes(node: onnx.NodeProto) -> tuple[int, float]:
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    return attributes["num_groups"], attributes.get("epsilon", 1e-5)


def _write_norm(node: onnx.NodeProto, steps: Sequence[_Step], values: dict[str, NDArray[Any]]) -> _Written:
    output, whole = node.output[0], node.name or node.output[0]
    nodes = [
        helper.make_node(
            kind, inputs, [made], name=whole if made == output else f"{whole}.{made.removeprefix(output)[1:]}", **given
        )
        for kind, inputs, made, given in steps
    ]
    return nodes, [numpy_helper.from_array(value, f"{output}.{tensor}") for tensor, value in values.items()]
