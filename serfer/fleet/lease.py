"""One leader among drivers, with nothing but a store that keeps the first value of a key.

Time is cut into slots. Whoever puts a slot's key first leads in that slot, and nobody else ever does:

    slot        |        41        |        42        |        43        |
    A leads 41           claims 42 ├── at half time: it goes on leading
    B, C                              ├── claim 42 after its grace, in vain
    A dies in 42, with 43 claimed                                         ├── B claims 44 after its grace

So a leader that dies is followed within two slots. Slots are counted by each candidate's own wall clock: where two
clocks differ by less than the grace, the one that follows begins after the one before has ended; where they differ by
more, both may believe for so long that they lead, each in a slot of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from serfer.core.errors import MissingKeyError
from storage.store import Store

SLOT_S = 4.0
_EARLY, _GRACE = 0.5, 0.25  # shares of a slot: when its leader claims the next one, and when others do
_KEPT_SLOTS = 3  # that a key outlives the moment of its claim: it is asked for until its slot is over everywhere


class Lease:
    """Claims slots for one candidate, under keys that begin with `prefix`; `clock` is in seconds since 1970.

    `candidate` is a name that no other one has, of a length that all of them have.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        candidate: str,
        *,
        slot_s: float = SLOT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.candidate = candidate
        self._store = store
        self._prefix = prefix
        self._slot_s = slot_s
        self._clock = clock
        self._held: set[int] = set()
        self._tried: set[int] = set()

    @property
    def leads(self) -> bool:
        """Say whether this candidate leads now, without asking the store."""
        return int(self._clock() // self._slot_s) in self._held

    def claim(self) -> bool:
        """Claim a slot if its time has come, and say whether this candidate leads now; it blocks.

        Called a few times a slot. Raises StoreUnavailableError: then this candidate leads for as long as it knew.
        """
        slot, passed = divmod(self._clock() / self._slot_s, 1.0)
        now = int(slot)
        self._held = {each for each in self._held if each >= now}
        self._tried = {each for each in self._tried if each >= now}
        if now not in self._held and now not in self._tried and passed >= _GRACE:
            self._try(now)
        if now in self._held and now + 1 not in self._tried and passed >= _EARLY:
            self._try(now + 1)
        return self.leads

    def release(self) -> None:
        """Let go of the slots that were claimed, so that another one can lead at once; it blocks."""
        keys = [self._key(slot) for slot in self._held]
        self._held.clear()
        if keys:
            self._store.delete(keys)

    def _try(self, slot: int) -> None:
        key, mine = self._key(slot), self.candidate.encode()
        if self._store.put_new(key, mine, _KEPT_SLOTS * self._slot_s) or self._is_mine(key, mine):
            self._held.add(slot)
        self._tried.add(slot)  # not before: what the store did not answer is asked again

    def _is_mine(self, key: str, mine: bytes) -> bool:
        """Say whether a key was claimed by a try of this candidate's own whose answer was lost."""
        try:
            return self._store.get(key, 0, len(mine)) == mine
        except MissingKeyError:  # it has gone, or is shorter: another one's
            return False

    def _key(self, slot: int) -> str:
        return f"{self._prefix}:lead:{slot}"
