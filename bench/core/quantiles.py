"""Percentiles of measurements, of which there may be none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def percentiles(values: Sequence[float], *shares: float) -> list[float]:
    """Return the percentiles (0 to 100) of values, all 0 without any."""
    return [float(each) for each in np.percentile(values or [0.0], shares)]


def holds(count: int, share: float) -> bool:
    """Whether one of so many values lies beyond a percentile (0 to 100), or it is the least or the greatest of them."""
    beyond = min(share, 100 - share)
    return count > 0 and (beyond == 0 or count * beyond >= 100)  # noqa: PLR2004 - percent


def quantile_interval(values: Sequence[float], share: float = 0.5, confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval that has a quantile, of what values are drawn from, with at least this probability.

    It lies between two of the values, whatever their distribution (order statistics; `share` is from 0 to 1, 0.5 the
    median); where there are too few for the probability, it ends at the least or the greatest. Values are independent.
    """
    from scipy.stats import binom  # noqa: PLC0415 - half a second of imports

    ordered, outside = sorted(values), (1 - confidence) / 2
    first, last = (int(binom.ppf(chance, len(ordered), share)) for chance in (outside, 1 - outside))
    return ordered[max(0, first - 1)], ordered[min(last, len(ordered) - 1)]
