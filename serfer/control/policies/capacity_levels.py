"""Load cut into capacity levels, one for each instance that it could fill, and what Lambda costs on each.

Policies calculate in instance-seconds: one unit is what an instance costs in a second. At a load that fills a share x
of a level, Lambda costs c * x units a second for it, the instance 1; a start costs its boot's seconds.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.control.scenario import Scenario

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
MAX_LEVELS: Final = 1000  # instances: no pool has more


def levels_of(scenario: Scenario, rate: float) -> int:
    """Return how many levels a load of `rate` queries/s reaches, a thousand at most."""
    return min(math.ceil(rate / scenario.instance.qps), MAX_LEVELS)


def level_loads(scenario: Scenario, rate: float, levels: int) -> Floats:
    """Return how many of `rate` queries/s fall to each of so many levels: (levels,) in queries/s."""
    qps = scenario.instance.qps
    return np.clip(rate - qps * np.arange(levels), 0.0, qps)


def lambda_units(scenario: Scenario, rate: float, levels: int) -> Floats:
    """Return what Lambda costs in a second for each of so many levels: (levels,) in units."""
    price_ratio = scenario.serverless.usd_per_query / scenario.instance.usd_per_s
    return level_loads(scenario, rate, levels) * price_ratio
