"""MaxUnpool of windows of 2 x 2 that do not overlap, as operators on neighbourhoods.

A MaxPool's second output says where in the whole map each maximum was; a tile of the map has other places. In which
corner of its window the first maximum is follows from the map itself:

    map ─ SpaceToDepth ─ Split: four corners ─ Equal to the maximum, and no corner before ─┐
    values to put back ────────────────────────────────────────────────────────── Where ─ Concat ─ DepthToSpace
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from serfer.splitter.network.onnx_models import attributes_of, inferred_shapes

_WINDOW = [2, 2]
_CORNERS = 4
_WITH_SHAPE = 3  # inputs of a MaxUnpool


def with_local_unpooling(model: onnx.ModelProto) -> None:
    """Write each MaxUnpool that puts values back into windows of 2 x 2 without the places of its MaxPool.

    Others are left, and those of maps with an odd side, of which a window is cut off.
    """
    graph = model.graph
    if all(node.op_type != "MaxUnpool" for node in graph.node):
        return
    even = _even_maps(model)
    pools = {node.output[1]: node for node in graph.node if node.op_type == "MaxPool" and len(node.output) > 1}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        pool = pools.get(node.input[1]) if node.op_type == "MaxUnpool" else None
        if pool is None or pool.input[0] not in even or not _is_local(node) or not _is_local(pool):
            nodes.append(node)
            continue
        zero = numpy_helper.from_array(np.zeros((), np.float32), f"{node.output[0]}.zero")
        graph.initializer.append(zero)
        nodes.extend(_write_unpool(node, pool, zero.name))
    del graph.node[:]
    graph.node.extend(nodes)
    _forget_places(graph)


def _even_maps(model: onnx.ModelProto) -> set[str]:
    sides = {name: shape[2:] for name, shape in inferred_shapes(model).items()}
    return {name for name, known in sides.items() if known and all(side > 0 and side % 2 == 0 for side in known)}


def _is_local(node: onnx.NodeProto) -> bool:
    attributes = attributes_of(node)
    plain = not any(attributes.get("pads", ())) and attributes.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
    whole = not attributes.get("ceil_mode") and not attributes.get("storage_order") and len(node.input) < _WITH_SHAPE
    dense = all(step == 1 for step in attributes.get("dilations", ()))
    return plain and whole and dense and attributes.get("kernel_shape") == attributes.get("strides") == _WINDOW


def _write_unpool(node: onnx.NodeProto, pool: onnx.NodeProto, zero: str) -> list[onnx.NodeProto]:
    source, maximum, output = pool.input[0], pool.output[0], node.output[0]
    nodes: list[onnx.NodeProto] = []

    def add(kind: str, inputs: list[str], made: str, **attributes: Any) -> str:  # noqa: ANN401 - an operator's
        name = f"{output}.{made}"
        nodes.append(helper.make_node(kind, inputs, [name], name=f"{node.name or output}.{made}", **attributes))
        return name

    windows = add("SpaceToDepth", [source], "windows", blocksize=2)
    corners = [f"{output}.corner{number}" for number in range(_CORNERS)]
    nodes.append(helper.make_node("Split", [windows], corners, f"{node.name or output}.corners", axis=1, num_outputs=4))
    before = ""
    parts = []
    for number, corner in enumerate(corners):
        here = add("Equal", [corner, maximum], f"here{number}")
        free = add("Not", [before], f"free{number}") if before else ""
        first = add("And", [here, free], f"first{number}") if before else here
        before = add("Or", [before, here], f"before{number}") if before else here
        parts.append(add("Where", [first, node.input[0], zero], f"part{number}"))
    joined = add("Concat", parts, "parts", axis=1)
    nodes.append(helper.make_node("DepthToSpace", [joined], [output], name=node.name or output, blocksize=2))
    return nodes


def _forget_places(graph: onnx.GraphProto) -> None:
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for node in graph.node:
        if node.op_type == "MaxPool" and len(node.output) > 1 and node.output[1] not in read:
            del node.output[1:]
