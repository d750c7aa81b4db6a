"""Policies beside the live one, on the same observations: what they would want and cost, without spending.

Each has a thread of its own. Nothing that it raises, and no time that it takes, reaches the live policy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from serfer.control.policy import InstanceGroup, Observation, Policy, ProvisioningPlan
from serfer.control.scenario import Scenario
from serfer.control.shadow import RateAccount, Shadow
from serfer.fleet.beside.background import Background
from serfer.fleet.beside.lesson import Teach
from serfer.fleet.log_events import log_event

MAX_SHADOWS: Final = 8
_MAX_WAITING: Final = 600  # observations: ten minutes


@dataclass(frozen=True)
class Course:
    """What a policy wants and would have cost since the start, in dollars at the level of rates.

    `troubles` counts the observations that it failed on, or that found it busy for too long.
    """

    policy: str
    wanted: int
    serverless_usd: float
    instances_usd: float
    troubles: int


class ShadowRunner:
    """Runs one shadow, which is taught a history first with `teach`; `course` is how it stands."""

    def __init__(self, policy: Policy, scenario: Scenario, teach: Teach | None = None) -> None:
        self._shadow = Shadow(policy, scenario)
        self._name = policy.name
        self._troubles = 0
        self._last_trouble: str | None = None
        self._wanted: int | None = None
        self._open = True
        self._thread = Background(f"shadow {policy.name}", _MAX_WAITING)
        if teach is not None:
            self._put(partial(teach, policy, lambda: self._open))

    @property
    def course(self) -> Course:
        """How it stands."""
        account, wanted = self._shadow.account, self._shadow.wanted
        return Course(self._name, wanted, account.serverless_usd, account.instances_usd, self._troubles)

    def observe(self, seen: Observation) -> None:
        """Have it decide."""
        self._put(partial(self._decide, seen))

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        """Have it begin with the instances that are on."""
        self._put(partial(self._shadow.resume, fleet))

    def close(self) -> None:
        """Have it decide no more; what it does now is not waited for."""
        self._open = False
        self._thread.close(0.0)

    def _put(self, work: Callable[[], object]) -> None:
        if not self._thread.put(partial(self._survived, work)):
            self._trouble(f"more than {_MAX_WAITING} observations wait for it: it is too slow")

    def _decide(self, seen: Observation) -> None:
        plan = self._shadow.observe(seen)
        if plan.total != self._wanted:
            self._wanted = plan.total
            usd = {"serverless_usd": self.course.serverless_usd, "instances_usd": self.course.instances_usd}
            log_event(logging.INFO, "shadow", policy=self._name, wanted=plan.total, reason=plan.reason, **usd)

    def _survived(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever a policy raises, SystemExit too, ends here
            self._trouble(f"{type(error).__name__}: {error}".partition("\n")[0])
        else:
            self._last_trouble = None

    def _trouble(self, message: str) -> None:
        self._troubles += 1
        if message != self._last_trouble:
            self._last_trouble = message
            log_event(logging.WARNING, "shadow trouble", policy=self._name, message=message)


class Shadows:
    """The shadows of a live policy, and the live one's own plans on the same account, to compare them with."""

    def __init__(self, live: str, scenario: Scenario, policies: Sequence[Policy], teach: Teach | None = None) -> None:
        self._live = live
        self._account = RateAccount(scenario)
        self._wanted = 0
        self._runners = [ShadowRunner(policy, scenario, teach) for policy in policies]

    @property
    def courses(self) -> list[Course]:
        """How they stand, the live policy first."""
        own = Course(self._live, self._wanted, self._account.serverless_usd, self._account.instances_usd, 0)
        return [own, *(runner.course for runner in self._runners)]

    def decided(self, seen: Observation, plan: ProvisioningPlan | None) -> None:
        """Pass on what the live policy saw, and account for what it decided; None where it failed."""
        for runner in self._runners:
            runner.observe(seen)
        self._account.pass_time(seen.elapsed_s, seen.rate)
        if plan is not None:
            self._account.want(plan)
            self._wanted = plan.total

    def resumed(self, fleet: Sequence[InstanceGroup]) -> None:
        """Begin with the instances that are on."""
        self._account.adopt(fleet)
        for runner in self._runners:
            runner.resume(fleet)

    def close(self) -> None:
        """End the shadows."""
        for runner in self._runners:
            runner.close()
