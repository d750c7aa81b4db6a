"""The requests a second that an instance takes without missing its SLO or dropping any: equation 1 of INFless (3.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_SLACK: Final = 1e-9  # of a count before it is rounded: 1 / 0.05 is 20


@dataclass(frozen=True, slots=True)
class RateRange:
    """Requests a second of an instance: below `low` batches time out before they are full, above `up` they queue."""

    low: float
    up: float


def whole_batches(exec_s: float, slo_s: float, batch: int) -> RateRange:
    """Return equation 1 as printed, in whole batches a second: [28, 80] for 50 ms, batches of 4, and an SLO of 200 ms.

    The floor makes `up` 0 where a batch takes more than a second, and `low` may exceed `up` where the SLO is near twice
    the execution time. Raises ValueError unless 0 < exec_s < slo_s.
    """
    _check(exec_s, slo_s)
    up = math.floor(1 / exec_s + _SLACK) * batch
    low = math.ceil(1 / (slo_s - exec_s) - _SLACK) * batch
    return RateRange(float(low), float(up))


def exact_range(exec_s: float, slo_s: float, batch: int) -> RateRange:
    """Return equation 1 without rounding: what plans are made with.

    A batch of 1 does not wait to be filled, so it has no lower bound. Raises ValueError unless 0 < exec_s < slo_s.
    """
    _check(exec_s, slo_s)
    return RateRange(batch / (slo_s - exec_s) if batch > 1 else 0.0, batch / exec_s)


def keeps_slo(exec_s: float, slo_s: float, batch: int) -> bool:
    """Whether a batch may take so long (Algorithm 1, lines 20 and 25).

    Half of the SLO, as a request waits for its batch to fill for up to as long as that batch then takes; all of it
    where nothing waits, in a batch of 1.
    """
    return 0 < exec_s < slo_s if batch == 1 else 0 < exec_s <= slo_s / 2


def _check(exec_s: float, slo_s: float) -> None:
    if not 0 < exec_s < slo_s:
        raise ValueError(f"a batch takes more than 0 s and less than the SLO of {slo_s:g} s, not {exec_s:g}")
