"""A network as operators: ONNX's, made plain, with one image's static shapes (see ingest.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.plan import Shape

Weights = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Node:
    """One operator; `inputs` are tensor names in ONNX's order, "" where an optional one is absent."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    output: str
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Operators in topological order; `shapes` holds every activation's, for one image.

    `half` names the weights whose values are fp16 numbers and are stored as such; they are float32 here as everywhere.
    """

    nodes: tuple[Node, ...]
    weights: Weights
    input: str
    output: str
    shapes: dict[str, tuple[int, ...]]
    opset: int
    half: frozenset[str] = frozenset()

    def activations(self, node: Node) -> list[str]:
        """Return the inputs of `node` that are computed, not constant, each once."""
        return list(dict.fromkeys(name for name in node.inputs if name and name not in self.weights))

    def constants(self, node: Node) -> list[str]:
        """Return the inputs of `node` that are constant."""
        return [name for name in node.inputs if name in self.weights]

    def shape(self, tensor: str) -> Shape:
        """Return the shape of an activation without its batch axis; what is no map counts as a vector."""
        shape = self.shapes[tensor]
        if len(shape) == 4:  # noqa: PLR2004 - (N, C, H, W)
            return Shape(shape[1], shape[2], shape[3], flat=False)
        return Shape.vector(int(np.prod(shape[1:])))
