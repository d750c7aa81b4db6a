"""Windows in which functions are warm, by name: learnt from idle times, fixed, MODULE:Class, or of `serfer.windows`.

lsth, lsth:gamma=0.3    long-short term histograms, and the weight of the long-term one
hybrid, hybrid:hours=4  the hybrid histogram policy, and for how long it remembers
300                     a fixed keep-alive window in seconds
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from serfer.control.plug_ins import load, unchecked
from serfer.control.windows.histograms import HybridHistogram, LongShortHistogram
from serfer.control.windows.levels import Change, IdlePeriod, WarmLevels
from serfer.control.windows.windows import MOST_S, FixedKeepAlive, WindowPolicy, Windows
from serfer.core.errors import UsageError

__all__ = ["WINDOWS", "Change", "IdlePeriod", "WarmLevels", "WindowPolicy", "Windows", "seconds_in", "window_policies"]

WINDOWS: Final[dict[str, type[WindowPolicy]]] = {"lsth": LongShortHistogram, "hybrid": HybridHistogram}


def window_policies(name: str) -> Callable[[], WindowPolicy]:
    """Return what makes the windows of one instance; raises UsageError for a name or a value that cannot be."""
    if (seconds := seconds_in(name)) is not None:
        if not 0 <= seconds <= MOST_S:
            raise UsageError(f"a keep-alive window is 0 to {MOST_S:,.0f} seconds, not {name[:40]}")
        return lambda: FixedKeepAlive(seconds)
    plug_in = load("windows", "serfer.windows", name, ("observe", "windows"), WINDOWS, "seconds, ")

    def make() -> WindowPolicy:
        policy: WindowPolicy = plug_in.make(checks={"observe": unchecked, "windows": _fault_of})
        policy.name = name  # with its settings
        return policy

    make()  # says what is wrong with it
    return make


def seconds_in(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _fault_of(windows: object, *_: object) -> str | None:
    if not isinstance(windows, Windows) or not all(map(_is_possible, (windows.prewarm_s, windows.keepalive_s))):
        return f"{windows!r:.80}, not Windows of 0 to {MOST_S:g} s"
    return None


def _is_possible(seconds: object) -> bool:
    return isinstance(seconds, int | float) and math.isfinite(seconds) and 0 <= seconds <= MOST_S
