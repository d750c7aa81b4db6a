"""The work of ONNX Runtime's kernels for a tile: the counts that its time is predicted from.

A worker's session optimises a tile's graph at the highest level. What that means here was read off optimised graphs
(1.31 on AVX-512), and `tests/splitter/profiling/test_profile.py` holds it:

- an activation that alone reads a convolution is fused into it, and so is the sum of a convolution with another map;
- convolutions and pools work in the NCHWc layout, channels in blocks of 16. Maps stay in it through activations, sums,
  batch normalisation and concatenation; before anything else, and at the ends of a task, they are converted to NCHW
  (ReorderOutput), and back (ReorderInput);
- a map of which a reader wants only a part (see _Views in splitter/plan_dir/emit.py) is converted to NCHW, sliced and
  converted back; a sum with such a part is no longer fused into the convolution.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import prod

from serfer.core.costs.operator_costs import BLOCK, Kind, Profiles, Work
from serfer.core.geometry import Rect
from serfer.core.plan import AS_IS
from serfer.core.units import MS_PER_S
from serfer.splitter.network.as_is import AS_IS_OUTPUT, PART
from serfer.splitter.network.graph import MAP_RANK, NCHW, POOLS, Graph, Node
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.regions import Regions, input_region

_OPERANDS = 2  # of a sum that runs inside a convolution
_ALIGNMENT = 4  # channels of a dense convolution's input come in fours, or it is left as it was
FUSABLE_ACTIVATIONS = frozenset({"Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"})
"""Activations that are fused into the operator before them."""
_CHEAP = frozenset(
    {"Add", "And", "BatchNormalization", "Cast", "Clip", "Div", "LeakyRelu", "Max", "Min", "Mul", "Relu", "Sub", "Sum"}
)
_BOUNDED = frozenset({"Clip", "LeakyRelu"})
_KEEPS_LAYOUT = FUSABLE_ACTIVATIONS | {"BatchNormalization", "Dropout", "Identity"}
_ANCHORS = frozenset({"Conv", "Gemm"})
_SUMS = ("Add", "Sum")
_FREE = frozenset({AS_IS_OUTPUT, "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_COPIES = frozenset({"Concat", "DepthToSpace", "Expand", "Gather", "Pad", "Slice", "SpaceToDepth", "Transpose"})
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True)
class _LayoutPlan:
    """The memory layout of tensors and the fusion of operators in the optimised graph.

    `nchwc` are the tensors written in NCHWc; `fused` the outputs of operators that are fused into another one,
    `reordered` those of the others whose result some reader wants in the other layout, `converted` these results (the
    output of the last fused operator); `activations` maps an operator to the activation that is fused into it.
    """

    readers: Mapping[str, Sequence[Node]]
    nchwc: AbstractSet[str]
    fused: AbstractSet[str]
    reordered: AbstractSet[str]
    converted: AbstractSet[str]
    activations: Mapping[str, str]


def operator_work(graph: Graph, node: Node, region: Rect) -> Work | None:
    """Return the work of an operator for one image on a region of its output; None where it is fused into another.

    Converting its result for readers is not included (see `conversion_work`).
    """
    if node.kind == AS_IS:
        costs = node.attributes[PART].costs
        return costs.work if costs else None
    layout = graph.once(_layout)
    if node.output in layout.fused or node.kind in _FREE:
        return None
    return _with_reorder(graph, layout, node, region)


def cost_signature(graph: Graph, node: Node) -> Hashable:
    """Return a key that two operators share whose work is the same on any region that starts at the map's corner."""
    layout = graph.once(_layout)
    after = sum(reader.output in layout.fused for reader in layout.readers.get(node.output, ()))
    return (
        *(node.kind, repr(sorted(node.attributes.items())), layout_signature(graph, node.output), after),
        *(node.output in layout.fused, node.output in layout.reordered, layout.activations.get(node.output, "")),
        tuple((graph.shapes[name], graph.axes(name)) for name in graph.activations(node)),
        tuple(graph.weights[name].shape for name in graph.constants(node)),
    )


def layout_signature(graph: Graph, tensor: str) -> Hashable:
    """Return a key that two tensors share whose conversion for readers of equal cost signatures costs the same."""
    layout = graph.once(_layout)
    return graph.shapes[tensor], graph.axes(tensor), tensor in layout.nchwc, tensor in layout.converted


Needs = Sequence[tuple[Node, Rect]]
"""The readers of a tensor, and the rectangle of it that each reads."""


def conversion_work(graph: Graph, tensor: str, have: Rect, needs: Needs, *, is_input: bool = False) -> list[Work]:
    """Return the work of converting `have` of a tensor to the layout and the part that each reader in the task needs.

    With `is_input` the tensor is an input of the task: it comes in NCHW.
    """
    layout, channels = graph.once(_layout), graph.shape(tensor).channels
    works = []
    if is_input and any(need == have and _reads_nchwc(graph, layout.nchwc, reader) for reader, need in needs):
        works.append(_copy_work(Kind.REORDER_TASK_INPUT, graph, tensor, have))
    cropped = [(reader, need) for reader, need in needs if need != have]
    if not cropped:
        return works
    if not is_input and tensor in layout.nchwc:
        works.append(_copy_work(Kind.REORDER_OUTPUT, graph, tensor, have))
    wanted = dict.fromkeys(need for _, need in cropped)
    works += [_copy_work(Kind.CROP, graph, tensor, need) for need in wanted]
    for reader, need in cropped:
        works += _crop_reader_work(graph, layout, reader, channels * need.area)
    return works


def _crop_reader_work(graph: Graph, layout: _LayoutPlan, reader: Node, elements: int) -> list[Work]:
    """Return the extra work of an operator that reads a part of a tensor, in NCHW, not the whole, in NCHWc."""
    if not _reads_nchwc(graph, layout.nchwc, reader):
        return []
    back = Work(Kind.REORDER_INPUT, read=elements, written=elements)
    if reader.kind not in (*_SUMS, "Mul"):
        return [back]
    extra = [Work(Kind.REORDER_OUTPUT, read=elements, written=elements), back]  # the other operand, and the result
    if reader.output in layout.fused:
        extra.append(Work(Kind.ELEMENTWISE, read=2 * elements, written=elements))
        after = [node for node in layout.readers.get(reader.output, ()) if node.output in layout.fused]
        extra += [Work(Kind.ELEMENTWISE, read=elements, written=elements)] * len(after)
    return extra


def tile_works(
    graph: Graph, nodes: Sequence[Node], regions: Regions, inputs: Sequence[str], outputs: Mapping[str, Rect]
) -> list[Work]:
    """Return everything that one tile does: `nodes` on `regions`, from its `inputs` to its `outputs`.

    Each operator is taken by itself, as it would run in the whole network, so that a search can add up any chain.
    """
    works = [one for node in nodes if (one := operator_work(graph, node, regions[node.output]))]
    return works + tile_moves(graph, nodes, regions, inputs, outputs)


def predicted_ms(profiles: Profiles, works: Iterable[Work]) -> tuple[float, float]:
    """Return the milliseconds of a task on one vCPU: what more vCPUs do not speed up, and what they do."""
    parts = [(profiles.run_s, 0.0), *map(profiles.parts, works)]
    serial, parallel = (round(MS_PER_S * sum(seconds), 6) for seconds in zip(*parts, strict=True))
    return serial, parallel


def tile_moves(
    graph: Graph, nodes: Sequence[Node], regions: Regions, inputs: Sequence[str], outputs: Mapping[str, Rect]
) -> list[Work]:
    """Return what a tile does besides its operators: convert maps between NCHW and NCHWc, and crop them."""
    layout, computed, works = graph.once(_layout), {node.output for node in nodes}, list[Work]()
    for name in (*inputs, *(node.output for node in nodes)):
        needs = [
            (reader, input_region(graph, reader, name, regions[reader.output]).clipped)
            for reader in layout.readers.get(name, ())
            if reader.output in computed and not operators.is_replicated(graph, reader)
        ]
        works += conversion_work(graph, name, regions[name], needs, is_input=name in inputs)
    for name, part in outputs.items():
        works += output_work(graph, name, regions[name], part)
    return works


def _copy_work(kind: Kind, graph: Graph, tensor: str, region: Rect) -> Work:
    elements = graph.shape(tensor).channels * region.area
    return Work(kind, read=elements, written=elements)


def _with_reorder(graph: Graph, layout: _LayoutPlan, node: Node, region: Rect) -> Work:
    reordered = graph.shape(node.output).channels * region.area if node.output in layout.reordered else 0
    counted = with_activation(_count(graph, node, region), layout.activations.get(node.output, ""))
    to = Kind.REORDER_OUTPUT if node.output in layout.nchwc else Kind.REORDER_INPUT
    return replace(counted, reordered=reordered, to=to)


def output_work(graph: Graph, tensor: str, have: Rect, part: Rect) -> list[Work]:
    layout, works = graph.once(_layout), []
    if tensor in layout.nchwc and tensor not in layout.converted and have.area > 1:
        works.append(_copy_work(Kind.REORDER_OUTPUT, graph, tensor, have))
    if part != have:
        works.append(_copy_work(Kind.CROP, graph, tensor, part))
    return works


def with_activation(work: Work, activation: str) -> Work:
    """Return the work of an operator with this activation fused into it; "" for none."""
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
    if node.kind in POOLS:
        return replace(counted, taps=prod(node.attributes["kernel_shape"]), channels_out=shape.channels)
    weights = sum(int(graph.weights[name].size) for name in graph.constants(node)) if node.kind in _PRODUCTS else 0
    return replace(counted, weights=weights, channels_out=shape.channels)


def _convolution(graph: Graph, node: Node, region: Rect, counted: Work) -> Work:
    weight, groups = graph.weights[node.inputs[1]].shape, int(node.attributes.get("group", 1))
    stride = int((node.attributes.get("strides") or [1])[-1])  # of columns; a sequence has one axis
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
    if node.kind == "Resize" and node.attributes.get("mode", b"nearest") == b"nearest":
        return Kind.COPY
    return Kind.FULLY_CONNECTED if operators.is_fully_connected(graph, node) else kind_of(node.kind)


def kind_of(operator: str) -> Kind:
    if operator in _PRODUCTS:
        return Kind.PRODUCT
    if operator in POOLS:
        return Kind.POOL
    if operator in (operators.TILE_POOL, operators.TILE_SUM) or operator.startswith(("Reduce", "Global")):
        return Kind.REDUCE
    if operator in _COPIES:
        return Kind.COPY
    return Kind.ELEMENTWISE if operator in _CHEAP else Kind.FUNCTION


def convolution_kind(weight: Sequence[int], groups: int) -> Kind:
    outputs, inputs, *window = weight
    if not _runs_in_nchwc(outputs, inputs, groups):
        return Kind.OTHER_CONVOLUTION
    if groups > 1:
        return Kind.DEPTHWISE if inputs == 1 and outputs == groups else Kind.GROUPED
    if inputs < BLOCK:
        return Kind.IMAGE_CONVOLUTION
    return Kind.POINTWISE if prod(window) == 1 else Kind.CONVOLUTION


def _runs_in_nchwc(outputs: int, inputs: int, groups: int) -> bool:
    """Return whether ONNX Runtime computes a convolution in NCHWc; `inputs` are the channels of a group."""
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


def _reads_nchwc(graph: Graph, nchwc: Container[str], node: Node) -> bool:
    if node.kind == "Conv":
        return _conv_kind(graph, node) not in (Kind.OTHER_CONVOLUTION, Kind.IMAGE_CONVOLUTION)
    return node.output in nchwc


class _LayoutPlanner:
    """Goes through operators in order, as ONNX Runtime does, and finds which are fused and which tensors are NCHWc."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._readers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in graph.activations(node):
                self._readers.setdefault(name, []).append(node)
        self._nchwc: set[str] = set()
        self._anchors: dict[str, str] = {}
        self._last_fused: dict[str, str] = {}
        self._closed: set[str] = set()
        self._activations: dict[str, str] = {}

    def plan(self) -> _LayoutPlan:
        for node in self._graph.nodes:
            if self._writes_nchwc(node):
                self._nchwc.add(node.output)
            host = self._fused_into(node)
            scales = node.kind == "BatchNormalization" and node.output in self._nchwc  # as a convolution
            if host or node.kind in _ANCHORS or scales:
                self._anchors[node.output] = host or node.output
                self._last_fused[host or node.output] = node.output
            if host and node.kind in FUSABLE_ACTIVATIONS:
                self._closed.add(node.output)
                self._activations[host] = node.kind
        fused = {name for name, host in self._anchors.items() if name != host}
        made = {node.output for node in self._graph.nodes}
        tails = {name: self._last_fused.get(name, name) for name in {*made, *self._readers} - fused}
        reordered = {name for name, tail in tails.items() if self._is_reordered(tail)}
        moved = {tails[name] for name in reordered}
        return _LayoutPlan(self._readers, self._nchwc, fused, reordered, moved, self._activations)

    def _writes_nchwc(self, node: Node) -> bool:
        graph = self._graph
        if graph.axes(node.output) != NCHW or len(graph.shapes[node.output]) != MAP_RANK:
            return False
        if node.kind == "Conv":
            return _conv_kind(graph, node) != Kind.OTHER_CONVOLUTION
        if node.kind in POOLS or node.kind == operators.TILE_POOL:
            return graph.shapes[node.output][1] % BLOCK == 0
        sources = graph.activations(node)
        if any(name not in self._nchwc for name in sources):
            return False
        if node.kind == "Concat":
            return node.attributes["axis"] == 1 and all(graph.shapes[name][1] % BLOCK == 0 for name in sources)
        same = all(graph.shapes[name] == graph.shapes[node.output] for name in sources)
        return node.kind in _KEEPS_LAYOUT or (node.kind in (*_SUMS, "Mul") and same and not graph.constants(node))

    def _fused_into(self, node: Node) -> str | None:
        """Return the output of the operator into which this one is fused, None if it is not fused.

        One sum can be fused (into a convolution in NCHWc), and then one activation, of a result that has no other
        reader; x * sigmoid(x) is one operator.
        """
        sources = self._graph.activations(node)
        if node.kind == "Mul" and len(sources) == _OPERANDS:
            gates = [name for name in sources if self._is_gate(name, sources)]
            return gates[0] if gates else None
        alone = [name for name in sources if self._is_alone(name)]
        if node.kind in FUSABLE_ACTIVATIONS:
            return self._anchors[alone[0]] if alone else None
        if node.kind not in _SUMS or node.output not in self._nchwc or len(sources) != _OPERANDS:
            return None
        own = [name for name in alone if self._anchors[name] == name]
        return own[0] if own else None

    def _is_alone(self, name: str) -> bool:
        """Return whether a result has one reader, and its operator can still have another fused into it."""
        free = name in self._anchors and name not in self._closed and name not in self._graph.outputs
        return free and len(self._readers[name]) == 1

    def _is_gate(self, name: str, sources: Sequence[str]) -> bool:
        return any(
            other.output == name and other.kind == "Sigmoid" and other.inputs[0] in sources
            for other in self._graph.nodes
        )

    def _is_reordered(self, tensor: str) -> bool:
        """Return whether some reader needs a map in the layout, NCHW or NCHWc, in which it is not written."""
        graph, nchwc = self._graph, tensor in self._nchwc
        if graph.axes(tensor) != NCHW or graph.shape(tensor).whole.area == 1:
            return False
        readers = self._readers.get(tensor, ())
        wanted = any(_reads_nchwc(graph, self._nchwc, node) != nchwc for node in readers)
        return wanted or (nchwc and tensor in graph.outputs)


def _layout(graph: Graph) -> _LayoutPlan:
    return _LayoutPlanner(graph).plan()
