"""Parts of a cold start on this machine, predicted by those of a plan's other functions.

The cost model predicts Lambda, where a process starts in `lambda.init` seconds, which is an assumption (aws.toml). Here
another machine starts it. What can be checked here is the model's form: a start that is the same for every function,
and parts in proportion to the bytes of weights. So each function is predicted by the others that were measured beside
it: by the median of their starts, and by their seconds a byte. Its own measurements are not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

STARTING, FETCHING, SESSIONS, FIRST_RUN = "process and imports", "fetching", "graphs and sessions", "first run"
BY_BYTES = FETCHING, SESSIONS, FIRST_RUN


@dataclass(frozen=True)
class MeasuredStart:
    """The median seconds of a function's cold start by part, and the bytes of its weights.

    `FIRST_RUN` is what the first run takes above a warm one.
    """

    weight_bytes: int
    seconds: Mapping[str, float]


def predicted_by_others(others: Sequence[MeasuredStart], weight_bytes: int) -> dict[str, float]:
    """Predict the seconds of each part of a function with so many bytes of weights; empty where others say nothing."""
    total = sum(other.weight_bytes for other in others)
    if not others:
        return {}
    parts = {STARTING: median(other.seconds[STARTING] for other in others)}
    if total:
        parts |= {part: weight_bytes / total * sum(other.seconds[part] for other in others) for part in BY_BYTES}
    return parts
