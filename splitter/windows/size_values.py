"""The numbers that a network computes of its image's size, such as a padding's, and whether they follow it.

Exporters write them as operators: Shape, then Mod and Sub for a padding, Equal and Where for a condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from serfer.splitter.network.graph import BROADCAST, PER_VALUE

Array = NDArray[Any]
HEIGHT, WIDTH, CHOSEN = 1, 2, 4
"""Marks: on which sides of the image a number depends, and whether by more than sums and products of them."""
BOTH = HEIGHT | WIDTH
_MOVES = frozenset({"Concat", "Expand", "Gather", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})
_SUMS = frozenset({"Add", "Identity", "Mul", "Neg", "Sub", "Sum"})
_SIZED = frozenset({"ConstantOfShape", "Expand", "Pad", "Range", "Reshape", "Resize", "Slice", "Split", "Tile"})
"""Operators whose results have such sizes: sums of both sides are compared with those of other images."""
_MAPS = frozenset({"ConstantOfShape", "Range"})
"""Operators that make maps of numbers."""
_MOST = 64
"""Values of a constant that may be one of the numbers."""


@dataclass(frozen=True, eq=False)
class Number:
    """A number at all lengths of a side, and its marks."""

    values: Array
    marks: int = 0

    def grows(self, steps: Array, *, is_size: bool) -> bool:
        """Return whether it is as much larger by each step; of both sides, whether it is a plain size."""
        if self.marks & BOTH == BOTH:
            return is_size and self.marks == BOTH
        values, rounding = self.values.astype(np.float64), 1e-6 * (self.values.dtype.kind == "f")
        grown = values[0] + steps * (values[min(1, len(values) - 1)] - values[0])
        return self.marks == 0 or bool(np.allclose(values, grown, rtol=rounding, atol=0))


def straying(
    graph: onnx.GraphProto, shapes: Callable[[str], list[Number]], lengths: Array, unit: int
) -> onnx.NodeProto | None:
    """Return an operator on the map that takes numbers which do not grow alike with each unit of the lengths.

    `shapes` returns the sizes of a tensor.
    """
    small = (tensor for tensor in graph.initializer if np.prod(tensor.dims) <= _MOST)
    numbers = {tensor.name: _constant(numpy_helper.to_array(tensor)) for tensor in small}
    steps = (lengths - lengths[0]) // unit
    node: onnx.NodeProto
    for node in graph.node:
        names, made = [name for name in node.input if name], list[Array]()
        read = [numbers[name] for name in names if name in numbers]
        if node.op_type == "Shape":
            bounds = {item.name: item.i for item in node.attribute}
            made = [np.array(shapes(names[0])[bounds.get("start") : bounds.get("end")], object)]
        elif node.op_type == "Size":
            made = [np.array(Number(lengths, BOTH | CHOSEN), object)]
        elif len(read) == len(names) and node.op_type not in _MAPS:
            try:
                made = _computed(node, read)
            except Exception:  # noqa: BLE001 - the references of operators raise many kinds
                made = []
            if not made and any(number.marks for array in read for number in array.flat):
                return node
        numbers.update(zip(node.output, made, strict=False))
        if not made and not all(
            number.grows(steps, is_size=node.op_type in _SIZED) for array in read for number in array.flat
        ):
            return node
    return None


def _constant(value: Array) -> Array:
    return np.array([Number(item) for item in value.reshape(-1, 1)], object).reshape(value.shape)


def _computed(node: onnx.NodeProto, read: list[Array]) -> list[Array]:
    marked = [any(number.marks for number in array.flat) for array in read]
    values = [np.array([number.values[0] for number in array.flat]).reshape(array.shape) for array in read]
    if not any(marked):
        made = _run(node, values)
        return [_constant(value) for value in made] if sum(value.size for value in made) <= _MOST else []
    if node.op_type in _MOVES:
        moved = len(read) if node.op_type == "Concat" else 1
        if any(marked[moved:]):
            return []
        flat = np.concatenate([array.reshape(-1) for array in read[:moved]])
        places = np.split(np.arange(flat.size), np.cumsum([array.size for array in read[:moved]])[:-1])
        ids = [place.reshape(array.shape) for place, array in zip(places, read, strict=False)]
        return [np.asarray(flat[place], object) for place in _run(node, [*ids, *values[moved:]])]
    if node.op_type not in PER_VALUE | BROADCAST:
        return []

    def number(*given: Number) -> Number:
        marks = int(np.bitwise_or.reduce([number.marks for number in given]))
        chosen = CHOSEN if marks and node.op_type not in _SUMS else 0
        return Number(_run(node, [number.values for number in given])[0], marks | chosen)

    return [np.asarray(np.frompyfunc(number, len(read), 1)(*read), object)]


def _run(node: onnx.NodeProto, values: list[Array]) -> list[Array]:
    inputs = dict(zip(filter(None, node.input), values, strict=True))
    return [np.asarray(value) for value in _reference(node.SerializeToString()).run(None, inputs)]


@lru_cache(maxsize=4096)
def _reference(node: bytes) -> ReferenceEvaluator:
    return ReferenceEvaluator(onnx.NodeProto.FromString(node))
