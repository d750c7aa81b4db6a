"""What the parts of queries take, as a system times them: SerFer's microbenchmarks (section 6.2, figures 5 to 8)."""

from __future__ import annotations

import time
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

READ, MISS, WRITE, POLL, SPLIT, MERGE = "read", "read in vain", "write", "poll", "split", "merge"
LAYER = "layer {}"
"""Names of parts: requests to the store, waiting for a layer, cutting, putting together, and each layer from 1."""
Times = Mapping[str, Sequence[float]]
"""Milliseconds by the part's name."""
_MS_PER_S = 1000.0


class PartTimes:
    """Collects times by part until they are taken."""

    def __init__(self) -> None:
        self._ms = _no_times()

    def add(self, part: str, ms: Iterable[float]) -> None:
        self._ms[part].extend(ms)

    def since(self, part: str, started: float) -> None:
        self._ms[part].append((time.perf_counter() - started) * _MS_PER_S)

    def take(self) -> Times:
        taken, self._ms = self._ms, _no_times()
        return taken


def _no_times() -> defaultdict[str, array[float]]:
    return defaultdict(lambda: array("d"))
