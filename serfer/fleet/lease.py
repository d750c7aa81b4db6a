"""One leader among drivers: a lease in the pool's record, which its holder renews.

    holder's own clock    renewal begins ──── leads for LEASE_S ────┤
    another's clock          sees the counter change ──── waits for TAKEOVER_S ──── takes the lease over

Every change of the record is a compare-and-set, so the lease has one holder. No clocks are compared: a holder counts
from before its last successful renewal, the others from when they saw the counter change, which is later. So two never
lead at once as long as their clocks run equally fast (within a fifth), and a leader that dies is followed within
TAKEOVER_S and two ticks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

LEASE_S = 5.0
TAKEOVER_S = 6.0


@dataclass(frozen=True)
class Lease:
    """The holder of the lease, "" where it was released, and how many times it was taken or renewed."""

    holder: str
    renewals: int


class Election:
    """One candidate's view of the lease; `candidate` is a name that no other one has."""

    def __init__(self, candidate: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.candidate = candidate
        self._clock = clock
        self._seen: Lease | None = None
        self._changed = math.inf
        self._renewals = 0
        self._leads_until = -math.inf

    @property
    def leads(self) -> bool:
        return self._clock() < self._leads_until

    def proposal(self, read: Lease | None) -> Lease:
        """Return the lease to write in place of the one that was just read: a renewal, a takeover, or the same one.

        A record that was lost is restored with the lease that was seen last.
        """
        now = self._clock()
        if read is not None and read != self._seen:
            self._seen, self._changed = read, now
        seen = self._seen or Lease("", 0)
        if seen.holder in {"", self.candidate} or now - self._changed >= TAKEOVER_S:
            # Never a number twice, also where a response or the record was lost: to others it would look unchanged.
            self._renewals = max(self._renewals, seen.renewals) + 1
            return Lease(self.candidate, self._renewals)
        return seen

    def written(self, lease: Lease, begun: float) -> None:
        """Note that a proposal was written, by a request that was sent at `begun` or later."""
        self._leads_until = begun + LEASE_S if lease.holder == self.candidate else -math.inf

    def released(self, read: Lease | None) -> Lease | None:
        """Stop leading, and return the lease to write: free if it was this candidate's."""
        self._leads_until = -math.inf
        return Lease("", read.renewals + 1) if read is not None and read.holder == self.candidate else read
