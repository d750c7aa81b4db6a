"""A network that can be split up to some of its operators: those, and all that depends on them, run as they are.

All such operators are found at once, from the model's kinds of operators and inferred shapes; those that mix the images
of a batch are known only when the rest has been read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx
from onnx import TensorProto, shape_inference

from serfer.core.errors import ModelError
from serfer.core.plan.answers import Answer
from serfer.splitter.network.as_is import IN_8_BITS, AsIsNodes, GivenTensor, Reason, as_is_nodes, names_read
from serfer.splitter.network.description import Reduction
from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.ingest import PlainNetwork, plain_network, prepared
from serfer.splitter.network.onnx_models import static_shape
from serfer.splitter.network.outputs import MOST_OUTPUTS
from serfer.splitter.network.unsupported import CannotSplitError, reason_of
from serfer.splitter.network.whole_network import described, results_of

_WORTH_SPLITTING = frozenset({"Conv", "ConvTranspose"})
_MOST_PASSES = 3
"""How often what comes before may be read: some operators are found to mix images only there."""


@dataclass(frozen=True)
class InferredTensors:
    """Shapes and ONNX types of a model's tensors, as far as they are inferred; -1 for an unknown size."""

    shapes: Mapping[str, tuple[int, ...]]
    kinds: Mapping[str, int]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> InferredTensors:
        graph = shape_inference.infer_shapes(model, data_prop=True).graph
        values = {value.name: value for value in (*graph.value_info, *graph.output, *graph.input)}
        known = [value for value in values.values() if value.type.tensor_type.HasField("shape")]
        kinds = {name: value.type.tensor_type.elem_type for name, value in values.items()}
        return cls({value.name: static_shape(value) for value in known}, kinds)

    def can_be_read(self, name: str) -> bool:
        shape = self.shapes.get(name, ())
        return self.kinds.get(name) == TensorProto.FLOAT and shape[:1] == (1,) and min(shape) > 0


def with_as_is_tail(
    model: ExternalWeightsModel,
    answers: Sequence[Answer],
    size: tuple[int, int],
    names: tuple[str, ...],
    refusal: CannotSplitError,
    reduction: Reduction | None,
) -> PlainNetwork | None:
    """Return a model of which a part runs as it is; None where nothing before that part is worth splitting.

    `refusal` says why not all of it can be split, `answers` are its own to images of `size`.
    """
    try:
        light = prepared(model, *size)
        blocked = _blocked(light) | dict.fromkeys(refusal.outputs, refusal.reason)
        for _ in range(_MOST_PASSES):
            parts = _Parts.of(light, blocked)
            if parts is None:
                return None
            try:
                before = plain_network(parts.before, *size)
            except CannotSplitError as another:
                if not another.outputs:
                    return None
                blocked |= dict.fromkeys(another.outputs, another.reason)
            else:
                return _joined(parts, before.graph, answers, names, reduction)
    except ModelError:
        raise
    except Exception:  # noqa: BLE001 - ONNX's passes raise many kinds; the whole network can do without them
        return None
    return None


@dataclass(frozen=True)
class _Parts:
    whole: ExternalWeightsModel
    before: ExternalWeightsModel
    nodes: tuple[onnx.NodeProto, ...]
    read: tuple[GivenTensor, ...]
    reasons: tuple[Reason, ...]

    @classmethod
    def of(cls, model: ExternalWeightsModel, blocked: Mapping[str, Reason]) -> _Parts | None:
        """Return the parts of a model at the operators that make the tensors `blocked`; None for no such parts."""
        graph, tensors = model.proto.graph, InferredTensors.of(model.proto)
        image = model.inputs[0].name
        makers = {name: node for node in graph.node for name in node.output if name}
        known = [makers[name] for name in blocked if name in makers]  # others were made from these on reading
        stop = {name for node in known for name in node.output if name}
        if not stop or any(node.op_type in IN_8_BITS for node in graph.node):
            return None
        computed = _depending(graph.node, {image})
        while True:
            after = _depending(graph.node, stop) | stop
            tail = [node for node in graph.node if after & {*node.output}]
            read = sorted({name for node in tail for name in names_read(node)} & computed - after)
            odd = [name for name in read if name != image and not tensors.can_be_read(name)]
            if not odd:
                break
            stop |= {name for tensor in odd for name in makers[tensor].output if name}
        before = made_by(makers, [*read, *(value.name for value in graph.output if value.name not in after)], {image})
        if len(read) > MOST_OUTPUTS or not any(node.op_type in _WORTH_SPLITTING for node in before):
            return None
        constant = made_by(makers, [name for node in tail for name in names_read(node)], computed)
        kept = {id(node) for node in (*tail, *constant)}
        outputs = [name for name in read if name != image]
        outputs += [value.name for value in graph.output if value.name not in after and value.name not in outputs]
        return cls(
            model,
            part_of(model, before, outputs),
            tuple(node for node in graph.node if id(node) in kept),
            tuple(GivenTensor(name, tensors.shapes[name][1:]) for name in read),
            tuple(dict.fromkeys(blocked.values())),
        )


def _depending(nodes: Iterable[onnx.NodeProto], names: Iterable[str]) -> set[str]:
    known = {*names}
    for node in nodes:
        if known & names_read(node):
            known.update(filter(None, node.output))
    return known


def made_by(makers: Mapping[str, onnx.NodeProto], names: Sequence[str], given: set[str]) -> list[onnx.NodeProto]:
    waiting, found = [*names], dict[int, onnx.NodeProto]()
    while waiting:
        name = waiting.pop()
        node = None if name in given else makers.get(name)
        if node is not None and id(node) not in found:
            found[id(node)] = node
            waiting.extend(names_read(node))
    return list(found.values())


def part_of(
    model: ExternalWeightsModel, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]
) -> ExternalWeightsModel:
    kept, read = {id(node) for node in nodes}, {name for node in nodes for name in names_read(node)}
    part = model.copied()
    graph, given = part.proto.graph, model.proto.graph
    del graph.node[:], graph.output[:], graph.value_info[:], graph.initializer[:], graph.input[:]
    graph.node.extend(node for node in given.node if id(node) in kept)
    graph.initializer.extend(tensor for tensor in given.initializer if tensor.name in read)
    image = model.inputs[0].name
    graph.input.extend(value for value in given.input if value.name == image or value.name in read)
    graph.output.extend(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs)
    return replace(part, large={name: value for name, value in model.large.items() if name in read})


def _blocked(model: ExternalWeightsModel) -> dict[str, Reason]:
    tensors = InferredTensors.of(model.proto)
    computed = _depending(model.proto.graph.node, {model.inputs[0].name})
    used = {name for node in model.proto.graph.node for name in names_read(node)}
    used |= {value.name for value in model.proto.graph.output}
    found = {}
    for node in model.proto.graph.node:
        if not computed & {*node.output}:
            continue
        why = reason_of(model.proto, node) or _unread(node, tensors, used)
        if why:
            found[node.output[0]] = Reason(node.name or node.output[0], node.op_type, why)
    return found


def _unread(node: onnx.NodeProto, tensors: InferredTensors, used: set[str]) -> str:
    if node.op_type != "Split" and used & {*node.output[1:]}:
        return "a result besides its first is used"
    shape = tensors.shapes.get(node.output[0])
    if shape is None or min(shape, default=1) < 0:
        return "the shape of its result depends on the data, or is not inferred"
    return "" if 0 not in shape else "its result is empty"


def _joined(
    parts: _Parts, before: Graph, answers: Sequence[Answer], names: tuple[str, ...], reduction: Reduction | None
) -> PlainNetwork | None:
    results = {result.name: result for result in results_of(parts.whole, answers)}
    made = {name for node in parts.nodes for name in node.output}
    if any(before.shapes.get(tensor.name) != (1, *tensor.dims) for tensor in parts.read):
        return None
    tail = as_is_nodes(
        parts.whole,
        parts.nodes,
        parts.read,
        [result for name, result in results.items() if name in made],
        parts.reasons,
    )
    graph = _with_tail(before, tail)
    return described(graph, parts.whole.proto, names, results, reduction)


def _with_tail(before: Graph, tail: AsIsNodes) -> Graph:
    return replace(
        before,
        nodes=(*before.nodes, *tail.nodes),
        weights=before.weights | tail.weights,
        shapes=before.shapes | tail.shapes,
        others=before.others | tail.bundles,
    )
