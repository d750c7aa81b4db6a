"""Load cut into levels of one instance's capacity, in the unit in which policies reckon: instance-seconds.

One unit is what the instance costs in a second. At a load that fills a share x of a level, Lambda costs c * x units a
second for it, the instance 1; a start costs its boot's seconds.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.control.scenario import Scenario

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_MOST: Final = 1000  # instances: no pool has more


def levels_of(scenario: Scenario, rate: float) -> int:
    """Return how many levels a load of `rate` queries a second reaches, a thousand at most."""
    return min(math.ceil(rate / scenario.instance.qps), _MOST)


def lambda_units(scenario: Scenario, rate: float, levels: int) -> Floats:
    """Return what Lambda costs in a second for each of so many levels, (levels,) in units."""
    qps = scenario.instance.qps
    loads: Floats = np.clip(rate - qps * np.arange(levels), 0.0, qps)
    return loads * (scenario.serverless.usd_per_query / scenario.instance.usd_per_s)
