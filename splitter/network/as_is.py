"""The part of a network that runs as it is: operators that cannot be split, as one node of the graph.

In ONNX it is a Scan over axis 0, so that the number of images is free whatever the operators do with it:

    image (C, H, W) - Unsqueeze - the given operators, with their constants - Squeeze - result

The constants lie inside the body: ONNX Runtime brings constants of the graph around it into no other layout, which made
a network of convolutions 23% slower. Several results are several outputs of the Scan; a Node has one, so its own stands
for all of them (a bundle, which no stage can hand on), and an operator for each result reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper, shape_inference

from serfer.core.costs.operator_costs import Work
from serfer.core.errors import ModelError
from serfer.core.plan import AS_IS, TIMED
from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.graph import Node, Weights

AS_IS_OUTPUT = "AsIsOutput"
"""The kind of a node that is one result of a part that has several; a part itself is of kind AS_IS."""
MOST_BYTES = (1 << 31) - (1 << 26)
"""Weights of a part at most: its ONNX model has them inside where a function fetches them, and 2 GB at most."""
PART, NUMBER = "part", "number"
"""The attribute of an AS_IS node, an AsIsPart, and of an AS_IS_OUTPUT node: which result."""
STEP_BY_STEP = frozenset({"GRU", "LSTM", "Loop", "RNN", "Scan"})
"""Kinds of operators whose steps wait for one another, so that more threads do not make them faster."""
IN_8_BITS = frozenset(
    {
        *("ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv"),
        *("QLinearMatMul", "QuantizeLinear"),
    }
)
"""Kinds of operators whose kernels differ between processors."""
SIZED_BY_DATA = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
"""Kinds of operators whose result has a size that depends on the data."""
SIZE = ".size"
"""What is appended to the name of an output for that of its size, which depends on the image."""
BRANCHING = frozenset({"If", "Loop", "SequenceAt"})
"""Kinds of operators whose result may have a size that depends on the data, as operators inside decide."""
_INSIDE = "as-is/"
"""What names inside begin with: they are apart from all names around it."""
_AXES_AS_INPUT = 13
"""From this opset on, Squeeze and Unsqueeze have their axes as an input."""


@dataclass(frozen=True)
class PartCosts:
    """What a part takes for one image: its work, and bytes of memory at most; `times` is as in `Plan`."""

    work: Work
    peak_bytes: int
    times: str = TIMED


@dataclass(frozen=True)
class Reason:
    """An operator that cannot be split, and why."""

    name: str
    kind: str
    why: str

    def __str__(self) -> str:
        return f"{self.name!r} ({self.kind}): {self.why}" if self.name else self.why


@dataclass(frozen=True, eq=False)
class AsIsPart:
    """The body of a Scan without the constants that a weights file holds, and what it is made of.

    `operators` are names and kinds of the given operators; `reasons` say which of them keep the others together;
    `domains` are the versions of operator sets besides ONNX's own.
    """

    body: onnx.GraphProto = field(repr=False)
    operators: tuple[tuple[str, str], ...]
    domains: Mapping[str, int]
    reasons: tuple[Reason, ...] = ()
    costs: PartCosts | None = None

    def __repr__(self) -> str:
        return f"AsIsPart({hashlib.sha256(self.body.SerializeToString()).hexdigest()[:16]})"

    @property
    def name(self) -> str:
        """Its first operator's name, and how many more it has: what a plan's operators are listed by."""
        first, more = self.operators[0][0] if self.operators else "nothing", len(self.operators) - 1
        return f"{first} and {more:,} more" if more > 0 else first

    @property
    def results(self) -> int:
        return len(self.body.output)


@dataclass(frozen=True)
class Varying:
    """The axis along which an output's size depends on the image, and the most of it that a plan has.

    The axis is the file's; an image's own first axis of 1 counts.
    """

    axis: int
    bound: int


@dataclass(frozen=True)
class Result:
    """A tensor that a part computes: its type in ONNX, and its shape for one image, the leading 1 left out."""

    name: str
    kind: int
    dims: tuple[int, ...]
    leading: bool
    """Whether the operators give it a first axis of one image."""
    varying: Varying | None = None
    """Where its size depends on the image: `dims` has the bound there."""

    @property
    def size_name(self) -> str:
        return f"{self.name}{SIZE}"


@dataclass(frozen=True)
class GivenTensor:
    """A tensor that a part reads: its shape for one image, the leading 1 left out, and its type around and inside."""

    name: str
    dims: tuple[int, ...]
    kind: int = TensorProto.FLOAT
    inside: int = TensorProto.FLOAT


@dataclass(frozen=True)
class AsIsNodes:
    """A part as nodes of a graph, with the constants and shapes that they add to it, and the bundle's name, if any."""

    nodes: tuple[Node, ...]
    weights: Weights
    shapes: dict[str, tuple[int, ...]]
    bundles: frozenset[str]


def as_is_nodes(
    model: ExternalWeightsModel,
    nodes: Sequence[onnx.NodeProto],
    given: Sequence[GivenTensor],
    results: Sequence[Result],
    reasons: Sequence[Reason] = (),
    *,
    one_size: bool = True,
) -> AsIsNodes:
    """Return operators of a model as a part of a graph that reads `given` and computes `results`, in float32.

    It also computes the sizes of those whose size depends on the image. Without `one_size`, images have many.
    """
    opset = opset_of(model.proto)
    needed = {name for node in nodes for name in names_read(node)}
    large = {_INSIDE + name: value for name, value in model.large.items() if name in needed}
    small = [tensor for tensor in model.proto.graph.initializer if tensor.name in needed]
    size = sum(value.nbytes for value in large.values())
    if size > MOST_BYTES:
        raise ModelError(
            f"what cannot be split has {size:,} bytes of weights, more than the {MOST_BYTES:,} that one task can have: "
            f"{reasons[0] if reasons else 'the whole network runs as it is'}"
        )
    glue = _Glue(opset, _inferred(model.proto) if one_size else {})
    inner = [step for node in nodes for step in glue.inside(node)]
    computed = {result.name: result.dims for result in results}
    computed |= {result.size_name: () for result in results if result.varying}
    body = helper.make_graph(
        [*(step for tensor in given for step in glue.enter(tensor)), *inner]
        + [step for result in results for step in glue.leave(result)],
        "image",
        [helper.make_tensor_value_info(f"{tensor.name}.image", tensor.kind, tensor.dims) for tensor in given],
        [helper.make_tensor_value_info(f"{name}.result", TensorProto.FLOAT, dims) for name, dims in computed.items()],
        [glue.axes, *map(_inside_tensor, small), *glue.constants],
    )
    domains = {item.domain: item.version for item in model.proto.opset_import if item.domain not in ("", "ai.onnx")}
    used = {node.domain for node in all_nodes(nodes)}
    part = AsIsPart(
        body,
        tuple((node.name or node.output[0], node.op_type) for node in nodes),
        {name: version for name, version in domains.items() if name in used},
        tuple(reasons),
    )
    inputs = (*(tensor.name for tensor in given), *large)
    shapes: dict[str, tuple[int, ...]] = {name: (1, *dims) for name, dims in computed.items()}
    if len(computed) == 1:
        node = Node(part.name, AS_IS, inputs, results[0].name, {PART: part})
        return AsIsNodes((node,), large, shapes, frozenset())
    bundle = "as-is.bundle"
    shapes[bundle] = (1, sum(map(prod, computed.values())))
    whole = Node(part.name, AS_IS, inputs, bundle, {PART: part})
    readers = (
        Node(f"as-is.{number}", AS_IS_OUTPUT, (bundle,), name, {NUMBER: number}) for number, name in enumerate(computed)
    )
    return AsIsNodes((whole, *readers), large, shapes, frozenset({bundle}))


def scan(
    part: AsIsPart, inputs: Sequence[str], outputs: Sequence[str], weights: Iterable[TensorProto]
) -> onnx.NodeProto:
    """Return a part as an ONNX node, with its `weights` inside."""
    body = deepcopy(part.body)
    body.initializer.extend(weights)
    return helper.make_node("Scan", list(inputs), list(outputs), body=body, num_scan_inputs=len(inputs))


def opset_of(model: onnx.ModelProto) -> int:
    return int(next(item.version for item in model.opset_import if item.domain in ("", "ai.onnx")))


def names_read(node: onnx.NodeProto) -> set[str]:
    """Return the tensors that an operator reads, those that the graphs inside it read from around it included."""
    read = set(filter(None, node.input))
    for graph in _graphs(node):
        made = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        made |= {name for inner in graph.node for name in inner.output}
        used = {name for inner in graph.node for name in names_read(inner)} | {value.name for value in graph.output}
        read |= used - made
    return read


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for item in node.attribute:
        if item.type == AttributeProto.GRAPH:
            yield item.g
        yield from item.graphs


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in _graphs(node):
            yield from all_nodes(graph.node)


def _inferred(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the shapes that ONNX infers of a model's outputs, with 0 for a size that it does not."""
    outputs = shape_inference.infer_shapes(model, data_prop=True).graph.output
    return {value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in outputs}


def _inside(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return an operator with names of the body, those of the graphs inside it as well."""
    copy = deepcopy(node)
    for inner in all_nodes([copy]):
        for names in (inner.input, inner.output):
            names[:] = [name and _INSIDE + name for name in names]
        for graph in _graphs(inner):
            del graph.value_info[:]
            for item in (*graph.input, *graph.output, *graph.initializer):
                item.name = _INSIDE + item.name
    return copy


def _inside_tensor(tensor: TensorProto) -> TensorProto:
    copy = deepcopy(tensor)
    copy.name = _INSIDE + tensor.name
    return copy


class _Glue:
    def __init__(self, opset: int, inferred: Mapping[str, tuple[int, ...]]) -> None:
        self._as_input = opset >= _AXES_AS_INPUT
        self._inferred = inferred
        self.axes = numpy_helper.from_array(np.array([0]), "axes")
        self.constants: list[TensorProto] = []

    def enter(self, tensor: GivenTensor) -> Iterator[onnx.NodeProto]:
        source, target = f"{tensor.name}.image", _INSIDE + tensor.name
        if tensor.kind != tensor.inside:
            yield helper.make_node("Cast", [source], [f"{source}.cast"], to=tensor.inside)
            source = f"{source}.cast"
        yield self._step("Unsqueeze", source, target)

    def inside(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield an operator; one that ONNX Runtime 1.32 misreads where it moves a Transpose reads a sequence.

        It takes amounts of some axes for those of all, and reduces by cubics no last axis but one.
        """
        inner = _inside(node)
        resizes = node.op_type in ("CenterCropPad", "Resize")
        misread = resizes and any(item.name == "axes" or item.s == b"cubic" for item in node.attribute)
        if misread or (node.op_type == "Pad" and any(node.input[3:])):
            sequence, kept = f"{inner.output[0]}.sequence", f"{inner.output[0]}.kept"
            yield helper.make_node("SequenceConstruct", inner.input[:1], [sequence])
            yield helper.make_node("SequenceAt", [sequence, self._constant(f"{kept}.place", 0)], [kept])
            inner.input[0] = kept
        yield inner

    def leave(self, result: Result) -> Iterator[onnx.NodeProto]:
        source, target = _INSIDE + result.name, f"{result.name}.result"
        made = (1, *result.dims) if result.leading else result.dims
        inferred = self._inferred.get(result.name, made)
        if len(inferred) == len(made) and all(inferred) and inferred != made and not result.varying:
            # Of a Resize or a pool ONNX may infer another size than ONNX Runtime makes, which has no memory for that.
            yield helper.make_node(
                "Reshape", [source, self._constant(f"{source}.dims", result.dims)], [f"{source}.image"]
            )
            source = f"{source}.image"
        elif result.leading:
            yield self._step("Squeeze", source, f"{source}.image")
            source = f"{source}.image"
        if result.varying:
            axis = result.varying.axis - result.leading
            yield from self._sized(result, source, axis)
            source = f"{result.name}.bounded"
        if result.kind != TensorProto.FLOAT:
            yield helper.make_node("Cast", [source], [target], to=TensorProto.FLOAT)
        else:
            yield helper.make_node("Identity", [source], [target])

    def _sized(self, result: Result, source: str, axis: int) -> Iterator[onnx.NodeProto]:
        """Yield what pads a tensor by its bound and crops it to that, and what has its size as a number."""
        name, bound = result.name, result.dims[axis]
        pads = np.zeros(2 * len(result.dims), dtype=np.int64)
        pads[len(result.dims) + axis] = bound
        at = self._constant(f"{name}.axis", [axis])
        bounds = [self._constant(f"{name}.start", [0]), self._constant(f"{name}.stop", [bound]), at]
        wide = helper.make_node("Cast", [source], [f"{name}.wide"], to=TensorProto.FLOAT)
        amounts = self._constant(f"{name}.pads", pads)
        yield wide
        yield helper.make_node("Pad", [f"{name}.wide", amounts], [f"{name}.padded"])
        yield helper.make_node("Slice", [f"{name}.padded", *bounds], [f"{name}.bounded.float"])
        yield helper.make_node("Cast", [f"{name}.bounded.float"], [f"{name}.bounded"], to=result.kind)
        yield helper.make_node("Shape", [source], [f"{name}.shape"])
        index = self._constant(f"{name}.index", axis)
        yield helper.make_node("Gather", [f"{name}.shape", index], [f"{name}.count"])
        yield helper.make_node("Cast", [f"{name}.count"], [f"{result.size_name}.result"], to=TensorProto.FLOAT)

    def _constant(self, name: str, value: Any) -> str:  # noqa: ANN401 - numbers of any kind
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=np.int64), name))
        return name

    def _step(self, kind: str, source: str, target: str) -> onnx.NodeProto:
        if self._as_input:
            return helper.make_node(kind, [source, self.axes.name], [target])
        given: dict[str, Any] = {"axes": [0]}
        return helper.make_node(kind, [source], [target], **given)
