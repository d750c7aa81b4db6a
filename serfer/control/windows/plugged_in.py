"""Window policies by name: built in, MODULE:Class of the user's own, and the entry point group `serfer.windows`.

lsth, lsth:gamma=0.3    long-short term histograms, and the weight of the long-term one
hybrid, hybrid:hours=4  the hybrid histogram policy, and for how long it remembers
300                     a fixed keep-alive window in seconds
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from serfer.control.snapshots import SavedFields, Snapshot
from serfer.control.windows.hybrid import SPAN_S, HybridHistogram
from serfer.control.windows.lsth import GAMMA, LongShortHistogram
from serfer.control.windows.windows import MOST_S, FixedKeepAlive, WindowPolicy, Windows
from serfer.core.errors import InputError, UsageError
from serfer.plug_ins import in_one_line, load_entry, load_object, plugged_in

GROUP: Final = "serfer.windows"
_HINT: Final = "(docs/how-to/add-a-policy.md)"
_METHODS: Final = ("observe", "windows", "snapshot", "restore")
_S_PER_HOUR: Final = 3600.0


def window_policies(name: str) -> Callable[[], WindowPolicy]:
    """Return what makes the windows of one instance; raises UsageError for a name or a value that cannot be."""
    kind, _, rest = name.partition(":")
    if kind == "lsth":
        gamma = _value(name, rest, "gamma", GAMMA, 0.0, 1.0)
        return lambda: LongShortHistogram(gamma, name)
    if kind == "hybrid":
        span_s = _S_PER_HOUR * _value(name, rest, "hours", SPAN_S / _S_PER_HOUR, 1.0, MOST_S / _S_PER_HOUR)
        return lambda: HybridHistogram(span_s, name)
    if (seconds := _number(name)) is not None:
        if not 0 <= seconds <= MOST_S:
            raise UsageError(f"a keep-alive window is 0 to {MOST_S:,.0f} seconds, not {name[:40]}")
        return lambda: FixedKeepAlive(seconds)
    made = _plugged_in(name)
    _CheckedWindows(name, made)  # says what is wrong with it
    return lambda: _CheckedWindows(name, made)


def _value(name: str, text: str, key: str, default: float, least: float, most: float) -> float:
    """Return the value of KEY=VALUE, the default where there is none."""
    if not text:
        return default
    given, _, value = text.partition("=")
    number = _number(value) if given == key else None
    if number is None or not least <= number <= most:
        raise UsageError(f"{name[:80]!r}: after the colon stands {key}=NUMBER, {least:g} to {most:g}")
    return number


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _plugged_in(name: str) -> type[Any]:
    if ":" in name:
        made = load_object(name)
    elif (entry := plugged_in(GROUP).get(name)) is not None:
        made = load_entry(entry)
    else:
        known = ", ".join(["lsth", "hybrid", *plugged_in(GROUP)])
        raise UsageError(f"there are no windows {name!r:.80}: there are {known}, seconds, and MODULE:Class")
    if not isinstance(made, type):
        raise UsageError(f"windows {name}: {type(made).__name__} is not a class {_HINT}")
    if missing := [method for method in _METHODS if not callable(getattr(made, method, None))]:
        raise UsageError(f"windows {name}: the class has no {' and no '.join(missing)} {_HINT}")
    return made


class _CheckedWindows:
    """Windows of the user's own, whose errors name them, and whose values are checked."""

    def __init__(self, name: str, made: type[Any]) -> None:
        """Make them; raises UsageError where the constructor fails."""
        self.name = name
        try:
            self._made = made()
        except (Exception, SystemExit) as error:  # the user's own code may raise anything
            raise UsageError(f"windows {name} could not be made: {in_one_line(error)}") from error

    def observe(self, now_s: float, idle_s: float) -> None:
        """Pass an idle time on; raises InputError where that fails."""
        self._call("observe", now_s, idle_s)

    def windows(self, now_s: float) -> Windows:
        """Return the windows; raises InputError where that fails, or they are none."""
        found = self._call("windows", now_s)
        if not isinstance(found, Windows) or not all(_possible(one) for one in (found.prewarm_s, found.keepalive_s)):
            raise InputError(f"windows {self.name}: windows returned {found!r:.80}, not Windows of 0 to {MOST_S:g} s")
        return found

    def snapshot(self) -> Snapshot:
        """Return the snapshot; raises InputError where that fails, or it is no dictionary."""
        found = self._call("snapshot")
        if not isinstance(found, dict):
            raise InputError(f"windows {self.name}: snapshot returned {type(found).__name__}, not a dictionary")
        return found

    def restore(self, saved: SavedFields) -> None:
        """Pass a snapshot on; raises InputError where that fails."""
        self._call("restore", saved)

    def _call(self, method: str, *given: object) -> Any:  # noqa: ANN401 - checked by the caller
        try:
            return getattr(self._made, method)(*given)
        except Exception as error:  # as above
            raise InputError(f"windows {self.name}: {method} failed: {in_one_line(error)}") from error


def _possible(seconds: object) -> bool:
    return isinstance(seconds, int | float) and math.isfinite(seconds) and 0 <= seconds <= MOST_S
