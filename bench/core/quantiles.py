"""Percentiles of measurements, of which there may be none."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np


def percentiles(values: Sequence[float], *shares: float) -> list[float]:
    """Return the percentiles (0 to 100) of values, all 0 without any."""
    return [float(each) for each in np.percentile(values or [0.0], shares)]


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval that has the median of what values are drawn from with at least this probability.

    It lies between two of the values, whatever their distribution (order statistics); where there are too few for the
    probability, between the least and the greatest.
    """
    ordered, count = sorted(values), len(values)
    outside, rank = 0.0, 0  # how probable it is that at most `rank` values lie below the median
    while rank < (count - 1) // 2:
        outside += comb(count, rank) / 2**count
        if 2 * (outside + comb(count, rank + 1) / 2**count) > 1 - confidence:
            break
        rank += 1
    return ordered[rank], ordered[count - 1 - rank]
