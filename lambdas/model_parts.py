"""A model whose sessions are built in little memory: large layers in pieces, convolutions in parts.

ONNX Runtime has a layer's weights twice while it brings them into the form that it computes with (sessions.py), fully
connected layers one after the other, convolutions all together. So

    Gemm(x, W, b)             becomes Concat(Gemm(x, W[rows], b[rows]), ...), pieces of 64 MB at most;
    graph { a ... b, c ... }  becomes graph { a ... b }, graph { c ... }, where nothing but b's output passes, and both
                              have large weights of convolutions: a session each;
    Conv(x, Cast(W))          becomes Conv(x, W) where W is stored in fp16: cast while it is streamed (model_stream.py),
                              since ONNX Runtime would have it in both types.

Outputs are the same bits. Each row of W is a column of the output, computed as in the whole layer. Between parts the
tensor has ONNX's layout, into which ONNX Runtime brings it in any case for a Slice, and from which for a convolution;
an Add would be joined with the convolution before it if that had its other operand in the same part, so that no tensor
which an Add reads is passed on.

Models are read and written as bytes; their weights stay outside (external data). Field numbers are those of onnx.proto.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from serfer.lambdas import protobuf
from serfer.lambdas.protobuf import fields, number_field, read_varint

PIECE_BYTES, PART_BYTES = 1 << 26, 1 << 25
"""Most weights of a piece of a fully connected layer; least weights of convolutions before and behind a cut."""
_ROWS = 16  # a piece has a multiple: ONNX Runtime packs as many columns together
_MODEL_GRAPH = 7
_NODES, _INITIALIZERS, _INPUTS, _OUTPUTS = 1, 5, 11, 12  # of a graph
_NODE_INPUT, _NODE_OUTPUT, _NODE_KIND, _NODE_ATTRIBUTE = 1, 2, 4, 5
_DIMS, _TYPE, _TENSOR_NAME, RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 8, 9, 13, 14
_ATTRIBUTE_NAME, _ATTRIBUTE_NUMBER, _ATTRIBUTE_TYPE = 1, 3, 20
_FLOAT, _HALF, _EXTERNAL, _INT = 1, 10, 1, 2  # tensors' types, a tensor's data's location, an attribute's type
_FLOAT_BYTES, _HALF_BYTES = 4, 2
STORED_AS, FP16 = b"stored", b"fp16"
"""What the external data of a tensor in fp32 say of one that is stored in fp16: no other program reads these models."""
_READERS = frozenset({b"Conv", b"Slice"})


@dataclass(frozen=True)
class _Node:
    kind: bytes
    inputs: tuple[bytes, ...]
    outputs: tuple[bytes, ...]
    rest: bytes = b""

    def field(self) -> bytes:
        tensors = [(_NODE_INPUT, self.inputs), (_NODE_OUTPUT, self.outputs), (_NODE_KIND, (self.kind,))]
        content = b"".join(protobuf.field(number, name) for number, names in tensors for name in names)
        return protobuf.field(_NODES, content + self.rest)


@dataclass(frozen=True)
class Tensor:
    """An initializer: its bytes are `raw`, or `length` bytes of the weights in `location` from `offset`, or unknown.

    Those in the weights are fp16 numbers where the tensor is `half`, which is in fp32.
    """

    content: bytes
    name: bytes
    shape: tuple[int, ...]
    kind: int
    raw: bytes = b""
    location: bytes = b""
    offset: int = 0
    length: int = 0
    half: bool = False

    @property
    def size(self) -> int:
        return self.length * (_FLOAT_BYTES // _HALF_BYTES if self.half else 1) or len(self.raw)

    def rows(self, name: bytes, start: int, stop: int) -> Tensor:
        """Return a part of a tensor by its first axis (a vector's columns, too, where it has two axes)."""
        axis = 0 if self.shape[0] > 1 else len(self.shape) - 1
        row = (self.length or len(self.raw)) // self.shape[axis]
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        part = replace(self, name=name, shape=shape)
        if self.raw:
            raw = self.raw[start * row : stop * row]
            return replace(part, raw=raw, content=tensor_head(part) + protobuf.field(RAW_DATA, raw))
        return _in_weights(replace(part, offset=self.offset + start * row, length=(stop - start) * row))


def tensor_head(tensor: Tensor) -> bytes:
    content = b"".join(number_field(_DIMS, size) for size in tensor.shape)
    return content + number_field(_TYPE, tensor.kind) + protobuf.field(_TENSOR_NAME, tensor.name)


def _in_weights(tensor: Tensor) -> Tensor:
    place = {b"location": tensor.location, b"offset": b"%d" % tensor.offset, b"length": b"%d" % tensor.length}
    if tensor.half:
        place[STORED_AS] = FP16
    content = tensor_head(tensor)
    for entry in place.items():
        both = b"".join(protobuf.field(number, text) for number, text in enumerate(entry, 1))
        content += protobuf.field(_EXTERNAL_DATA, both)
    return replace(tensor, content=content + number_field(_DATA_LOCATION, _EXTERNAL))


@dataclass(frozen=True)
class _Graph:
    head: bytes
    rest: bytes
    inputs: dict[bytes, bytes]
    outputs: dict[bytes, bytes]
    nodes: tuple[_Node, ...]
    tensors: dict[bytes, Tensor]

    def readers(self) -> Counter[bytes]:
        return Counter(name for node in self.nodes for name in node.inputs)

    def model(self) -> bytes:
        read = self.readers()
        content = b"".join(
            (
                *(node.field() for node in self.nodes),
                self.rest,
                *(
                    protobuf.field(_INITIALIZERS, tensor.content)
                    for tensor in self.tensors.values()
                    if tensor.name in read
                ),
                *(protobuf.field(_INPUTS, message) for message in self.inputs.values()),
                *(protobuf.field(_OUTPUTS, message) for message in self.outputs.values()),
            )
        )
        return self.head + protobuf.field(_MODEL_GRAPH, content)


@dataclass(frozen=True)
class Part:
    """A part of a model, a model itself; `reads` is the tensor that it has from the part before."""

    graph: _Graph = field(repr=False)
    reads: str = ""

    @property
    def weight_bytes(self) -> int:
        return sum(self.graph.tensors[name].size for name in self.graph.readers() if name in self.graph.tensors)

    def model(self, shape: Sequence[int | str | None] = ()) -> bytes:
        """Write the model; `shape` is that of the tensor it reads, as the session of the part before says."""
        if not self.reads:
            return self.graph.model()
        name = self.reads.encode()
        return replace(self.graph, inputs={name: _float_value_info(name, shape)}).model()


def parts(model: bytes, *, streams: bool = True) -> list[Part]:
    """Return a model in parts, each of which reads what the one before computes; most models are one.

    With `streams` they can only be read by a stream that casts weights (model_stream.py). Raises IndexError, KeyError
    or ValueError for bytes that are not a model.
    """
    graph = _read(model)
    graph = _with_pieces(_in_fp32(graph) if streams else graph)
    cuts = _find_cuts(graph)
    return [_part(graph, start, stop) for start, stop in pairwise([0, *cuts, len(graph.nodes)])]


def _part(graph: _Graph, start: int, stop: int) -> Part:
    nodes = graph.nodes[start:stop]
    passed = _tensors_across(graph, start)
    inputs = {} if start else graph.inputs
    outputs = (
        graph.outputs
        if stop == len(graph.nodes)
        else {name: _float_value_info(name) for name in _tensors_across(graph, stop)}
    )
    return Part(replace(graph, nodes=nodes, inputs=inputs, outputs=outputs), *(name.decode() for name in passed))


def _tensors_across(graph: _Graph, place: int) -> list[bytes]:
    read = {name for node in graph.nodes[place:] for name in node.inputs}
    return [name for node in graph.nodes[:place] for name in node.outputs if name in read]


def _find_cuts(graph: _Graph) -> list[int]:
    nodes = graph.nodes
    weights = [[graph.tensors[name] for name in node.inputs if name in graph.tensors] for node in nodes]
    sizes = [
        sum(tensor.size for tensor in tensors if tensor.length) if node.kind == b"Conv" else 0
        for node, tensors in zip(nodes, weights, strict=True)
    ]
    before = [0, *accumulate(sizes)]
    cuts = [0]
    for at in _single_tensor_cuts(graph):
        enough = before[at] - before[cuts[-1]] >= PART_BYTES <= before[-1] - before[at]
        if enough and _in_order(weights[:at], weights[at:]):
            cuts.append(at)
    return cuts[1:]


def _single_tensor_cuts(graph: _Graph) -> Iterator[int]:
    readers: dict[bytes, set[bytes]] = defaultdict(set)
    last: dict[bytes, int] = {}
    for at, node in enumerate(graph.nodes):
        for name in node.inputs:
            readers[name].add(node.kind)
            last[name] = at
    last |= dict.fromkeys(graph.outputs, len(graph.nodes))
    passing = {*graph.inputs}
    for at, node in enumerate(graph.nodes[:-1], 1):
        passing = {name for name in (*passing, *node.outputs) if last.get(name, 0) >= at}
        name = min(passing, default=b"")
        if len(passing) == 1 and name not in graph.inputs and name not in graph.outputs and readers[name] <= _READERS:
            yield at


def _in_order(first: Iterable[Sequence[Tensor]], second: Iterable[Sequence[Tensor]]) -> bool:
    ends = (tensor.offset + tensor.length for tensors in first for tensor in tensors)
    starts = (tensor.offset for tensors in second for tensor in tensors if tensor.length)
    return max(ends, default=0) <= min(starts, default=sys.maxsize)


def _in_fp32(graph: _Graph) -> _Graph:
    readers, nodes, tensors = graph.readers(), [], dict(graph.tensors)
    for node in graph.nodes:
        half = graph.tensors.get(node.inputs[0]) if node.kind == b"Cast" else None
        if half and half.kind == _HALF and half.length and readers[half.name] == 1 and _number(node, b"to") == _FLOAT:
            [name] = node.outputs
            tensors[name] = _in_weights(replace(half, name=name, kind=_FLOAT, half=True))
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


def _with_pieces(graph: _Graph) -> _Graph:
    readers = graph.readers()
    nodes: list[_Node] = []
    tensors = dict(graph.tensors)
    for node in graph.nodes:
        rows = _piece_rows(node, graph.tensors, readers)
        if not rows:
            nodes.append(node)
            continue
        constants = [graph.tensors[name] for name in node.inputs[1:]]
        outputs = []
        for start in range(0, constants[0].shape[0], rows):
            pieces = [
                tensor.rows(b"%s.rows%d" % (tensor.name, start), start, min(start + rows, constants[0].shape[0]))
                for tensor in constants
            ]
            tensors |= {piece.name: piece for piece in pieces}
            outputs.append(b"%s.columns%d" % (node.outputs[0], start))
            nodes.append(
                replace(node, inputs=(node.inputs[0], *(tensor.name for tensor in pieces)), outputs=(outputs[-1],))
            )
        axis = protobuf.field(_ATTRIBUTE_NAME, b"axis") + number_field(_ATTRIBUTE_NUMBER, 1)
        attribute = protobuf.field(_NODE_ATTRIBUTE, axis + number_field(_ATTRIBUTE_TYPE, _INT))
        nodes.append(_Node(b"Concat", tuple(outputs), node.outputs, attribute))
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


def _piece_rows(node: _Node, tensors: dict[bytes, Tensor], readers: Counter[bytes]) -> int:
    constants = [tensors.get(name) for name in node.inputs[1:]]
    if node.kind != b"Gemm" or not all(constants) or _number(node, b"transB") != 1:
        return 0
    weights, *bias = (tensor for tensor in constants if tensor)
    count = weights.shape[0]
    if (
        not weights.length
        or weights.size <= PIECE_BYTES
        or any(readers[tensor.name] > 1 for tensor in (weights, *bias))
    ):
        return 0
    if any(tensor.kind != _FLOAT for tensor in (weights, *bias)):
        return 0
    if any(tensor.shape[-1:] != (count,) or tensor.size != count * _FLOAT_BYTES for tensor in bias):
        return 0
    rows = max(1, PIECE_BYTES // (weights.size // count) // _ROWS) * _ROWS
    return rows if rows < count else 0


def _number(node: _Node, attribute: bytes) -> int:
    for number, _, content in fields(node.rest):
        if number == _NODE_ATTRIBUTE:
            entry = {inner: value for inner, _, value in fields(content)}
            if entry[_ATTRIBUTE_NAME] == attribute:
                return read_varint(entry.get(_ATTRIBUTE_NUMBER, b"\0"))[0]
    return 0


def _read(model: bytes) -> _Graph:
    head = rest = b""
    nodes, tensors = [], {}
    values: dict[int, dict[bytes, bytes]] = {_INPUTS: {}, _OUTPUTS: {}}
    for number, whole, content in fields(model):
        if number != _MODEL_GRAPH:
            head += whole
            continue
        for inner, inner_whole, message in fields(content):
            if inner == _NODES:
                nodes.append(_node(message))
            elif inner == _INITIALIZERS:
                tensor = read_tensor(message)
                tensors[tensor.name] = tensor
            elif inner in values:
                name = next(text for field_number, _, text in fields(message) if field_number == 1)
                values[inner][name] = message
            else:
                rest += inner_whole
    return _Graph(head, rest, values[_INPUTS], values[_OUTPUTS], tuple(nodes), tensors)


def _node(message: bytes) -> _Node:
    names: dict[int, list[bytes]] = {_NODE_INPUT: [], _NODE_OUTPUT: [], _NODE_KIND: []}
    rest = b""
    for number, whole, content in fields(message):
        if number in names:
            names[number].append(content)
        else:
            rest += whole
    return _Node(names[_NODE_KIND][0], tuple(names[_NODE_INPUT]), tuple(names[_NODE_OUTPUT]), rest)


def read_tensor(message: bytes) -> Tensor:
    shape: list[int] = []
    place: dict[bytes, bytes] = {}
    name = raw = b""
    kind = 0
    for number, _, content in fields(message):
        if number == _DIMS:
            shape += _numbers(content)
        elif number == _TYPE:
            kind = read_varint(content)[0]
        elif number == _TENSOR_NAME:
            name = content
        elif number == RAW_DATA:
            raw = content
        elif number == _EXTERNAL_DATA:
            entry = {inner: value for inner, _, value in fields(content)}
            place[entry[1]] = entry[2]
    offset, length = (int(place.get(key, b"0")) for key in (b"offset", b"length"))
    half = place.get(STORED_AS) == FP16
    return Tensor(message, name, tuple(shape), kind, raw, place.get(b"location", b""), offset, length, half)


def _numbers(content: bytes) -> Iterator[int]:
    at = 0
    while at < len(content):
        value, at = read_varint(content, at)
        yield value


def _float_value_info(name: bytes, shape: Sequence[int | str | None] = ()) -> bytes:
    tensor = number_field(1, _FLOAT)
    if shape:
        tensor += protobuf.field(2, b"".join(protobuf.field(1, _dimension(size)) for size in shape))
    return protobuf.field(1, name) + protobuf.field(2, protobuf.field(1, tensor))


def _dimension(size: int | str | None) -> bytes:
    if size is None:
        return b""
    return protobuf.field(2, size.encode()) if isinstance(size, str) else number_field(1, size)
