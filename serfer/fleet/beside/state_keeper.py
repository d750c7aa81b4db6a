"""Keeps what a policy has learnt: restored when a driver starts, saved by the one that leads."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from serfer.control.policy import Learner
from serfer.control.saved.fields import Snapshot
from serfer.control.saved.state import MAX_STATE_BYTES, StateOwner, decode_state, encode_state
from serfer.core.errors import SerferError
from serfer.fleet.beside.background import Background
from serfer.fleet.beside.state_places import StatePlace
from serfer.fleet.log_events import log_event

SAVE_EVERY_S: Final = 300.0
_TROUBLE: Final = "state"


class Named(Protocol):
    """A policy of any kind; what it has learnt is kept where it is a Learner."""

    name: str


_Kept = TypeVar("_Kept", bound=Named)


class StateKeeper:
    """Restores and saves one policy's state; what fails is logged, and counted in `troubles`."""

    def __init__(self, place: StatePlace, owner: StateOwner, unix: Callable[[], float] = time.time) -> None:
        self.troubles: Counter[str] = Counter()
        self._place = place
        self._owner = owner
        self._unix = unix
        self._refused = False
        self._latest: Snapshot = {}
        self._last_trouble: str | None = None
        self._writer = Background("policy state", 1)

    def restored(self, make: Callable[[], _Kept]) -> _Kept | None:
        """Return a policy that goes on from what is kept, None where nothing is, or nothing that can be taken."""
        policy = make()
        if not isinstance(policy, Learner):
            self._say(
                logging.WARNING,
                f"{policy.name} keeps nothing: it has no snapshot and restore, so it starts with nothing learnt",
            )
            return None
        try:
            data = self._place.read(MAX_STATE_BYTES)
            if data is None:
                self._say(logging.INFO, "nothing is kept yet")
                return None
            policy.restore(decode_state(data, self._owner))
        except Exception as error:  # noqa: BLE001 - a policy of someone's own may raise anything, and the service starts
            self.troubles[_TROUBLE] += 1
            self._refused = True
            words = str(error) if isinstance(error, SerferError) else f"{type(error).__name__}: {error}"
            self._say(logging.WARNING, f"refused, so the policy starts with nothing learnt: {words}")
            return None
        self._say(logging.INFO, f"restored, {len(data):,} bytes")
        return policy

    def offer(self, policy: Named) -> None:
        """Have the policy's snapshot of now saved, in place of an earlier one that still waits for that."""
        if not isinstance(policy, Learner):
            return
        try:
            self._latest = policy.snapshot()
        except Exception as error:  # noqa: BLE001 - same
            self._failed(error)
            return
        self._writer.put(self._save)  # one that waits already takes the latest

    def close(self, patience_s: float) -> None:
        """Wait until what was offered is saved."""
        if not self._writer.close(patience_s):
            self._failed(TimeoutError(f"it was not written within {patience_s:g} s"))

    def _save(self) -> None:
        snapshot = self._latest
        try:
            data = encode_state(self._owner, self._unix(), snapshot)
            if self._refused:
                self._place.set_aside()
                self._refused = False
            self._place.write(data)
        except Exception as error:  # noqa: BLE001 - the next one is tried
            self._failed(error)
        else:
            self._last_trouble = None

    def _failed(self, error: Exception) -> None:
        self.troubles[_TROUBLE] += 1
        words = f"not saved: {error if isinstance(error, SerferError) else f'{type(error).__name__}: {error}'}"
        if words != self._last_trouble:
            self._last_trouble = words
            self._say(logging.WARNING, words)

    def _say(self, level: int, message: str) -> None:
        log_event(level, "policy state", place=str(self._place), message=message.partition("\n")[0])
