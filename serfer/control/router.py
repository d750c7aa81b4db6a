"""Routing of a query: on an instance that will answer in time, else on Lambda, within the ceiling of dollars.

             tick: load ──> policy ──> desired instances ──> at most what the ceiling allows ──> the fleet
query ──> route: endpoints (instances that serve, and their queues), Lambda's queries in flight
             ──> targets in order of preference, and the reason
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from serfer.control.budget_limiter import BudgetLimiter
from serfer.control.policy import DesiredReplicas, Policy
from serfer.control.scenario import Scenario

SERVERLESS: Final = "serverless"


class Reason(StrEnum):
    """The reason of a routing decision; the values are labels of metrics."""

    ROOM = "an instance answers in time"
    NO_INSTANCE = "no instance serves"
    FULL = "instances would be late"
    LATE = "lambda is full: an instance answers late"
    LAMBDA_FULL = "lambda is full and no instance serves"
    CEILING = "the hour's dollars are spent"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An instance that serves; `waiting` images were sent to it and are not answered yet."""

    name: str
    waiting: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The targets to try, best first, each SERVERLESS or an instance's name; none: refuse with 429."""

    targets: tuple[str, ...]
    reason: Reason


class Router:
    """Routes queries and lets a policy decide on instances; `counts` is the number of decisions by reason.

    `overflow` allows Lambda where instances cannot serve in time: without it every query waits for an instance.
    """

    def __init__(
        self, scenario: Scenario, policy: Policy, *, max_usd_per_hour: float = math.inf, overflow: bool = True
    ) -> None:
        self.scenario = scenario
        self.policy = policy
        self.budget_limiter = BudgetLimiter(max_usd_per_hour)
        self.counts: Counter[Reason] = Counter()
        self._overflow = overflow

    def tick(self, now: float, elapsed_s: float, rate: float, on: int) -> DesiredReplicas:
        """Decide how many instances there should be.

        `rate` is the load of all drivers in queries/s over the `elapsed_s` seconds up to `now`, one image each; `on` is
        the number of instances that were paid for.
        """
        return self.afford(now, elapsed_s, self.policy.observe(elapsed_s, rate), on)

    def afford(self, now: float, elapsed_s: float, desired: DesiredReplicas, on: int) -> DesiredReplicas:
        """Return as many of the instances that the policy wants as the ceiling allows; the rest is as in `tick`.

        For a caller that runs the policy apart from its queries, because a decision may take long.
        """
        price = self.scenario.instance.usd_per_hour
        self.budget_limiter.instances_cost(now, elapsed_s, on * price)
        allowed = self.budget_limiter.max_instances(now, price)
        if desired.instances > allowed:
            desired = DesiredReplicas(int(allowed), f"{desired.reason}; the ceiling allows {allowed:g}")
        self.budget_limiter.instances_go_on(now, max(on, desired.instances) * price)
        return desired

    def route(self, now: float, endpoints: Sequence[Endpoint], in_flight: int, images: int = 1) -> Decision:
        """Decide where a query of `images` images runs while Lambda answers `in_flight` queries.

        Lambda's cost is added when SERVERLESS comes first; a caller that falls back to it calls `fall_back`.
        """
        decision = self._decide(now, endpoints, in_flight, images)
        self.counts[decision.reason] += 1
        if decision.targets[:1] == (SERVERLESS,):
            self.budget_limiter.pay(now, images * self.scenario.serverless.usd_per_query)
        return decision

    def fall_back(self, now: float, images: int = 1) -> bool:
        """Whether a query that an instance failed may run on Lambda; adds what it costs there."""
        usd = images * self.scenario.serverless.usd_per_query
        if not self._overflow or not self.budget_limiter.allows(now, usd):
            return False
        self.budget_limiter.pay(now, usd)
        return True

    def wait_ms(self, waiting: int, images: int = 1) -> float:
        """Predict when an instance answers, in ms: full batches of the `waiting` images, then the query's own batch.

        Images of the last batch before may have to wait for the query's own, so it counts in both. The prediction
        never falls as more images wait.
        """
        kind = self.scenario.instance
        last = (waiting - 1) % kind.max_batch + 1 if waiting else 0
        own = kind.batch_ms(min(images + last, kind.max_batch))
        if images > kind.max_batch:
            whole, rest = divmod(images, kind.max_batch)
            own = whole * kind.batch_ms(kind.max_batch) + (kind.batch_ms(rest) if rest else 0.0)
        return math.ceil(waiting / kind.max_batch) * kind.batch_ms(min(waiting, kind.max_batch)) + own

    def _decide(self, now: float, endpoints: Sequence[Endpoint], in_flight: int, images: int) -> Decision:
        best = min(endpoints, key=_waiting) if endpoints else None
        if best is not None and self.wait_ms(best.waiting, images) <= self.scenario.slo_ms:
            targets = (best.name, SERVERLESS) if self._overflow else (best.name,)
            return Decision(targets, Reason.ROOM)
        late = (best.name,) if best is not None else ()
        if not self._overflow:
            return Decision(late, Reason.FULL if late else Reason.NO_INSTANCE)
        if not self.budget_limiter.allows(now, images * self.scenario.serverless.usd_per_query):
            return Decision((), Reason.CEILING)
        if in_flight >= self.scenario.serverless.concurrency:
            return Decision(late, Reason.LATE if late else Reason.LAMBDA_FULL)
        return Decision((SERVERLESS, *late), Reason.FULL if late else Reason.NO_INSTANCE)


def _waiting(endpoint: Endpoint) -> int:
    return endpoint.waiting
