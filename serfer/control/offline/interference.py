"""Observed over profiled latency of online queries (INFaaS, section 6.3.2), where the profile is measured in service.

A prediction for Lambda says nothing of a machine that other work shares, so the profile is what queries of the same
kind took when they were disturbed least: the quietest block of queries in the last hour. Of that block its 90th
percentile counts, so that the median of queries that nothing disturbs lies below it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median

BLOCK = 32
"""Queries of a block, and so the least that a profile is taken from."""
WINDOW_S = 10.0
"""How long ago a query counts as observed now."""
_LEAST = 3  # queries in the window that say something
_MOST_OBSERVED = 1024
_MOST_KINDS = 256
_SLICE_S, _SLICES = 60.0, 60
_PROFILED = 0.9  # the percentile of a quiet block


@dataclass(frozen=True)
class _Block:
    slice: int
    median_ms: float
    profiled_ms: float


@dataclass
class _Kind:
    """Queries alike: those since the last whole block, and the quietest block of each minute of the last hour."""

    taken: list[float] = field(default_factory=list)
    blocks: deque[_Block] = field(default_factory=lambda: deque(maxlen=_SLICES))

    def add(self, slice_: int, ms: float) -> None:
        self.taken.append(ms)
        if len(self.taken) < BLOCK:
            return
        ranked, self.taken = sorted(self.taken), []
        block = _Block(slice_, median(ranked), ranked[int(_PROFILED * (BLOCK - 1))])
        if not self.blocks or self.blocks[-1].slice != slice_:
            self.blocks.append(block)
        elif block.median_ms < self.blocks[-1].median_ms:
            self.blocks[-1] = block

    def profiled_ms(self, slice_: int) -> float | None:
        """Return the profile, from the blocks of the last hour, or else from the newest one."""
        if not self.blocks:
            return None
        recent = [block for block in self.blocks if block.slice > slice_ - _SLICES]
        return min(recent or [self.blocks[-1]], key=lambda block: block.median_ms).profiled_ms


class Interference:
    """Compares the latencies of queries with those of their kind when they were disturbed least; times in seconds."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()
        self._observed: deque[tuple[float, float]] = deque(maxlen=_MOST_OBSERVED)  # when, observed over profiled

    def add(self, now: float, kind: Hashable, ms: float) -> None:
        """Take the latency of a query; those of one `kind` take as long as one another where nothing disturbs them."""
        known = self._kinds.setdefault(kind, _Kind())
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.popitem(last=False)
        slice_ = int(now // _SLICE_S)
        if profiled_ms := known.profiled_ms(slice_):
            self._observed.append((now, ms / profiled_ms))
        known.add(slice_, ms)

    def ratio(self, now: float) -> float | None:
        """Return the median of observed over profiled latency in the last 10 s; None where too few queries say it."""
        ratios = [ratio for at, ratio in self._observed if at > now - WINDOW_S]
        return median(ratios) if len(ratios) >= _LEAST else None
