"""How many offline tasks may run at once beside online queries (INFaaS, sections 3.1, 5 and 6.3.2).

INFaaS pauses offline queries while the utilisation of the worker that they share exceeds 40%, or online queries take
longer than their variant's profile says. Here, besides:

    above a threshold ──▶ 0, at once               refused (429) ──▶ half as many
    below again       ──▶ 1, when that has lasted: two observations of a quiet service, or five below the thresholds
    quiet             ──▶ one more with each observation, up to `most`
    nothing heard     ──▶ 0 when the last observation is older than `stale_s`, 1 after `unknown_s`

Between quiet and the thresholds nothing grows and nothing stops, so a load near a threshold does not start and stop
work. A service that is not heard may be one that is too busy to answer, so nothing new is started; but it may also have
been switched off, and a job must not wait for ever, so after a minute one task at a time goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from serfer.core.errors import UsageError

PERIOD_S = 2.0
"""Seconds between observations: the period of INFaaS's monitors (section 4)."""
_ENOUGH, _QUIET, _BELOW = 10, 5, 2  # credit that ends a pause, and what an observation adds to it


@dataclass(frozen=True)
class Thresholds:
    """When offline work pauses; the defaults of the first two are INFaaS's (sections 5 and 6.3.2).

    Attributes:
        utilisation: of what offline and online work share, as a share of 1.
        latency: observed over profiled latency of online queries.
        quiet: the share of `utilisation` up to which a service is quiet: offline work grows there.
        stale_s: an older observation counts as unknown.
        unknown_s: after so long without any, one task at a time runs.
    """

    utilisation: float = 0.40
    latency: float = 1.0
    quiet: float = 0.75
    stale_s: float = 3 * PERIOD_S
    unknown_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.utilisation <= 1:
            raise UsageError(
                f"the utilisation that pauses offline work is above 0 and at most 1, not {self.utilisation}"
            )
        if not 0 < self.latency < float("inf"):
            raise UsageError(f"the latency that pauses offline work is above 0 times the profile, not {self.latency}")


@dataclass(frozen=True)
class OnlineLoad:
    """What one place says of its online load: its share in use, observed over profiled latency, refusals lately.

    None is what it does not know, which pauses nothing. Shares `of_account` are of one AWS account's concurrency, so
    those of several drivers add up.
    """

    place: str
    utilisation: float | None = None
    latency: float | None = None
    throttled: int = 0
    of_account: bool = False

    def excess(self, limits: Thresholds) -> str:
        """Return in words what is above a threshold, empty where nothing is."""
        if self.throttled:
            return f"{self.place} was refused {self.throttled:,} invocations (429)"
        if self.utilisation is not None and self.utilisation > limits.utilisation:
            return f"utilisation {self.utilisation:.0%} of {self.place}, above {limits.utilisation:.0%}"
        if self.latency is not None and self.latency > limits.latency:
            return f"queries of {self.place} take {self.latency:.2f} of their profile, above {limits.latency:.2f}"
        return ""

    def is_quiet(self, limits: Thresholds) -> bool:
        """Whether offline work may grow beside it."""
        return not self.excess(limits) and (self.utilisation or 0.0) <= limits.quiet * limits.utilisation


def with_account(loads: Sequence[OnlineLoad | None]) -> list[OnlineLoad | None]:
    """Return loads with the account's share in use as all of them together have it."""
    together = sum(load.utilisation or 0.0 for load in loads if load and load.of_account)
    return [replace(load, utilisation=together) if load and load.of_account else load for load in loads]


class OfflineThrottle:
    """Says how many offline tasks may run at once; times are seconds of one clock.

    Without `watches` there is no service to yield to: it begins with `most`, which only refusals of its own work lower.
    """

    def __init__(self, now: float, most: int, *, watches: bool, limits: Thresholds | None = None) -> None:
        self._limits = limits or Thresholds()
        self._most = most
        self._watches = watches
        self._heard = now
        self._limit = 0 if watches else most
        self._credit = _ENOUGH - _QUIET  # one quiet observation starts the first task
        self._reason = "nothing is known yet of the online load"

    def resize(self, most: int) -> None:
        """Allow at most so many; where as many ran as could, as many do again."""
        full = self._limit == self._most and not self._watches
        self._limit = most if full else min(self._limit, most)
        self._most = most

    def observe(self, now: float, loads: Sequence[OnlineLoad | None], refused: int = 0) -> None:
        """Take what the places that are yielded to say, None for one that was not heard.

        `refused` are invocations of offline tasks that were refused with 429 since the last observation.
        """
        if self._is_stale(now):
            self._limit, self._credit = min(self._limit, 1), 0
        loads = with_account(loads)
        over = next((words for load in loads if load and (words := load.excess(self._limits))), "")
        heard = [load for load in loads if load is not None]
        if over or len(heard) == len(loads):
            self._heard = now
        if over:
            self._pause(over)
        elif refused:
            self._limit //= 2
            self._credit = 0
            self._reason = f"{refused:,} invocations of its own were refused (429)"
        elif len(heard) < len(loads):
            self._credit = 0
        else:
            self._grow(all(load.is_quiet(self._limits) for load in heard))

    def limit(self, now: float) -> int:
        """Return how many offline tasks may run at once; those that run already are never stopped."""
        if not self._is_stale(now):
            return self._limit
        return min(1, self._most) if now - self._heard > self._limits.unknown_s else 0

    def reason(self, now: float) -> str:
        """Return in words why nothing may start, empty where something may."""
        if self.limit(now):
            return ""
        if self._is_stale(now):
            return f"nothing was heard of the online load for {now - self._heard:.0f} s"
        return self._reason

    def _is_stale(self, now: float) -> bool:
        return self._watches and now - self._heard > self._limits.stale_s

    def _pause(self, reason: str) -> None:
        self._limit, self._credit, self._reason = 0, 0, reason

    def _grow(self, quiet: bool) -> None:  # noqa: FBT001 - of this class alone
        if self._limit:
            self._limit = min(self._most, self._limit + quiet)
            return
        self._credit += _QUIET if quiet else _BELOW
        if self._credit >= _ENOUGH:
            self._limit, self._credit = min(1, self._most), 0
