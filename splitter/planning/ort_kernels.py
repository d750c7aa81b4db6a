"""What ONNX Runtime will have to do for an operator of a tile: the counts that its time is predicted from.

A worker's session optimises a tile's graph at the highest level. What that means here was read off optimised graphs
(1.31 on AVX-512), and `tests/splitter/test_profile.py` holds it:

- an activation that alone reads a convolution runs inside it, and so does the sum of a convolution with another map;
- convolutions and pools work on channels in blocks of 16. Maps stay in blocks through activations, sums, batch
  normalisation and concatenation; before anything else, and at the ends of a task, they are reordered;
- a map of which a reader wants only a part (see _Views in splitter/plan_dir/emit.py) is put in order, sliced and put in
  blocks again; a sum with such a part no longer runs inside the convolution.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import prod

from serfer.core.costs.operator_costs import BLOCK, Kind, Work
from serfer.core.geometry import Rect
from splitter.network.graph import MAP_RANK, NCHW, Graph, Node
from splitter.tiling import operators
from splitter.tiling.regions import Regions, input_region

_OPERANDS = 2  # of a sum that runs inside a convolution
_ALIGNMENT = 4  # channels of a dense convolution's input come in fours, or it is left as it was
INSIDE = frozenset({"Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"})
"""Activations that run inside the operator before them."""
_CHEAP = frozenset(
    {"Add", "And", "BatchNormalization", "Cast", "Clip", "Div", "LeakyRelu", "Max", "Min", "Mul", "Relu", "Sub", "Sum"}
)
_BOUNDED = frozenset({"Clip", "LeakyRelu"})
_THROUGH = INSIDE | {"BatchNormalization", "Dropout", "Identity"}
_HOSTS = frozenset({"Conv", "Gemm"})
_SUMS = ("Add", "Sum")
_FREE = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_COPIES = frozenset({"Concat", "DepthToSpace", "Expand", "Gather", "Pad", "Slice", "SpaceToDepth", "Transpose"})
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True)
class _Form:
    """How tensors lie in memory, and who computes them.

    `blocked` are the tensors that are made in blocks; `inside` the outputs of operators that run inside another one,
    `reordered` those of the others whose result some reader wants in the other form, `moved` these results (the output
    of the last operator inside); `activations` says which activation an operator has inside.
    """

    readers: Mapping[str, Sequence[Node]]
    blocked: AbstractSet[str]
    inside: AbstractSet[str]
    reordered: AbstractSet[str]
    moved: AbstractSet[str]
    activations: Mapping[str, str]


def work(graph: Graph, node: Node, region: Rect) -> Work | None:
    """Return what an operator does for one image on a region of its output; None where it runs inside another.

    What it costs to hand parts of the result on is not in it (see `handing_on`).
    """
    form = _form(graph)
    if node.output in form.inside or node.kind in _FREE:
        return None
    return _with_reorder(graph, form, node, region)


def likeness(graph: Graph, node: Node) -> Hashable:
    """Return what two operators have in common whose work is the same on any region that starts at the map's corner."""
    form = _form(graph)
    after = sum(reader.output in form.inside for reader in form.readers.get(node.output, ()))
    return (
        *(node.kind, repr(sorted(node.attributes.items())), tensor_likeness(graph, node.output), after),
        *(node.output in form.inside, node.output in form.reordered, form.activations.get(node.output, "")),
        tuple((graph.shapes[name], graph.axes(name)) for name in graph.activations(node)),
        tuple(graph.weights[name].shape for name in graph.constants(node)),
    )


def tensor_likeness(graph: Graph, tensor: str) -> Hashable:
    """Return what two tensors have in common that cost the same to hand on to readers that are alike."""
    form = _form(graph)
    return graph.shapes[tensor], graph.axes(tensor), tensor in form.blocked, tensor in form.moved


Needs = Sequence[tuple[Node, Rect]]
"""Who reads a tensor, and which rectangle of it each of them reads."""


def handing_on(graph: Graph, tensor: str, have: Rect, needs: Needs, *, given: bool = False) -> list[Work]:
    """Return what it costs a task that `have` of a tensor is read in parts: what each of its readers there needs.

    With `given` the tensor is an input of the task: it comes in order and not in blocks.
    """
    form, channels = _form(graph), graph.shape(tensor).channels
    found = []
    if given and any(need == have and _wants_blocks(graph, form.blocked, reader) for reader, need in needs):
        found.append(_moved(Kind.INPUT_INTO_BLOCKS, graph, tensor, have))
    cropped = [(reader, need) for reader, need in needs if need != have]
    if not cropped:
        return found
    if not given and tensor in form.blocked:
        found.append(_moved(Kind.INTO_ORDER, graph, tensor, have))
    wanted = dict.fromkeys(need for _, need in cropped)
    found += [_moved(Kind.CROP, graph, tensor, need) for need in wanted]
    for reader, need in cropped:
        found += _apart(graph, form, reader, channels * need.area)
    return found


def _apart(graph: Graph, form: _Form, reader: Node, elements: int) -> list[Work]:
    """Return what an operator costs extra that reads a part of a tensor, in order, and not the whole, in blocks."""
    if not _wants_blocks(graph, form.blocked, reader):
        return []
    back = Work(Kind.INTO_BLOCKS, read=elements, written=elements)
    if reader.kind not in (*_SUMS, "Mul"):
        return [back]
    extra = [Work(Kind.INTO_ORDER, read=elements, written=elements), back]  # the other operand, and the result
    if reader.output in form.inside:
        extra.append(Work(Kind.ELEMENTWISE, read=2 * elements, written=elements))
        after = [node for node in form.readers.get(reader.output, ()) if node.output in form.inside]
        extra += [Work(Kind.ELEMENTWISE, read=elements, written=elements)] * len(after)
    return extra


def tile_works(
    graph: Graph, nodes: Sequence[Node], regions: Regions, inputs: Sequence[str], outputs: Mapping[str, Rect]
) -> list[Work]:
    """Return everything that one tile does: `nodes` on `regions`, from its `inputs` to its `outputs`.

    Each operator is taken by itself, as it would run in the whole network, so that a search can add up any chain.
    """
    found = [one for node in nodes if (one := work(graph, node, regions[node.output]))]
    return found + tile_moves(graph, nodes, regions, inputs, outputs)


def tile_moves(
    graph: Graph, nodes: Sequence[Node], regions: Regions, inputs: Sequence[str], outputs: Mapping[str, Rect]
) -> list[Work]:
    """Return what a tile does besides its operators: bring maps into order or into blocks, and crop them."""
    form, inside, found = _form(graph), {node.output for node in nodes}, list[Work]()
    for name in (*inputs, *(node.output for node in nodes)):
        needs = [
            (reader, input_region(graph, reader, name, regions[reader.output]).clipped)
            for reader in form.readers.get(name, ())
            if reader.output in inside and not operators.is_replicated(graph, reader)
        ]
        found += handing_on(graph, name, regions[name], needs, given=name in inputs)
    for name, part in outputs.items():
        found += handed_out(graph, name, regions[name], part)
    return found


def _moved(kind: Kind, graph: Graph, tensor: str, region: Rect) -> Work:
    elements = graph.shape(tensor).channels * region.area
    return Work(kind, read=elements, written=elements)


def _with_reorder(graph: Graph, form: _Form, node: Node, region: Rect) -> Work:
    reordered = graph.shape(node.output).channels * region.area if node.output in form.reordered else 0
    counted = activated(_count(graph, node, region), form.activations.get(node.output, ""))
    to = Kind.INTO_ORDER if node.output in form.blocked else Kind.INTO_BLOCKS
    return replace(counted, reordered=reordered, to=to)


def handed_out(graph: Graph, tensor: str, have: Rect, part: Rect) -> list[Work]:
    """Return what it costs a task to give out `part` of a tensor of which it computes `have`."""
    form, found = _form(graph), []
    if tensor in form.blocked and tensor not in form.moved and have.area > 1:
        found.append(_moved(Kind.INTO_ORDER, graph, tensor, have))
    if part != have:
        found.append(_moved(Kind.CROP, graph, tensor, part))
    return found


def activated(work: Work, activation: str) -> Work:
    """Return the work of an operator with this activation inside; "" for none."""
    if activation in ("", "Relu"):
        return work
    bounded = activation in _BOUNDED
    return replace(work, bounded=work.written if bounded else 0, curved=0 if bounded else work.written)


def _count(graph: Graph, node: Node, region: Rect) -> Work:
    kind, shape = _kind(graph, node), graph.shape(node.output)
    if kind == Kind.FULLY_CONNECTED:
        return _fully_connected(graph, node, region)
    read = sum(
        graph.shape(name).channels * input_region(graph, node, name, region).clipped.area
        if not operators.is_replicated(graph, node)
        else graph.shape(name).elements
        for name in graph.activations(node)
    )
    counted = Work(
        kind,
        macs=operators.macs(graph, node, region.area),
        read=read,
        written=shape.channels * region.area,
        rows=region.rows.size,
        cols=region.cols.size,
    )
    if node.kind in ("Conv", "ConvTranspose"):
        return _convolution(graph, node, region, counted)
    if node.kind in operators.POOLS:
        return replace(counted, taps=prod(node.attributes["kernel_shape"]), channels_out=shape.channels)
    weights = sum(int(graph.weights[name].size) for name in graph.constants(node)) if node.kind in _PRODUCTS else 0
    return replace(counted, weights=weights, channels_out=shape.channels)


def _convolution(graph: Graph, node: Node, region: Rect, counted: Work) -> Work:
    weight, groups = graph.weights[node.inputs[1]].shape, int(node.attributes.get("group", 1))
    stride = int((node.attributes.get("strides") or [1, 1])[1])
    slides = prod(weight[2:]) > 1 and not operators.is_replicated(graph, node)
    pads = input_region(graph, node, node.inputs[0], region).padding if slides else None
    return replace(
        counted,
        weights=prod(weight),
        channels_in=graph.shapes[node.inputs[0]][1],
        channels_out=graph.shapes[node.output][1],
        groups=groups,
        taps=prod(weight[2:]),
        stride=stride,
        edges=edge_columns(pads.left, pads.right, stride) if pads else 0,
    )


def edge_columns(left: int, right: int, stride: int) -> int:
    """Return how many columns of a convolution's output have windows that reach into its padding."""
    return -(-max(0, left) // stride) + -(-max(0, right) // stride)


def _fully_connected(graph: Graph, node: Node, region: Rect) -> Work:
    columns = region.cols.size
    inputs = graph.shape(node.inputs[0]).elements
    return Work(
        Kind.FULLY_CONNECTED,
        macs=inputs * columns,
        read=inputs,
        written=columns,
        weights=inputs * columns,
        cols=columns,
        channels_in=inputs,
        channels_out=columns,
    )


def _kind(graph: Graph, node: Node) -> Kind:
    if node.kind == "Conv":
        return _conv_kind(graph, node)
    return Kind.FULLY_CONNECTED if operators.is_fully_connected(graph, node) else kind_of(node.kind)


def kind_of(operator: str) -> Kind:
    """Return the kind of an ONNX operator that is neither a convolution nor a fully connected layer."""
    if operator in _PRODUCTS:
        return Kind.PRODUCT
    if operator in operators.POOLS:
        return Kind.POOL
    if operator in (operators.TILE_POOL, operators.TILE_SUM) or operator.startswith(("Reduce", "Global")):
        return Kind.REDUCE
    if operator in _COPIES:
        return Kind.COPY
    return Kind.ELEMENTWISE if operator in _CHEAP else Kind.FUNCTION


def convolution_kind(weight: Sequence[int], groups: int) -> Kind:
    """Return the kind of a convolution with a constant weight of this shape."""
    outputs, inputs, *window = weight
    if not _in_blocks(outputs, inputs, groups):
        return Kind.OTHER_CONVOLUTION
    if groups > 1:
        return Kind.DEPTHWISE if inputs == 1 and outputs == groups else Kind.GROUPED
    if inputs < BLOCK:
        return Kind.IMAGE_CONVOLUTION
    return Kind.POINTWISE if prod(window) == 1 else Kind.CONVOLUTION


def _in_blocks(outputs: int, inputs: int, groups: int) -> bool:
    """Say whether ONNX Runtime computes a convolution in blocks of channels; `inputs` are those of a group."""
    if groups == 1:
        return inputs < BLOCK or inputs % _ALIGNMENT == 0
    if inputs == 1 and outputs == groups:
        return outputs % _ALIGNMENT == 0
    return inputs % BLOCK == 0 and outputs // groups % BLOCK == 0


def _conv_kind(graph: Graph, node: Node) -> Kind:
    weight = graph.weights.get(node.inputs[1])
    if weight is None or weight.ndim != MAP_RANK:
        return Kind.OTHER_CONVOLUTION
    return convolution_kind(weight.shape, int(node.attributes.get("group", 1)))


def _wants_blocks(graph: Graph, blocked: Container[str], node: Node) -> bool:
    """Say whether an operator reads maps in blocks."""
    if node.kind == "Conv":
        return _conv_kind(graph, node) not in (Kind.OTHER_CONVOLUTION, Kind.IMAGE_CONVOLUTION)
    return node.output in blocked


def _form(graph: Graph) -> _Form:
    """Return the form of the whole network in one task."""
    key = ("form", "")
    if key not in graph.memo:
        graph.memo[key] = _Finder(graph).form()
    form: _Form = graph.memo[key]
    return form


class _Finder:
    """Goes through operators in order, as ONNX Runtime does, and finds what runs inside what and what is in blocks."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._readers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in graph.activations(node):
                self._readers.setdefault(name, []).append(node)
        self._blocked: set[str] = set()
        self._hosts: dict[str, str] = {}
        self._tails: dict[str, str] = {}
        self._closed: set[str] = set()
        self._activations: dict[str, str] = {}

    def form(self) -> _Form:
        """Return what was found."""
        for node in self._graph.nodes:
            if self._is_made_in_blocks(node):
                self._blocked.add(node.output)
            host = self._host(node)
            scales = node.kind == "BatchNormalization" and node.output in self._blocked  # as a convolution
            if host or node.kind in _HOSTS or scales:
                self._hosts[node.output] = host or node.output
                self._tails[host or node.output] = node.output
            if host and node.kind in INSIDE:
                self._closed.add(node.output)
                self._activations[host] = node.kind
        inside = {name for name, host in self._hosts.items() if name != host}
        made = {node.output for node in self._graph.nodes}
        tails = {name: self._tails.get(name, name) for name in {*made, *self._readers} - inside}
        reordered = {name for name, tail in tails.items() if self._is_reordered(tail)}
        moved = {tails[name] for name in reordered}
        return _Form(self._readers, self._blocked, inside, reordered, moved, self._activations)

    def _is_made_in_blocks(self, node: Node) -> bool:
        graph = self._graph
        if graph.axes(node.output) != NCHW or len(graph.shapes[node.output]) != MAP_RANK:
            return False
        if node.kind == "Conv":
            return _conv_kind(graph, node) != Kind.OTHER_CONVOLUTION
        if node.kind in operators.POOLS or node.kind == operators.TILE_POOL:
            return graph.shapes[node.output][1] % BLOCK == 0
        sources = graph.activations(node)
        if any(name not in self._blocked for name in sources):
            return False
        if node.kind == "Concat":
            return node.attributes["axis"] == 1 and all(graph.shapes[name][1] % BLOCK == 0 for name in sources)
        same = all(graph.shapes[name] == graph.shapes[node.output] for name in sources)
        return node.kind in _THROUGH or (node.kind in (*_SUMS, "Mul") and same and not graph.constants(node))

    def _host(self, node: Node) -> str | None:
        """Return the output of the operator inside which this one runs, if it does.

        An operator takes in one sum (only a convolution in blocks does), and then one activation, of a result that
        nobody else reads; x * sigmoid(x) is one operator.
        """
        sources = self._graph.activations(node)
        if node.kind == "Mul" and len(sources) == _OPERANDS:
            gates = [name for name in sources if self._is_gate(name, sources)]
            return gates[0] if gates else None
        alone = [name for name in sources if self._is_alone(name)]
        if node.kind in INSIDE:
            return self._hosts[alone[0]] if alone else None
        if node.kind not in _SUMS or node.output not in self._blocked or len(sources) != _OPERANDS:
            return None
        own = [name for name in alone if self._hosts[name] == name]
        return own[0] if own else None

    def _is_alone(self, name: str) -> bool:
        """Say whether one operator is all that reads the result of an operator that can take it in."""
        free = name in self._hosts and name not in self._closed and name != self._graph.output
        return free and len(self._readers[name]) == 1

    def _is_gate(self, name: str, sources: Sequence[str]) -> bool:
        return any(
            other.output == name and other.kind == "Sigmoid" and other.inputs[0] in sources
            for other in self._graph.nodes
        )

    def _is_reordered(self, tensor: str) -> bool:
        """Say whether somebody wants a map in blocks where it is in order, or the other way round."""
        graph, blocked = self._graph, tensor in self._blocked
        if graph.axes(tensor) != NCHW or graph.shape(tensor).whole.area == 1:
            return False
        readers = self._readers.get(tensor, ())
        wanted = any(_wants_blocks(graph, self._blocked, node) != blocked for node in readers)
        return wanted or (blocked and tensor == graph.output)
