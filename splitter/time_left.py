"""How long a split will still take, said with each of its steps.

A split reads the network, chooses a plan, writes it, and checks it. What each takes is expected from the network's size
by figures of one machine (a module's export from its layers, the search from the operators, the check from their
multiply-accumulates); what has passed says how fast this machine is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from serfer.splitter.network.graph import Graph
from serfer.splitter.tiling import operators

_IMPORTS_S: Final = 1.0
_LAYER_S: Final = 0.03
"""Of a module's export, a layer."""
_UNKNOWN_S: Final = 5.0
"""Of reading a network that is known by a name."""
_READ_RATE: Final = 2e8
"""Bytes a second of weights that are read, or written."""
_OPERATOR_S: Final = 0.015
"""Of the search, an operator."""
_MACS_RATE: Final = 1e10
_PASSES: Final = 4
_LEAST_S: Final = 0.3
"""Of every part of a split."""


class TimeLeft:
    """Passes steps on, each with about how many seconds are left: those of reading `model`, and what follows.

    `begin` says that the next part begins, `expect` how large the network turned out to be.
    """

    def __init__(self, say: Callable[[str], None], model: Any, clock: Callable[[], float] = time.monotonic) -> None:  # noqa: ANN401 - what `split` takes
        self._say, self._clock = say, clock
        reading = _reading_s(model)
        self._expected = [reading, *(max(reading / 4, _LEAST_S) for _ in range(3))]
        self._part, self._started, self._began = 0, clock(), clock()

    def __call__(self, step: str) -> None:
        self._say(f"{step} (about {max(self.seconds, 1):.0f} s left)")

    @property
    def seconds(self) -> float:
        now, done = self._clock(), sum(self._expected[: self._part])
        pace = (self._began - self._started) / done if done else 1.0
        this = max(pace * self._expected[self._part] - (now - self._began), 0.0)
        return this + pace * sum(self._expected[self._part + 1 :])

    def begin(self) -> None:
        """Go on to the next part of a split; the last one is begun as often as something is checked."""
        self._part, self._began = min(self._part + 1, len(self._expected) - 1), self._clock()

    def expect(self, graph: Graph) -> None:
        """Expect of the parts after reading what a network of this size takes."""
        count = sum(weight.nbytes for weight in graph.weights.values())
        macs = sum(operators.macs(graph, node, graph.shape(node.output).whole.area) for node in graph.nodes)
        writing = _LEAST_S + count / _READ_RATE
        checking = _LEAST_S + count / _READ_RATE + _PASSES * macs / _MACS_RATE
        self._expected[1:] = [_LEAST_S + _OPERATOR_S * len(graph.nodes), writing, checking]


def _reading_s(model: Any) -> float:  # noqa: ANN401 - what `split` takes
    if isinstance(model, Path | str):
        try:
            return _IMPORTS_S + Path(model).stat().st_size / _READ_RATE
        except (OSError, ValueError):  # a name, or a factory's; ValueError: a NUL in it
            return _UNKNOWN_S
    layers = getattr(model, "modules", None)
    return _IMPORTS_S + _LAYER_S * sum(1 for _ in layers()) if callable(layers) else _UNKNOWN_S
