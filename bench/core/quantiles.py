"""Percentiles of measurements, of which there may be none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def percentiles(values: Sequence[float], *shares: float) -> list[float]:
    """Return the percentiles (0 to 100) of values, all 0 without any."""
    return [float(each) for each in np.percentile(values or [0.0], shares)]
