"""GroupNormalization, whose shape ONNX does not infer, as exporters write it: InstanceNormalization of groups.

From opset 21 on it has a scale and a bias for each channel, before for each group.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from serfer.splitter.network.onnx_models import attributes_of

_SCALES_CHANNELS = 21
"""The opset from which on there is a scale for each channel."""


def with_plain_group_norms(model: onnx.ModelProto) -> None:
    """Write GroupNormalization as Reshape, InstanceNormalization, Reshape, and scale and bias of channels."""
    graph = model.graph
    opset = max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "GroupNormalization":
            written, constants = _plain(node, scales_channels=opset >= _SCALES_CHANNELS)
            nodes.extend(written)
            graph.initializer.extend(constants)
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _plain(node: onnx.NodeProto, *, scales_channels: bool) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    source, scale, bias = node.input
    output, attributes = node.output[0], attributes_of(node)
    groups, epsilon = attributes["num_groups"], attributes.get("epsilon", 1e-5)
    name = partial("{}.{}".format, output)
    values: dict[str, NDArray[Any]] = {"groups": np.array([0, groups, -1])}
    if scales_channels:
        ones, zeros = np.ones(groups, np.float32), np.zeros(groups, np.float32)
        values |= {"channels": np.array([-1, 1, 1]), "ones": ones, "zeros": zeros}
    inner = (name("ones"), name("zeros")) if scales_channels else (scale, bias)
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Reshape", [source, name("groups")], name("grouped"), {}),
        ("InstanceNormalization", [name("grouped"), *inner], name("normal"), {"epsilon": epsilon}),
        ("Shape", [source], name("size"), {}),
        ("Reshape", [name("normal"), name("size")], name("map") if scales_channels else output, {}),
    ]
    if scales_channels:
        steps += [
            ("Reshape", [scale, name("channels")], name("scale"), {}),
            ("Mul", [name("map"), name("scale")], name("scaled"), {}),
            ("Reshape", [bias, name("channels")], name("bias"), {}),
            ("Add", [name("scaled"), name("bias")], output, {}),
        ]
    whole = node.name or output
    names = [whole if made == output else f"{whole}.{made.removeprefix(output)[1:]}" for _, _, made, _ in steps]
    nodes = [
        helper.make_node(kind, inputs, [made], name=own, **given)
        for own, (kind, inputs, made, given) in zip(names, steps, strict=True)
    ]
    return nodes, [numpy_helper.from_array(value, name(tensor)) for tensor, value in values.items()]
