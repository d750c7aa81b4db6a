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

import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from serfer.core.errors import UsageError

HORIZON_S = 2.0
"""The period in which INFaaS's monitors report (section 4)."""


class Occupancy:
    """The mean of a number in use, and the share of time with any, over about the last HORIZON_S seconds.

    Older use fades exponentially. A state is replaced as a whole, so another thread may read while one writes. Times
    are seconds of any one clock.
    """

    def __init__(self) -> None:
        self._state = (-math.inf, 0.0, 0.0, 0.0)  # since when so many are in use, mean and share until then, how many

    def change(self, now: float, used: float) -> None:
        at, mean, share, before = self._state  # written out, as drivers do this twice for each query
        faded, busy = math.exp((at - now) / HORIZON_S), before > 0
        self._state = (now, before + (mean - before) * faded, busy + (share - busy) * faded, used)

    def mean(self, now: float) -> float:
        return self.read(now)[0]

    def read(self, now: float) -> tuple[float, float]:
        at, mean, share, used = self._state
        faded, busy = math.exp(min(0.0, at - now) / HORIZON_S), used > 0
        return used + (mean - used) * faded, busy + (share - busy) * faded


# Observed over profiled latency of online queries (INFaaS, section 6.3.2), where the profile is measured in service.
#
# A prediction for Lambda says nothing of a machine that other work shares, so the profile is what queries of the same
# kind took when they were disturbed least: the quietest block of queries in the last hour. Of that block its 90th
# percentile counts, so that the median of queries that nothing disturbs lies below it.

BLOCK = 32
"""Queries of a block, and so the least that a profile is taken from."""
WINDOW_S = 10.0
"""How long ago a query counts as observed now."""
_LEAST = 3  # queries in the window that say something
_MOST_OBSERVED = 1024
_MOST_KINDS = 256
_SLICE_S, _SLICES = 60.0, 60
_PROFILED = 0.9  # the percentile of a quiet block


@dataclass(frozen=True)
class _Block:
    slice: int
    median_ms: float
    profiled_ms: float


class _Kind:
    """Queries alike: those since the last whole block, and the quietest block of each minute of the last hour."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.blocks: deque[_Block] = deque(maxlen=_SLICES)
        self.slice, self.profiled_ms = -1, math.nan  # of the last hour's blocks or else the newest one, if any

    def end_block(self) -> None:
        ranked, self.taken = sorted(self.taken), []
        block = _Block(self.slice, median(ranked), ranked[int(_PROFILED * (BLOCK - 1))])
        if not self.blocks or self.blocks[-1].slice != self.slice:
            self.blocks.append(block)
        elif block.median_ms < self.blocks[-1].median_ms:
            self.blocks[-1] = block

    def read(self, slice_: int) -> None:
        self.slice = slice_
        if self.blocks:
            recent = [block for block in self.blocks if block.slice > slice_ - _SLICES]
            self.profiled_ms = min(recent or [self.blocks[-1]], key=lambda block: block.median_ms).profiled_ms


class Interference:
    """Compares the latencies of queries with those of their kind when they were disturbed least; times in seconds."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, _Kind] = {}  # the one that came last at the end
        self._observed: deque[tuple[float, float]] = deque(maxlen=_MOST_OBSERVED)  # when, observed over profiled

    def add(self, now: float, kind: Hashable, ms: float) -> None:
        """Take the latency of a query; those of one `kind` take as long as one another where nothing disturbs them."""
        known = self._kinds[kind] = self._kinds.pop(kind) if kind in self._kinds else _Kind()
        if len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        slice_ = int(now // _SLICE_S)
        if slice_ != known.slice:
            known.read(slice_)
        if known.profiled_ms > 0:
            self._observed.append((now, ms / known.profiled_ms))
        known.taken.append(ms)
        if len(known.taken) == BLOCK:
            known.end_block()
            known.read(slice_)

    def ratio(self, now: float) -> float | None:
        """Return the median of observed over profiled latency in the last 10 s; None where too few queries say it."""
        ratios = [ratio for at, ratio in self._observed if at > now - WINDOW_S]
        return median(ratios) if len(ratios) >= _LEAST else None


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
        if self.throttled:
            return f"{self.place} was refused {self.throttled:,} invocations (429)"
        if self.utilisation is not None and self.utilisation > limits.utilisation:
            return f"utilisation {self.utilisation:.0%} of {self.place}, above {limits.utilisation:.0%}"
        if self.latency is not None and self.latency > limits.latency:
            return f"queries of {self.place} take {self.latency:.2f} of their profile, above {limits.latency:.2f}"
        return ""

    def is_quiet(self, limits: Thresholds) -> bool:
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
