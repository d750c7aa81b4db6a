"""A network as canonical ONNX operators with one image's static shapes (see ingest.py)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
from numpy.typing import NDArray

from serfer.core.plan import SCORES, MapStatistics, OutputTensor, PlanSizes, Shape

Arguments = TypeVarTuple("Arguments")
Answer = TypeVar("Answer")
Weights = dict[str, NDArray[Any]]
Axes = tuple[int, int]
"""Where a tensor has its rows and where its columns."""
ROW_AXIS, COL_AXIS = 2, 3
NCHW: Axes = (ROW_AXIS, COL_AXIS)
MAP_RANK, VECTOR_RANK = 4, 2
INLINE_BYTES = 1024
"""Smaller constants stay in a model's graph, where ONNX Runtime folds them; larger ones are kept apart from it."""
POOLS = frozenset({"MaxPool", "AveragePool"})
WINDOWED = POOLS | {"Conv"}
PER_VALUE = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh"),
        *("Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN"),
        *("LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid"),
        *("Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"),
    }
)
POINTWISE = PER_VALUE | {"BatchNormalization", "LRN", "PRelu"}
BROADCAST = frozenset(
    {
        *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min"),
        *("Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor"),
    }
)


@dataclass(frozen=True)
class Node:
    """One operator; `inputs` are tensor names in ONNX's order, "" where an optional one is absent."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    output: str
    attributes: dict[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.output)


STATISTICS = "serfer.statistics"
"""The second input of a graph with statistics: one vector of all of them, (N, values).

Where weights depend on the place in the image, it ends with the first row and column of the image that a window reads.
"""


@dataclass(frozen=True)
class Bins:
    """The means of adaptive average pooling: `counts` rows and columns of them, of a map whose `sizes` are these.

    One row of the image makes `growth[0]` rows of the map, and so for columns.
    """

    counts: tuple[int, int]
    sizes: tuple[int, int]
    growth: tuple[Fraction, Fraction]


def bin_bounds(size: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of each of `count` bins, and the one after its last, as adaptive pooling has them."""
    bins = np.arange(count)
    return bins * size // count, -(-(bins + 1) * size // count)


@dataclass(frozen=True)
class Statistic:
    """What is known of a map `source` as a whole: `values`, and of which pass they are, the first being 0.

    They are of all of it, or sums that are the means of its `bins`.
    """

    source: str
    number: int
    values: MapStatistics
    bins: Bins | None = None


@dataclass(frozen=True, eq=False)
class Graph:
    """Operators in topological order; `shapes` holds every activation's, for one image.

    `half` names the weights whose values are fp16 numbers and are stored as such; they are float32 here as everywhere.
    `places` has the rows' and columns' axes of maps that are not (N, C, H, W): a transposed map's, or a map's whose
    channels are groups. `others` names the activations that are not float32 (a comparison's, for example).
    `outputs` are the activations that are the network's outputs, `answers` describes them as the model gives them; it
    is empty for one output (N, K) float32. `rounding` is how far the graph's answer may be from that of the model that
    it was read from, relative to the range, because the model rounds (to fp16, or to 8 bits) what float32 does not.
    `unreduced` are the number of the output that was reduced (reductions.py), and its bytes of one image before that.
    With `sizes` it is one part that takes images of all of these, and `shapes` are those of the largest.
    With `statistics` (windows/global_statistics.py) it has a second input, STATISTICS, from which `fixed` are computed:
    vectors and maps of one position, as large for every image. With `exact_places`, what a row of a linear or cubic
    Resize reads is not rounded as runtimes do, in float32: windows of a large image are alike then. `given_shapes` are
    those of the model's own tensors, as it was read.
    """

    nodes: tuple[Node, ...]
    weights: Weights
    input: str
    outputs: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    opset: int
    half: frozenset[str] = frozenset()
    places: dict[str, Axes] = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    rounding: float = 0.0
    answers: tuple[OutputTensor, ...] = ()
    unreduced: tuple[int, int] | None = None
    sizes: PlanSizes | None = None
    statistics: tuple[Statistic, ...] = ()
    fixed: frozenset[str] = frozenset()
    exact_places: bool = False
    given_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _known_shapes: dict[str, Shape] = field(default_factory=dict, init=False, repr=False)
    _cache: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def output(self) -> str:
        return self.outputs[0]

    @property
    def output_tensors(self) -> tuple[OutputTensor, ...]:
        return self.answers or (OutputTensor(SCORES, self.shapes[self.output][1:], "float32"),)

    def activations(self, node: Node) -> list[str]:
        """Return the inputs of `node` that are computed, not constant, each once."""
        return list(dict.fromkeys(name for name in node.inputs if name and name not in self.weights))

    def constants(self, node: Node) -> list[str]:
        return [name for name in node.inputs if name in self.weights]

    def axes(self, tensor: str) -> Axes | None:
        """Return the axes of an activation's rows and columns, or None for what is not a map."""
        return self.places.get(tensor, NCHW if len(self.shapes[tensor]) == MAP_RANK else None)

    def shape(self, tensor: str) -> Shape:
        """Return the shape of an activation without its batch axis; what is not a map counts as a vector."""
        if tensor not in self._known_shapes:
            self._known_shapes[tensor] = self._shape(tensor)
        return self._known_shapes[tensor]

    def _shape(self, tensor: str) -> Shape:
        shape, axes = self.shapes[tensor], self.axes(tensor)
        size = prod(shape[1:])
        if axes is None:
            return Shape.vector(size)
        height, width = shape[axes[0]], shape[axes[1]]
        return Shape(size // (height * width), height, width, flat=False)

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """The positions of the nodes that read each activation, in order."""
        positions: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for name in self.activations(node):
                positions.setdefault(name, []).append(index)
        return positions

    def last_use(self, tensor: str) -> int:
        return self.readers.get(tensor, [-1])[-1]

    def can_cross(self, tensor: str) -> bool:
        """Return whether stages can hand the activation on: float32, and (N, C, H, W) or (N, K)."""
        plain = len(self.shapes[tensor]) == VECTOR_RANK or self.axes(tensor) == NCHW
        return plain and len(self.shapes[tensor]) in (VECTOR_RANK, MAP_RANK) and tensor not in self.others

    def once(self, question: Callable[[Graph, *Arguments], Answer], *given: *Arguments) -> Answer:
        """Return `question(self, *given)`, computed once: the search for stages asks again and again."""
        key = question, given
        try:
            answer: Answer = self._cache[key]
        except KeyError:
            answer = self._cache[key] = question(self, *given)
        return answer


def needed_for(nodes: Iterable[Node], outputs: Iterable[str], known: Collection[str] = ()) -> tuple[Node, ...]:
    """Return those of `nodes` (in topological order) that `outputs` depend on, where `known` activations are given."""
    needed, kept = set(outputs), list[Node]()
    for node in reversed([*nodes]):
        if node.output in needed and node.output not in known:
            kept.append(node)
            needed.update(node.inputs)
    return tuple(reversed(kept))


def integers(graph: Graph, node: Node, index: int) -> list[int] | None:
    """Return the constant integers that input `index` holds; none for an absent one, None for a computed one."""
    name = node.inputs[index] if index < len(node.inputs) else ""
    if not name:
        return []
    return [int(value) for value in graph.weights[name].reshape(-1)] if name in graph.weights else None
