"""Cuts whose tensors may be worth sending through the object store: bounds that keep the search small, and exact.

Such a store answers later than the first and charges more for a request, but nothing for a byte. A stage that writes
there, and one that reads there, then saves dollars only by its bytes, and never time. Where the most that any stage up
to a cut saves by writing and the most that any stage after it saves by reading save nothing together, no chain of
stages is better for having its tensors there, for any objective.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from serfer.core.costs.aws import LambdaFacts
from serfer.core.costs.cost_model import Platform, billed_usd
from serfer.core.units import MS_PER_S

_ROUNDING = 1e-6  # of a millisecond: bills are rounded to less before they are rounded up


@dataclass(frozen=True)
class ObjectStoreTradeoff:
    """The object store compared with the first: what a request takes and costs more, and what a byte costs less."""

    functions: LambdaFacts
    request_s: float
    range_s: float
    put_usd: float
    get_usd: float
    byte_usd: float

    @classmethod
    def on(cls, platform: Platform) -> ObjectStoreTradeoff | None:
        """Return the trade-off of a platform, or None where it has no object store."""
        near, far = platform.store, platform.objects
        if far is None:
            return None
        return cls(
            platform.functions,
            far.request_latency - near.request_latency,
            far.range_latency - near.range_latency,
            far.price_put - near.price_put,
            far.price_get - near.price_get,
            near.price_byte - far.price_byte,
        )

    @property
    def bounded(self) -> bool:
        """Whether the two bounds hold: nothing but the bytes may be in its favour."""
        return min(self.request_s, self.range_s, self.put_usd, self.get_usd) >= 0

    def most_saved_writing(self, tasks: int, size: float, memory_mb: int) -> float:
        """Return the most dollars that `tasks` with so much memory or more save who write `size` bytes together."""
        return size * self.byte_usd - tasks * (self.put_usd + self._waiting(self.request_s, memory_mb))

    def most_saved_reading(self, tasks: int, ranges: int, size: float, memory_mb: int) -> float:
        """Return the same for tasks that read `size` bytes together, each in so many ranges or more."""
        waiting = self._waiting(self.request_s + ranges * self.range_s, memory_mb)
        return size * self.byte_usd - tasks * (ranges * self.get_usd + waiting)

    def _waiting(self, seconds: float, memory_mb: int) -> float:
        """Price the least that a bill of whole milliseconds grows by."""
        whole = math.floor(seconds * MS_PER_S - _ROUNDING) if seconds else 0
        return float(billed_usd(memory_mb, max(whole, 0) / MS_PER_S, self.functions))
