"""Operators that cannot be split, each with the reason and the remedy: they run as they are, in one task (as_is.py)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import onnx
from onnx import helper, numpy_helper

from serfer.core.errors import ModelError
from serfer.splitter.network.as_is import IN_8_BITS, Reason
from serfer.splitter.network.graph import Graph, Node, integers
from serfer.splitter.network.onnx_models import constants_of

SIZES = ("Shape", "Size", "ConstantOfShape", "Range")
_RANDOM = "its values are random; export the model in evaluation mode"
_TRAINING = "it is in training mode; call the module's eval() before you export it"
_DROPPING = "it is in training mode, so its values are random; call the module's eval() before you export it"
NEVER = frozenset({_RANDOM, _TRAINING, _DROPPING})
"""Reasons for which a network is not served at all: tasks that run twice must have the same values."""
REASONS = {
    ("If", "Loop", "Scan", "SequenceMap"): "which operators run depends on the data; export the model without branches "
    "and loops over tensors",
    (*("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"),): _RANDOM,
    ("NonZero", "Unique", "NonMaxSuppression", "Compress"): "the size of its result depends on the data; export the "
    "network without it",
    SIZES: "it computes with sizes at run time; export the model with static shapes",
    ("Optional", "OptionalGetElement", "OptionalHasElement", "SplitToSequence", "ConcatFromSequence"): "sequences and "
    "optional values cannot be handed on between functions; export the model with plain tensors",
    (
        "RegexFullMatch",
        "TfIdfVectorizer",
        "LabelEncoder",
        "ImageDecoder",
    ): "it does not work on float32 images; leave it out of the model",
    tuple(IN_8_BITS - {"DequantizeLinear"}): "it rounds to 8 bits, which a tile may do to another step than the whole; "
    "export the float32 model",
    ("MeanVarianceNormalization",): "there is no rule for it; export the model with InstanceNormalization",
    ("LSTM", "GRU", "RNN"): "it goes through its input step by step",
}
_WHY = {kind: why for kinds, why in REASONS.items() for kind in kinds}


_AXIS = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "TopK", "LayerNormalization"), -1),
    **dict.fromkeys(("Concat", "Gather", "GatherElements", "ArgMax", "ArgMin", "ScatterElements"), 0),
    **dict.fromkeys(("RMSNormalization",), -1),
    "Flatten": 1,
}


_MIXES = "it mixes the images of a batch; keep the first axis for them alone"
_BATCH = {
    "Transpose": "it moves the images of a batch from the first axis, as nn.MultiheadAttention (batch_first or not) "
    "and assignment by index do; write attention with scaled_dot_product_attention over (N, heads, positions, "
    "features), and assignment with torch.where",
    "Reshape": "it folds another axis into that of the images of a batch, as window attention often does; keep "
    "windows and heads on axes of their own, (N, windows, ...)",
}
"""The reason for refusing operators that only return positions of values."""
_WINDOWS = frozenset({"Conv", "MaxPool", "AveragePool", "LpPool"})


class CannotSplitError(ModelError):
    """A network, or what begins with one of its operators, cannot be split, though it may run as it is."""

    def __init__(self, message: str, reason: Reason | None = None, outputs: Iterable[str] = ()) -> None:
        """Say why; `outputs` are the tensors of all operators that mix images, where that is the reason."""
        super().__init__(message)
        self.reason = reason or Reason("", "", message)
        self.outputs = tuple(outputs)


def refuse(name: str, kind: str, why: str) -> CannotSplitError:
    """Return the error that names an operator and explains why the network cannot be split."""
    return CannotSplitError(f"operator {name!r} ({kind}) cannot be split: {why}", Reason(name, kind, why))


def never(name: str, kind: str, why: str) -> ModelError:
    """Return the error that names an operator and explains why the network cannot be served at all."""
    return ModelError(f"operator {name!r} ({kind}) cannot be served: {why}")


def check_kinds(model: onnx.ModelProto) -> None:
    """Refuse operators that the runtime lacks or that no plan can have; raises ModelError."""
    known = {(function.domain, function.name) for function in model.functions}
    for node in model.graph.node:
        why = _why_not(model, node, known)
        if why:
            named = node.name or node.output[0], node.op_type, why
            raise never(*named) if why in NEVER else refuse(*named)


def check_training(model: onnx.ModelProto) -> None:
    """Refuse normalization in training mode, which ONNX Script's optimizer folds into a convolution as if in eval()."""
    for node in model.graph.node:
        if node.op_type == "BatchNormalization" and _flag(node, "training_mode"):
            raise never(node.name or node.output[0], node.op_type, _TRAINING)


def _why_not(model: onnx.ModelProto, node: onnx.NodeProto, known: Collection[tuple[str, str]]) -> str | None:
    if node.domain not in ("", "ai.onnx"):
        foreign = (node.domain, node.op_type) not in known
        return f"it is of domain {node.domain!r}, not ONNX's own; export the model without it" if foreign else None
    if node.op_type.startswith(("Sequence", "String")):
        return "sequences and strings cannot be handed on between functions; export the model with plain tensors"
    if node.op_type == "BatchNormalization" and _flag(node, "training_mode"):
        return _TRAINING
    if node.op_type == "Dropout" and len(node.input) > 2 and _is_true(model, node.input[2]):  # noqa: PLR2004 - the third
        return _DROPPING
    return _WHY.get(node.op_type)


def reason_of(model: onnx.ModelProto, node: onnx.NodeProto) -> str:
    return _why_not(model, node, ()) or ""


def may_fold(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Return whether an operator that reads constants alone can be computed once and for all."""
    return node.op_type in SIZES or _why_not(model, node, ()) is None


def _flag(node: onnx.NodeProto, name: str) -> bool:
    return any(item.name == name and helper.get_attribute_value(item) for item in node.attribute)


def _is_true(model: onnx.ModelProto, name: str) -> bool:
    value = constants_of(model.graph).get(name)
    return bool(name) and (value is None or bool(numpy_helper.to_array(value).any()))


def check_windows(model: onnx.ModelProto) -> None:
    """Refuse windows and blocks that do not fit into the map that they are of, by the shapes that were inferred."""
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    shapes = {value.name: value.type.tensor_type.shape.dim for value in values}
    for node in model.graph.node:
        if node.op_type in _WINDOWS and any(
            dim.HasField("dim_value") and dim.dim_value < 1 for dim in shapes.get(node.output[0], ())
        ):
            size = " x ".join(str(dim.dim_value) for dim in shapes.get(node.input[0], ())[2:])
            why = f"its window does not fit into a map of {size}; give an example of larger images"
            raise never(node.name or node.output[0], node.op_type, why)
        if node.op_type == "SpaceToDepth":
            block = next(item.i for item in node.attribute if item.name == "blocksize")
            sides = [dim.dim_value for dim in shapes.get(node.input[0], ())[2:]]
            if any(side % block for side in sides):
                why = f"it takes maps whose sides are multiples of {block}, not {' x '.join(map(str, sides))}"
                raise never(node.name or node.output[0], node.op_type, why)


def check_batch(graph: Graph) -> None:
    """Refuse operators that mix the images of a batch, or lose track of which is which; raises CannotSplitError."""
    mixing = [node for node in graph.nodes if graph.shapes[node.output][:1] != (1,) or 0 in _acted(graph, node)]
    if mixing:
        first = mixing[0]
        error = refuse(first.name, first.kind, _BATCH.get(first.kind, _MIXES))
        error.outputs = tuple(node.output for node in mixing)
        raise error


def _acted(graph: Graph, node: Node) -> Iterable[int]:
    """Return the axes along which an operator mixes values, as far as its attributes define them."""
    rank = len(graph.shapes[graph.activations(node)[0]]) if graph.activations(node) else 0
    special: Callable[[], Iterable[int]] | None = {
        "Transpose": lambda: [0] if next(iter(node.attributes.get("perm") or [rank])) else [],
        "Slice": lambda: integers(graph, node, 3) or range(len(integers(graph, node, 1) or [])),
        "CumSum": lambda: integers(graph, node, 1) or [],
        "Squeeze": lambda: integers(graph, node, 1) or [0],
        "Unsqueeze": lambda: integers(graph, node, 1) or [],
    }.get(node.kind)
    if special:
        grown = rank + len(integers(graph, node, 1) or []) if node.kind == "Unsqueeze" else rank
        return [axis % grown for axis in special()]
    if node.kind.startswith("Reduce"):
        given = integers(graph, node, 1) or node.attributes.get("axes")
        idle = not given and node.attributes.get("noop_with_empty_axes", 0)
        return [axis % rank for axis in given] if given else [] if idle else [0]
    constant_first = node.inputs[0] in graph.weights
    return [] if node.kind not in _AXIS or constant_first else [node.attributes.get("axis", _AXIS[node.kind]) % rank]
