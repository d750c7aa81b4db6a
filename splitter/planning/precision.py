"""The paper's first optimisation: weights stored in fp16, cast to fp32 when a worker loads them (SerFer, section 5).

Half the package, the same speed. Arithmetic stays in fp32, so the loss is the rounding of the weights alone; layers
that it hurts most, because their values leave fp16's range, keep fp32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from serfer.core.plan import AS_IS
from serfer.splitter.network.graph import INLINE_BYTES, Graph, Node

_BLOCK = 1 << 16
_WORST_ROUNDING = 1e-3  # relative L2; values inside fp16's normal range lose about 2.8e-4 together


def storable(graph: Graph, nodes: Iterable[Node]) -> frozenset[str]:
    """Return the weights of these nodes that fp16 holds well: large, float32, and within its range.

    Those of a part that runs as it is are not: it is not rewritten.
    """
    split = (node for node in nodes if node.kind != AS_IS)
    weights = {name: graph.weights[name] for node in split for name in graph.constants(node)}
    return frozenset(
        name
        for name, value in weights.items()
        if value.dtype == np.float32
        and value.nbytes > INLINE_BYTES
        and graph.once(_rounding_of, name) <= _WORST_ROUNDING
    )


def predicted_loss(graph: Graph, names: Iterable[str]) -> float:
    """Predict the loss of storing weights in fp16, relative to the outputs' range, from how much each is rounded.

    Errors of layers are independent and pass through the others as they are: the root of the sum of their squares.
    """
    return math.hypot(*(graph.once(_rounding_of, name) for name in names))


def storable_within(graph: Graph, max_loss: float) -> frozenset[str]:
    """Return the weights that fp16 holds well whose predicted loss is at most `max_loss`, the largest first."""
    chosen: list[str] = []
    lost = 0.0
    for name in sorted(storable(graph, graph.nodes), key=lambda name: (-graph.weights[name].nbytes, name)):
        more = math.hypot(lost, graph.once(_rounding_of, name))
        if more <= max_loss:
            chosen, lost = [*chosen, name], more
    return frozenset(chosen)


def rounded_up(loss: float) -> float:
    unit = 10.0 ** math.floor(math.log10(loss)) if loss else 1.0
    return math.ceil(round(loss / unit, 9)) * unit


def _rounding_of(graph: Graph, name: str) -> float:
    return rounding(graph.weights[name])


def rounding(value: NDArray[np.float32]) -> float:
    """Return how much fp16 storage changes a weight, as a share of its L2 norm; infinite where values overflow."""
    total = lost = 0.0
    for block in np.split(value.ravel(), range(_BLOCK, value.size, _BLOCK)):  # a weight may be 400 MB
        with np.errstate(over="ignore"):
            stored = block.astype(np.float16)
        if not np.isfinite(stored).all():
            return float("inf")
        error = block - stored
        total += float(block @ block)
        lost += float(error @ error)
    return float(np.sqrt(lost / total)) if total else 0.0


def with_half(graph: Graph, names: frozenset[str]) -> Graph:
    weights = {
        name: value.astype(np.float16).astype(np.float32) if name in names else value
        for name, value in graph.weights.items()
    }
    return replace(graph, weights=weights, half=graph.half | names)
