"""The baseline: a fixed keep-alive window, 300 s in OpenFaaS+ (INFless, section 5.1)."""

from __future__ import annotations

from serfer.control.snapshots import SavedFields, Snapshot
from serfer.control.windows.windows import Windows


class FixedKeepAlive:
    """Keeps a function for so many seconds after each query, and learns nothing."""

    def __init__(self, keepalive_s: float) -> None:
        self.name = f"{keepalive_s:g}"
        self._windows = Windows(0.0, keepalive_s)

    def observe(self, now_s: float, idle_s: float) -> None:
        """Do nothing."""

    def windows(self, now_s: float) -> Windows:
        """Return the same windows always."""
        del now_s
        return self._windows

    def snapshot(self) -> Snapshot:
        """Return nothing, for nothing is learnt."""
        return {}

    def restore(self, saved: SavedFields) -> None:
        """Do nothing."""
