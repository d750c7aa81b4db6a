"""How long a member of a gang waits for another, and how long its function may take: by how long a member may compute.

Both are far below a query's deadline: a member that waits for one that died is billed for it.
"""

from __future__ import annotations

import math

from serfer.core.plan.model import Gang, Plan
from serfer.core.units import MS_PER_S

_COLD_START_S = 10.0
"""Another member may have to start: Lambda allows an environment ten seconds for it."""
_SLOW = 4.0
"""So many times as slow as predicted, a gang is late and not lost."""
_MOST_PATIENCE_S = 40.0
"""Less than the minute that any function may take (TASK_TIMEOUT_S), which the slowest member needs as well."""
_REPORT_S = 5.0


def compute_limit_s(predicted_ms: float) -> int:
    """Return the whole seconds that a member of a gang may compute, which is predicted to take `predicted_ms`."""
    return max(1, math.ceil(_SLOW * predicted_ms / MS_PER_S))


def patience_s(gang: Gang) -> float:
    return min(_COLD_START_S + gang.compute_s, _MOST_PATIENCE_S)


def function_timeout_s(plan: Plan, stage: int, most: float) -> int:
    """Return the time limit of a stage's function, in whole seconds, at most `most`.

    For a gang it is less where a member that has computed slowly, waited in vain and reported it is done before.
    """
    gang = plan.gang_of(stage)
    needed = patience_s(gang) + gang.compute_s + _REPORT_S if gang else most
    return math.ceil(min(needed, most))
