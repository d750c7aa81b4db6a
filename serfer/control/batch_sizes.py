"""Batch sizes of running instances: how long one waits for a full batch, and which instance gets which size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from serfer.control.dispatch import SPARE
from serfer.control.scenario import InstanceType
from serfer.core.units import MS_PER_S

OWN: Final = 0
"""The batch size of an instance that nobody has set: the largest of its type, and no window."""
_AWAY: Final = 0.1  # of the SLO, for the way to the instance and back


def window_s(kind: InstanceType, batch: int, slo_ms: float) -> float:
    """Return how long an instance waits for a full batch: the SLO without the batch's time (INFless, 3.2).

    A tenth of the SLO is for the way there and back, and half of the batch's time is spared, as an engine spares it
    before each deadline. A batch of 1 waits for nothing.
    """
    return max(0.0, (1 - _AWAY) * slo_ms - SPARE * kind.batch_ms(batch)) / MS_PER_S if batch > 1 else 0.0


def assign(present: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the batch size of each instance, in order, so that as many sizes are wanted as there are, changing few.

    `present` are their sizes now. Instances beyond those that are wanted keep theirs.
    """
    left = Counter(wanted)
    kept: list[int | None] = []
    for size in present:
        keeps = left[size] > 0
        left[size] -= keeps
        kept.append(size if keeps else None)
    missing = sorted(left.elements())  # the largest is taken first
    return [
        chosen if chosen is not None else (missing.pop() if missing else size)
        for chosen, size in zip(kept, present, strict=True)
    ]
