"""Routing of a query: on an instance that will answer in time, else on Lambda, within the ceiling of dollars.

             tick: observation ──> policy ──> plan ──> at most what the ceiling allows ──> the fleet
query ──> route: endpoints (instances that serve, and their queues), Lambda's queries in flight
             ──> targets in order of preference, and the reason

The instance is the one that will answer first, or, under a policy that dispatches by rates, the one whose turn it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from serfer.control.budget_limiter import BudgetLimiter
from serfer.control.policy import Dispatcher, Observation, Policy, ProvisioningPlan
from serfer.control.scenario import Market, Scenario

SERVERLESS: Final = "serverless"


class Reason(StrEnum):
    """The reason of a routing decision; the values are labels of metrics."""

    ROOM = "an instance answers in time"
    NO_INSTANCE = "no instance serves"
    FULL = "instances would be late"
    RATES = "instances have the rate that they take"
    LATE = "lambda is full: an instance answers late"
    LAMBDA_FULL = "lambda is full and no instance serves"
    CEILING = "the hour's dollars are spent"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An instance that serves; `waiting` images were sent to it and are not answered yet.

    `kind` is its type's place among those of the scenario, `batch` its batch size, 0 for the largest of its type.
    """

    name: str
    waiting: int
    kind: int = 0
    batch: int = 0


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
        make_dispatcher: Callable[[], Dispatcher] | None = getattr(policy, "dispatcher", None)
        self._dispatcher = make_dispatcher() if make_dispatcher else None

    def tick(self, seen: Observation) -> ProvisioningPlan:
        return self.afford(seen, self.policy.observe(seen))

    def afford(self, seen: Observation, plan: ProvisioningPlan) -> ProvisioningPlan:
        """Return as much of what the policy wants as the ceiling allows: instances first, then pings, all or none.

        Nothing is kept warm where Lambda is not used. The sender pays for pings. It is for a caller that
        runs the policy apart from its queries, because a decision may take long.
        """
        if self._dispatcher is not None:
            self._dispatcher.observe(seen.rate, seen.elapsed_s)
        limiter = self.budget_limiter
        if plan.warm and not self._overflow:
            plan = replace(plan, warm=0)
        if limiter.ceiling == math.inf:
            return plan
        on_usd = sum(group.count * self._usd_per_hour(group.kind, group.market) for group in seen.fleet)
        limiter.instances_cost(seen.now_s, seen.elapsed_s, on_usd)
        plan = self._within(plan, limiter.max_usd_per_hour(seen.now_s))
        wanted_usd = sum(group.count * self._usd_per_hour(group.kind, group.market) for group in plan.instances)
        limiter.instances_go_on(seen.now_s, max(on_usd, wanted_usd))
        if not plan.warm or limiter.allows(seen.now_s, plan.warm * self.scenario.serverless.usd_per_query):
            return plan
        return replace(plan, warm=0, reason=f"{plan.reason}; the ceiling allows no pings")

    def _within(self, plan: ProvisioningPlan, usd_per_hour: float) -> ProvisioningPlan:
        kept = []
        for group in plan.instances:
            price = self._usd_per_hour(group.kind, group.market)
            count = min(group.count, math.floor(usd_per_hour / price))
            usd_per_hour -= count * price
            kept.append(replace(group, count=count))
        allowed = sum(group.count for group in kept)
        if allowed == plan.total:
            return plan
        instances = tuple(group for group in kept if group.count)
        return replace(plan, instances=instances, reason=f"{plan.reason}; the ceiling allows {allowed}")

    def _usd_per_hour(self, kind: str, market: Market) -> float:
        return self.scenario.kind(kind).market_usd_per_hour(market)

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

    def wait_ms(self, waiting: int, images: int = 1, kind_number: int = 0, batch: int = 0) -> float:
        """Predict when an instance answers, in ms: full batches of the `waiting` images, then the query's own batch.

        Images of the last batch before may have to wait for the query's own, so it counts in both. The prediction
        never falls as more images wait. Batches have `batch` images at most, 0 for the largest of the type; a window in
        which one fills up is not counted, as it ends in time for the oldest query.
        """
        kind = self.scenario.instances[kind_number]
        most = min(batch, kind.max_batch) or kind.max_batch
        last = (waiting - 1) % most + 1 if waiting else 0
        own = kind.batch_ms(min(images + last, most))
        if images > most:
            whole, rest = divmod(images, most)
            own = whole * kind.batch_ms(most) + (kind.batch_ms(rest) if rest else 0.0)
        return math.ceil(waiting / most) * kind.batch_ms(min(waiting, most)) + own

    def _decide(self, now: float, endpoints: Sequence[Endpoint], in_flight: int, images: int) -> Decision:
        best = self.soonest(endpoints, images) if endpoints else None
        room = best is not None and self._in_time(best, images)
        if room and self._dispatcher is not None:
            place = self._dispatcher.choose(endpoints, images, lambda place: self._in_time(endpoints[place], images))
            if place is None and self._on_lambda(now, in_flight, images):
                return Decision((SERVERLESS,), Reason.RATES)
            best = best if place is None else endpoints[place]
        if best is not None and room:
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

    def soonest(self, endpoints: Sequence[Endpoint], images: int) -> Endpoint:
        """Return the instance that will answer first, of one or more: of those alike, the one where least waits."""
        best: dict[tuple[int, int], Endpoint] = {}
        for endpoint in endpoints:
            known = best.get((endpoint.kind, endpoint.batch))
            if known is None or endpoint.waiting < known.waiting:
                best[endpoint.kind, endpoint.batch] = endpoint
        if len(best) == 1:
            return next(iter(best.values()))
        return min(
            best.values(), key=lambda endpoint: self.wait_ms(endpoint.waiting, images, endpoint.kind, endpoint.batch)
        )

    def _in_time(self, endpoint: Endpoint, images: int) -> bool:
        return self.wait_ms(endpoint.waiting, images, endpoint.kind, endpoint.batch) <= self.scenario.slo_ms

    def _on_lambda(self, now: float, in_flight: int, images: int) -> bool:
        has_room = self._overflow and in_flight < self.scenario.serverless.concurrency
        return has_room and self.budget_limiter.allows(now, images * self.scenario.serverless.usd_per_query)
