"""A policy that learns from a history in a thread, while another one decides, and then takes over from it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from serfer.control.policy import Observation, Policy, paid_for
from serfer.fleet.beside.background import Background
from serfer.fleet.log_events import log_event

_MAX_MISSED: Final = 20_000  # observations: more than five hours

Teach = Callable[[Policy, Callable[[], bool]], None]
"""Has a policy see a history, for as long as the second argument says that this is wanted."""


class Lesson:
    """Teaches `policy`; what is observed meanwhile it sees afterwards. What fails is logged, and ends the lesson."""

    def __init__(self, policy: Policy, teach: Teach) -> None:
        self._policy = policy
        self._teach = teach
        self._missed: deque[Observation] = deque(maxlen=_MAX_MISSED)
        self._wanted, self._learnt, self.over = True, False, False
        self._thread = Background("policy history", 1)
        self._thread.put(self._learn)

    def miss(self, seen: Observation) -> None:
        """Note what is observed before the lesson is over."""
        self._missed.append(seen)

    def graduate(self, seen: Observation) -> Policy | None:
        """Return the policy, up to date but for `seen`, once the lesson is over; None where it failed."""
        if not self._learnt:
            return None
        try:
            for missed in self._missed:
                self._policy.observe(missed)
            if paid_for(seen.fleet):
                self._policy.resume(seen.fleet)
        except Exception as error:  # noqa: BLE001 - the policy that decides meanwhile goes on
            self._say(logging.WARNING, f"left out: {type(error).__name__}: {error}")
            return None
        self._say(logging.INFO, f"seen, and {len(self._missed):,} observations since the start")
        return self._policy

    def close(self) -> None:
        """Have the lesson end."""
        self._wanted = False
        self._thread.close(0.0)

    def _learn(self) -> None:
        try:
            self._teach(self._policy, lambda: self._wanted)
            self._learnt = self._wanted
        except BaseException as error:  # noqa: BLE001 - whatever a policy raises ends here
            self._say(logging.WARNING, f"left out: {type(error).__name__}: {error}")
        self.over = True

    def _say(self, level: int, message: str) -> None:
        log_event(level, "policy history", policy=self._policy.name, message=message.partition("\n")[0])
