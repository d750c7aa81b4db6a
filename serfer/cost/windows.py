"""The parts of a trace that are simulated query by query: its busiest hour and its median one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from serfer.core.errors import UsageError
from serfer.cost.loads.trace import MAX_ROWS, Trace

HOUR_S: Final = 3600.0


@dataclass(frozen=True)
class Window:
    """A part of a trace, in seconds from its beginning; `name` says which."""

    name: str
    begin_s: float
    end_s: float


def windows_of(trace: Trace, seconds: float = HOUR_S) -> tuple[Window, ...]:
    """Return the busiest window, and the median one of those in which queries come; one where they are the same.

    Windows follow each other from the trace's beginning; a trace shorter than one is its own. Raises UsageError for
    an invalid length, or one that makes too many windows.
    """
    if not seconds > 0:
        raise UsageError(f"--window-s is more than 0, not {seconds:g}")
    if trace.seconds / seconds > MAX_ROWS:
        raise UsageError(f"--window-s {seconds:g} makes more than {MAX_ROWS:,} windows: give a longer one")
    count = int(trace.seconds / seconds + 1e-9)
    if count <= 1 and trace.seconds <= seconds:
        return (Window("whole", 0.0, trace.seconds),)
    starts = trace.starts_s
    until = np.concatenate(([0.0], np.cumsum(trace.durations_s * trace.rates)))
    queries = np.diff(np.interp(np.arange(count + 1) * seconds, starts, until))
    busy = np.flatnonzero(queries > 0)
    busiest = int(np.argmax(queries))
    ranked = busy[np.argsort(queries[busy], kind="stable")]
    median = int(ranked[(len(ranked) - 1) // 2]) if len(ranked) else busiest
    numbers = {"busiest": busiest} if median == busiest else {"busiest": busiest, "median": median}
    return tuple(Window(name, number * seconds, (number + 1) * seconds) for name, number in numbers.items())
