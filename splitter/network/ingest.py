"""The conversion of an ONNX model to a plain graph.

Plain means: one image input (1, C, H, W), outputs that are maps or vectors (outputs.py), constants apart from
activations, explicit padding, no batch size baked into a shape, and only operators that lie between the input and the
outputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import onnx
import onnxscript.optimizer
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper, shape_inference
from onnxscript import ir
from onnxscript.ir.passes.common import RemoveUnusedNodesPass

from serfer.core.errors import ModelError
from serfer.core.plan import OutputTensor
from serfer.splitter.network.canonicalize import plain, with_explicit_windows, with_free_batch, without_identities
from serfer.splitter.network.description import Reduction
from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.graph import Graph, Node, Weights, needed_for
from serfer.splitter.network.group_norms import with_plain_group_norms
from serfer.splitter.network.interpolation import with_moved_scales, with_own_scales
from serfer.splitter.network.max_unpool import with_local_unpooling
from serfer.splitter.network.onnx_files import MOST_CONSTANT_BYTES
from serfer.splitter.network.onnx_models import attributes_of, inferred_shapes, run_once, static_shape
from serfer.splitter.network.outputs import MOST_OUTPUTS, default_names, numpy_type
from serfer.splitter.network.reductions import reduced
from serfer.splitter.network.size_hints import instead_of
from serfer.splitter.network.sliding_window import explicit_pads, floor_pads, pool_scale
from serfer.splitter.network.transpose_sinking import with_batch_first
from serfer.splitter.network.unsupported import (
    SIZES,
    CannotSplitError,
    check_batch,
    check_kinds,
    check_training,
    check_windows,
    may_fold,
    never,
    refuse,
)

_IMAGES = (TensorProto.FLOAT, TensorProto.FLOAT16)
_USUAL_STRIDE = 32
_MOST_OPTIMIZED = 512 * 512
"""Values up to which the optimizer itself stores a constant; a larger one it would compute and throw away."""
_MOST_FOLDINGS = 4  # each of constants whose sizes are what the one before has computed; shapes are inferred each time
ROUNDING = 1e-2
"""How far fp16's roundings may take a network's answer, relative to the range of its logits."""
_KINDS = frozenset({"to", "dtype", "output_dtype"})
"""The attributes that name a type."""


@dataclass(frozen=True)
class PlainNetwork:
    """A network whose operators are plain, and the names and numpy types of its outputs.

    Of a network of which a part runs as it is, `given` describes the outputs as the model has them, before a reduction.
    """

    graph: Graph
    outputs: tuple[str, ...]
    types: tuple[str, ...]
    given: tuple[OutputTensor, ...] = ()


def plain_network(
    model: onnx.ModelProto | ExternalWeightsModel,
    height: int,
    width: int,
    names: tuple[str, ...] = (),
    reduction: Reduction | None = None,
    *,
    any_size: bool = False,
) -> PlainNetwork:
    """Read an ONNX model at an input of height x width (see `serfer.splitter.tiling.from_onnx`)."""
    light = model if isinstance(model, ExternalWeightsModel) else ExternalWeightsModel.of(ir.from_proto(model))
    whole = light
    light = with_static_input(light, height, width)
    check_training(light.proto)
    with_plain_group_norms(light.proto)
    with_local_unpooling(light.proto)
    try:
        moved = with_moved_scales(light.proto, exported=bool(names))
        wide = widened(simplified(_with_own_windows(light)))
        light = _folded(wide.model)
        _check_size(whole, light, height, width)
        check_kinds(light.proto)
        moved |= with_moved_scales(light.proto, exported=bool(names))
        light = replace(light, proto=shape_inference.infer_shapes(light.proto, strict_mode=True, data_prop=True))
        check_windows(light.proto)
    except ModelError:
        raise
    except Exception as error:  # the checkers raise many kinds, all meaning that the model is not sound
        check_kinds(light.proto)  # names the operator, if that is the reason
        check_windows(shape_inference.infer_shapes(light.proto))  # same
        raise CannotSplitError(
            f"the model cannot be read at an input of {height} x {width}: {_first_line(error)}"
            f"{instead_of(whole, (height, width))}"
        ) from error
    graph = with_batch_first(without_identities(with_own_scales(_read_graph(light), moved)))
    rounding = ROUNDING * wide.rounded
    graph = replace(graph, half=wide.half & graph.weights.keys(), rounding=rounding, exact_places=any_size)
    check_batch(graph)
    given = names or tuple(value.name for value in light.proto.graph.output)
    graph, changed = reduced(graph, reduction, given) if reduction else (graph, {})
    graph = with_free_batch(plain(with_explicit_windows(graph), any_size=any_size))
    kinds = (value.type.tensor_type.elem_type for value in light.proto.graph.output)
    own = (numpy_type(kind, name) for kind, name in zip(kinds, given, strict=True))
    types = tuple(changed.get(number, kind) for number, kind in enumerate(own))
    return PlainNetwork(graph, default_names(given, tuple(graph.shapes[name] for name in graph.outputs)), types)


def prepared(model: ExternalWeightsModel, height: int, width: int) -> ExternalWeightsModel:
    light = with_static_input(model, height, width)
    with_plain_group_norms(light.proto)
    return _folded(simplified(_with_own_windows(light)))


def _check_size(given: ExternalWeightsModel, read: ExternalWeightsModel, height: int, width: int) -> None:
    """Refuse a size that a model does not take, where sizes that it computes could not be read; raises ModelError."""
    if not any(node.op_type in SIZES for node in read.proto.graph.node):
        return
    why = _unfitting(given, height, width)
    if why is None:
        return
    near = [(_multiple(height, up), _multiple(width, up)) for up in (False, True)]
    taken = next((f": it takes {' x '.join(map(str, size))}" for size in near if _unfitting(given, *size) is None), "")
    raise ModelError(f"the model does not take images of {height} x {width}{taken} ({why})")


def _multiple(size: int, up: bool) -> int:  # noqa: FBT001 - which of two neighbours
    below = size // _USUAL_STRIDE * _USUAL_STRIDE
    return below + _USUAL_STRIDE if below < size and (up or not below) else below


def _unfitting(model: ExternalWeightsModel, height: int, width: int) -> str | None:
    try:
        shape_inference.infer_shapes(with_static_input(model, height, width).proto, strict_mode=True, data_prop=True)
    except Exception as error:  # noqa: BLE001 - ONNX raises several kinds
        return re.sub(r"\[?ShapeInferenceError\]? ?:?|Inference error\(s\): ", "", _first_line(error)).strip()
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def with_static_input(model: ExternalWeightsModel, height: int, width: int) -> ExternalWeightsModel:
    """Fix the input to (1, C, height, width), so that every shape becomes a number."""
    inputs, outputs = model.inputs, model.proto.graph.output
    if len(inputs) != 1 or not 1 <= len(outputs) <= MOST_OUTPUTS:
        raise ModelError(
            f"the model has {len(inputs)} inputs and {len(outputs)} outputs; one image in and 1 to {MOST_OUTPUTS} "
            "tensors out are needed"
        )
    if inputs[0].name in {value.name for value in outputs}:
        raise ModelError(f"the model's output {inputs[0].name!r} is its input: leave it out")
    tensor = inputs[0].type.tensor_type
    dims = tensor.shape.dim
    if len(dims) != 4 or tensor.elem_type not in _IMAGES:  # noqa: PLR2004 - (N, C, H, W)
        kind, shape = TensorProto.DataType.Name(tensor.elem_type), [dim.dim_param or dim.dim_value for dim in dims]
        raise ModelError(
            f"the model's input {inputs[0].name!r} is {kind} {shape}, not an image tensor (N, C, H, W) of float32 or "
            "float16"
        )
    for axis, size in ((2, height), (3, width)):
        if dims[axis].HasField("dim_value") and dims[axis].dim_value not in (0, size):
            raise ModelError(
                f"the model takes images of {' x '.join(str(dim.dim_value or dim.dim_param) for dim in dims[2:])} "
                f"alone, not of {height} x {width}"
            )
    fixed = model.copied()
    for axis, size in ((0, 1), (2, height), (3, width)):
        fixed.inputs[0].type.tensor_type.shape.dim[axis].dim_value = size
    del fixed.proto.graph.value_info[:]
    for value in fixed.proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return fixed


def simplified(model: ExternalWeightsModel) -> ExternalWeightsModel:
    """Return a model with functions written out, constants folded and conditions that are known decided."""
    whole = model.whole()
    onnxscript.optimizer.optimize_ir(whole, should_fold=_is_no_growth)
    RemoveUnusedNodesPass()(whole)
    return ExternalWeightsModel.of(whole)


def _is_no_growth(node: ir.Node) -> bool | None:
    """Keep the optimizer from computing constants of unknown or great size; by None it decides for itself."""
    shape = node.outputs[0].shape
    sizes = [size for size in shape if isinstance(size, int)] if shape is not None else []
    if shape is None or len(sizes) < len(shape):
        return False
    read = sum(value.const_value.size for value in node.inputs if value is not None and value.const_value is not None)
    return None if prod(sizes) <= max(_MOST_OPTIMIZED, read) else False


def _folded(model: ExternalWeightsModel, rounds: int = _MOST_FOLDINGS) -> ExternalWeightsModel:
    graph = model.proto.graph
    constant = {tensor.name for tensor in graph.initializer} | model.large.keys()
    foldable: list[onnx.NodeProto] = []
    for node in graph.node:
        reads_constants = bool(node.input) and all(name in constant or not name for name in node.input)
        if node.op_type == "Constant" or (reads_constants and may_fold(model.proto, node)):
            foldable.append(node)
            constant.update(node.output)
    if all(node.op_type == "Constant" for node in foldable):
        return model
    known = _of_known_size(model.proto, foldable, last=rounds == 1)
    folded = {id(node) for node in known}
    rest = [node for node in graph.node if id(node) not in folded]
    needed = {name for node in rest for name in node.input} | {value.name for value in graph.output}
    names = [name for node in known for name in node.output if name in needed]
    values = _computed(model, known, names)
    del graph.node[:]
    graph.node.extend(rest)
    if len(known) == len(foldable):
        return model.with_constants(values)
    inferred = [value for value in graph.value_info if min(static_shape(value), default=0) >= 0]
    del graph.value_info[:]  # what was not known would stay so
    graph.value_info.extend(inferred)
    return _folded(model.with_constants(values), rounds - 1)


def _of_known_size(model: onnx.ModelProto, nodes: list[onnx.NodeProto], *, last: bool) -> list[onnx.NodeProto]:
    """Return the nodes before the first whose size only constants that they compute tell; with `last`, all.

    Raises ModelError for constants that take more memory than any model's do: a few bytes can declare that much.
    """
    inferred = shape_inference.infer_shapes(model, data_prop=True).graph
    values = {value.name: value for value in (*inferred.value_info, *inferred.output)}
    total = 0
    for number, node in enumerate(nodes):
        for name in filter(None, node.output):
            size = _bytes_of(values.get(name))
            total += size or 0
            if size is None and not last and any(before.op_type != "Constant" for before in nodes[:number]):
                return nodes[:number]
            if size is None or total > MOST_CONSTANT_BYTES:
                many = "an unknown number of" if size is None else f"more than {MOST_CONSTANT_BYTES:,}"
                why = f"constants that the model computes take {many} bytes; export it with their values"
                raise (refuse if size is None else never)(node.name or name, node.op_type, why)
    return nodes


def _bytes_of(value: onnx.ValueInfoProto | None) -> int | None:
    if value is None or not value.type.tensor_type.HasField("shape") or min(static_shape(value), default=0) < 0:
        return None
    kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return kind.itemsize * prod(static_shape(value))


def _computed(model: ExternalWeightsModel, nodes: list[onnx.NodeProto], names: list[str]) -> Weights:
    """Run operators that read constants alone; large constants are passed as inputs."""
    read = {name for node in nodes for name in node.input}
    body = helper.make_graph(
        nodes,
        "constants",
        [value for value in model.proto.graph.input if value.name in read],
        [onnx.ValueInfoProto(name=name) for name in names],
        [tensor for tensor in model.proto.graph.initializer if tensor.name in read],
    )
    part = helper.make_model(body, opset_imports=model.proto.opset_import, ir_version=model.proto.ir_version)
    given = {name: value for name, value in model.large.items() if name in read}
    return dict(zip(names, run_once(part, given, names), strict=True))


def _with_own_windows(light: ExternalWeightsModel) -> ExternalWeightsModel:
    """Write pools in floor mode where ceil mode adds a window that would start past the map.

    ONNX leaves such a window out, and so do runtimes; ONNX's shape inference counts it. Pools that are dilated get the
    padding that ONNX Runtime gives them.
    """
    model = light.proto
    own = [node for node in model.graph.node if attributes_of(node).get("ceil_mode") or _ignores_dilations(node)]
    for node in own:  # in order: each may change the size of the maps after it
        shapes = inferred_shapes(model)
        sizes = [shapes.get(name, ())[2:] for name in (node.input[0], node.output[0])]
        if all(sizes) and _ignores_dilations(node):
            plain = {**attributes_of(node), "dilations": [1, 1]}
            node.attribute.append(helper.make_attribute("pads", explicit_pads(plain, sizes[0])))
            node.attribute.remove(next(item for item in node.attribute if item.name == "auto_pad"))
            continue
        pads = floor_pads(attributes_of(node), *sizes) if all(sizes) else None
        if pads is None:
            continue
        if node.op_type == "AveragePool" and pads != list(attributes_of(node).get("pads") or [0, 0, 0, 0]):
            _count_apart(model, node, sizes)
        kept = [item for item in node.attribute if item.name not in ("ceil_mode", "pads")]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("pads", pads)])
    return light


def _ignores_dilations(node: onnx.NodeProto) -> bool:
    """Return whether ONNX Runtime pads a pool by `auto_pad` as if it were not dilated, and ONNX as it is."""
    attributes = attributes_of(node)
    dilated = node.op_type in ("AveragePool", "LpPool", "MaxPool") and max(attributes.get("dilations") or [1]) > 1
    return dilated and bytes(attributes.get("auto_pad", b"")).startswith(b"SAME")


def _count_apart(model: onnx.ModelProto, node: onnx.NodeProto, sizes: list[tuple[int, ...]]) -> None:
    """Let a mean count its whole window, and scale its values to what they should count."""
    scale = pool_scale(attributes_of(node), *sizes)
    mean, name = f"{node.output[0]}.mean", f"{node.output[0]}.scale"
    product = helper.make_node("Mul", [mean, name], [node.output[0]], f"{node.name}.scale")
    place = next(index for index, other in enumerate(model.graph.node) if other is node)
    node.output[0] = mean
    model.graph.node.insert(place + 1, product)
    model.graph.initializer.append(numpy_helper.from_array(scale, name))
    kept = [item for item in node.attribute if item.name != "count_include_pad"]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("count_include_pad", 1)])


def _read_graph(light: ExternalWeightsModel) -> Graph:
    model = light.proto
    weights = light.large | {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values = [*model.graph.value_info, *model.graph.output, *model.graph.input]  # an input may be an output, too
    shapes = {value.name: static_shape(value) for value in values}
    others = (value.name for value in values if value.type.tensor_type.elem_type != TensorProto.FLOAT)
    nodes: list[Node] = []
    second: dict[str, Node] = {}
    for index, proto in enumerate(model.graph.node):
        if proto.op_type == "Constant":
            weights[proto.output[0]] = _constant(proto)
            continue
        if proto.op_type == "Split":
            nodes.extend(_slices(proto, shapes, weights))
            continue
        name, kind = proto.name or f"{proto.op_type}_{index}", proto.op_type
        nodes.append(Node(name, kind, _inputs(proto), proto.output[0], attributes_of(proto)))
        second |= dict.fromkeys(proto.output[1:], nodes[-1])
    opset = next(item.version for item in model.opset_import if item.domain in ("", "ai.onnx"))
    graph = Graph(
        _named_apart(nodes),
        weights,
        light.inputs[0].name,
        tuple(value.name for value in model.graph.output),
        shapes,
        opset,
        others=frozenset(others),
        given_shapes=shapes,
    )
    return _without_dead_nodes(graph, second)


def _inputs(proto: onnx.NodeProto) -> tuple[str, ...]:
    names = list(proto.input)
    while names and not names[-1]:
        names.pop()
    return tuple(names)


def _named_apart(nodes: list[Node]) -> tuple[Node, ...]:
    """Give operators that share a name their outputs' names as well: cuts are requested by name."""
    seen: set[str] = set()
    apart = []
    for node in nodes:
        apart.append(replace(node, name=f"{node.name}.{node.output}") if node.name in seen else node)
        seen.add(node.name)
    return tuple(apart)


def _slices(proto: onnx.NodeProto, shapes: dict[str, tuple[int, ...]], weights: Weights) -> Iterator[Node]:
    """Write a Split as one Slice for each of its outputs; a node has one output here."""
    axis = attributes_of(proto).get("axis", 0)
    start = 0
    for output in filter(None, proto.output):
        stop = start + shapes[output][axis]
        bounds = {f"{output}.starts": start, f"{output}.stops": stop, f"{output}.axes": axis}
        weights.update({name: np.array([value]) for name, value in bounds.items()})
        yield Node(f"{proto.name}.{output}", "Slice", (proto.input[0], *bounds), output)
        start = stop


def _constant(proto: onnx.NodeProto) -> NDArray[Any]:
    value = helper.get_attribute_value(proto.attribute[0])
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _without_dead_nodes(graph: Graph, second: dict[str, Node]) -> Graph:
    """`second` has the operators of which some output but the first is used."""
    kept = needed_for(graph.nodes, graph.outputs)
    needed = {*graph.outputs, *(name for node in kept for name in graph.activations(node))}
    for name in sorted(needed & second.keys()):
        why = f"its second output {name!r} is used; only first outputs can be handed on"
        raise refuse(second[name].name, second[name].kind, why)
    _check_dependence(graph, kept)
    for node in kept:
        smallest = min(graph.shapes.get(node.output, (-1,)), default=1)
        if smallest == 0:
            raise refuse(node.name, node.kind, "its result is empty; give an example of larger images")
        if smallest < 0:
            why = "the shape of its result depends on the data, or is not inferred; export the model with static shapes"
            raise refuse(node.name, node.kind, why)
    weights = {name: graph.weights[name] for node in kept for name in graph.constants(node)}
    shapes = {name: graph.shapes[name] for name in needed}
    return replace(graph, nodes=kept, weights=weights, shapes=shapes, others=graph.others & needed)


def _check_dependence(graph: Graph, nodes: Sequence[Node]) -> None:
    computed = {graph.input}
    computed.update(node.output for node in nodes if computed & {*graph.activations(node)})
    constant = [name for name in graph.outputs if name not in computed]
    if constant:
        whose = "output" if len(graph.outputs) == 1 else f"output {constant[0]!r}"
        raise ModelError(f"the model's {whose} does not depend on its input")


@dataclass(frozen=True)
class WideModel:
    """A model in float32, the constants whose values are fp16 numbers, and whether roundings to fp16 were left out."""

    model: ExternalWeightsModel
    half: frozenset[str] = frozenset()
    rounded: bool = False


def widened(model: ExternalWeightsModel) -> WideModel:
    """Return the model with float32 in place of fp16, if it computes in fp16 rather than only storing weights in it."""
    graph = model.proto.graph
    given = any(value.type.tensor_type.elem_type == TensorProto.FLOAT16 for value in model.inputs)
    if not given and not any(_rounds(node) for node in graph.node):
        return WideModel(model)
    wide = model.copied()
    proto = wide.proto
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in proto.graph.initializer:
        _widen(tensor)
    for attribute in (attribute for node in proto.graph.node for attribute in node.attribute):
        if attribute.name in _KINDS and attribute.i == TensorProto.FLOAT16:
            attribute.i = TensorProto.FLOAT
        elif attribute.type == AttributeProto.TENSOR:
            _widen(attribute.t)
    half = frozenset(name for name, value in model.large.items() if value.dtype == np.float16)
    large = {name: value.astype(np.float32) if name in half else value for name, value in model.large.items()}
    return WideModel(replace(wide, large=large), half, rounded=True)


def _rounds(node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and any(
        item.name == "to" and item.i == TensorProto.FLOAT16 for item in node.attribute
    )


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT16:
        value = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
