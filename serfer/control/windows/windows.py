"""The contract of what decides when a function is warm: idle times in, a pre-warming and a keep-alive window out.

last query ends ── pre-warming window: nothing is kept ── loaded ── keep-alive window ── let go
                                                             └── a query here starts warm
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

MOST_S: Final = 30 * 86400.0
"""The longest window, in seconds."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Seconds from an idle time's begin until the function is loaded, and for which it is kept from then on.

    With `prewarm_s` 0 it stays loaded (Shahrad et al., Serverless in the wild, ATC 2020, section 4.2).
    """

    prewarm_s: float
    keepalive_s: float

    @property
    def until_s(self) -> float:
        """Seconds after the idle time's begin at which the function is let go."""
        return self.prewarm_s + self.keepalive_s

    def warm_at(self, idle_s: float) -> bool:
        """Return whether a query after so many idle seconds finds the function warm."""
        return self.prewarm_s <= idle_s <= self.until_s

    def kept_s(self, idle_s: float) -> float:
        """Return for how many of so many idle seconds the function is loaded and does nothing."""
        return max(0.0, min(idle_s, self.until_s) - self.prewarm_s)


class WindowPolicy(Protocol):
    """Learns the idle times of one function's instance, and sets its windows; pure, deterministic, and bounded.

    `now_s` is the caller's clock in seconds, Unix time in a service; it never goes back by more than clocks do.
    """

    name: str

    def observe(self, now_s: float, idle_s: float) -> None:
        """Learn that an idle time of so many seconds ended at `now_s` with a query."""
        ...

    def windows(self, now_s: float) -> Windows:
        """Return the windows of an idle time that begins at `now_s`."""
        ...


class FixedKeepAlive:
    """The baseline: keeps a function for so many seconds after each query (300 s in OpenFaaS+; INFless, 5.1)."""

    def __init__(self, keepalive_s: float) -> None:
        self.name = f"{keepalive_s:g}"
        self._windows = Windows(0.0, keepalive_s)

    def observe(self, now_s: float, idle_s: float) -> None:
        """Do nothing."""

    def windows(self, now_s: float) -> Windows:
        del now_s
        return self._windows
