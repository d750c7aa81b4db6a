"""The policy of a pool, and what goes beside it.

observation ──> policy, in a thread ──> plan ──> controller
                    ├──> recording
                    └──> state, every few minutes
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Final

from serfer.control.policy import InstanceGroup, Observation, ProvisioningPlan
from serfer.control.router import Router
from serfer.fleet.beside.lesson import Lesson
from serfer.fleet.beside.recorder import Recorder
from serfer.fleet.beside.state_keeper import SAVE_EVERY_S, StateKeeper

_PATIENCE_S: Final = 10.0


class Decider:
    """Runs a router's policy; nothing that goes beside it delays or fails a decision.

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
        """End what goes beside the policy; the driver that `leads` saves what was learnt."""
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
