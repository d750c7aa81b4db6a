"""Asks the policy of a pool, has it recorded, saved and taught.

observation ──> policy, in a thread ──> plan ──> controller
                    ├──> recording
                    └──> state, every few minutes
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Final

from serfer.control.policy import InstanceGroup, Observation, Policy, ProvisioningPlan, paid_for
from serfer.control.router import Router
from serfer.fleet.background import Background
from serfer.fleet.log_events import log_event
from serfer.fleet.policy_state import SAVE_EVERY_S, StateKeeper
from serfer.fleet.recorder import Recorder

_PATIENCE_S: Final = 10.0
_MAX_MISSED: Final = 20_000  # observations: more than five hours

Teach = Callable[[Policy, Callable[[], bool]], None]
"""Has a policy see a history, for as long as the second argument says that this is wanted."""


class Decider:
    """Runs a router's policy; neither a recording nor a state delays or fails a decision.

    `fresh` says that the policy has seen nothing yet.
    """

    def __init__(
        self,
        router: Router,
        recorder: Recorder | None = None,
        keeper: StateKeeper | None = None,
        lesson: Lesson | None = None,
        *,
        fresh: bool = True,
    ) -> None:
        self._lesson = lesson
        self._router = router
        self._keeper = keeper
        self._unsaved_s = 0.0
        self._deciding = Lock()  # a decision outlives the task that awaits it
        self._recorder = recorder
        if recorder and not lesson:
            recorder.begin(router.policy, router.scenario, fresh=fresh)

    @property
    def troubles(self) -> Mapping[str, int]:
        """What failed, by what it was about."""
        return self._keeper.troubles if self._keeper else {}

    async def decide(self, seen: Observation, *, leads: bool = False) -> ProvisioningPlan:
        """Return the policy's plan; it runs in a thread, so that queries run meanwhile.

        The driver that `leads` saves now and then what was learnt.
        """
        return await asyncio.to_thread(self._decided, seen, leads=leads)

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        """Report instances that were on before this driver started."""
        if self._recorder:
            self._recorder.resumed(fleet)
        self._router.policy.resume(fleet)

    async def close(self, *, leads: bool = False) -> None:
        """End recording and lesson; the driver that `leads` saves what was learnt."""
        if self._lesson:
            self._lesson.close()
        if self._keeper:
            await asyncio.to_thread(self._close_keeper, self._keeper, leads=leads)
        if self._recorder:
            await asyncio.to_thread(self._recorder.close, _PATIENCE_S)

    def _close_keeper(self, keeper: StateKeeper, *, leads: bool) -> None:
        if leads and not self._lesson and self._deciding.acquire(timeout=_PATIENCE_S):
            try:
                keeper.offer(self._router.policy)
            finally:
                self._deciding.release()
        keeper.close(_PATIENCE_S)

    def _decided(self, seen: Observation, *, leads: bool) -> ProvisioningPlan:
        with self._deciding:
            self._learn(seen)
            plan = self._observed(seen)
            self._unsaved_s += seen.elapsed_s
            if self._keeper and leads and not self._lesson and self._unsaved_s >= SAVE_EVERY_S:
                self._unsaved_s = 0.0
                self._keeper.offer(self._router.policy)
            return plan

    def _learn(self, seen: Observation) -> None:
        """Have the policy that learns take over where its lesson is over; then it is recorded, too."""
        if self._lesson is None:
            return
        if not self._lesson.over:
            self._lesson.miss(seen)
            return
        self._router.policy = self._lesson.graduate(seen) or self._router.policy
        self._lesson = None
        if self._recorder:
            self._recorder.begin(self._router.policy, self._router.scenario, fresh=False)

    def _observed(self, seen: Observation) -> ProvisioningPlan:
        plan, failed = None, None
        try:
            plan = self._router.policy.observe(seen)
        except Exception as error:
            failed = error
            raise
        finally:
            if self._recorder:
                self._recorder.decided(seen, plan, failed)
        return plan


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
