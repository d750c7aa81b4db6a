"""The plan that a query runs on, where a plan directory has two of one network: "split cold, whole warm".

    query ── warm environments are expected ──> warm plan (usually one function)
         └── none are ───────────────────────> cold plan, and a warm-up request beside it ──> warm plan

drivers/dispatching/plan_policy.py decides; this file sends the warm-up requests, each in a slot of the concurrency that
both plans' drivers share, and counts their dollars in the reports of the queries that have caused them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from serfer.core.costs.aws import LambdaFacts
from serfer.core.costs.cold_starts import cold_start
from serfer.core.plan import Plan
from serfer.core.run_machine import Failure
from serfer.core.units import MS_PER_S
from serfer.core.wire import WarmUp, WarmUpAnswer
from serfer.drivers.clock import LOOP_CLOCK, Clock
from serfer.drivers.dispatching.observed_invoker import ObservedInvoker
from serfer.drivers.dispatching.plan_policy import Decision, PlanPolicy, Terms
from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore
from serfer.drivers.driver import Answer, Driver, WarmUpRecord


@dataclass(frozen=True)
class WarmedFunction:
    """A function of the warm plan: what warms it, its memory in MB, and the ms that are predicted to be billed."""

    request: WarmUp
    memory_mb: int
    predicted_ms: float


@dataclass
class SentQuery:
    """A warm-up request of a function, sent at `started`; its `result` once it has one, at `ended`."""

    function: WarmedFunction
    started: float
    ended: float | None = None
    result: WarmUpAnswer | Failure | None = None

    def record(self, now: float) -> WarmUpRecord | None:
        if isinstance(self.result, Failure):
            return None
        ms = MS_PER_S * ((now if self.ended is None else self.ended) - self.started)
        if self.ended is None:
            ms = max(ms, self.function.predicted_ms)
        request = self.function.request
        return WarmUpRecord(request.stage, self.function.memory_mb, self.started, ms, self.result, request.plan)


@dataclass
class PlanChoice:
    """A query's plan and its driver, why, and the warm-up requests that the query has caused."""

    plan: Plan
    driver: Driver
    reason: str
    sent: Sequence[SentQuery] = ()
    took_s: float | None = field(default=None, init=False)  # in warm environments

    def complete(self, answer: Answer) -> Answer:
        if not any(report.init_ms for run in answer.stages for report in run.reports):
            self.took_s = answer.ended - answer.started
        if not self.sent:
            return answer
        records = tuple(record for request in self.sent if (record := request.record(answer.ended)))
        warm_ups = answer.overheads.warm_ups + records
        return replace(answer, overheads=replace(answer.overheads, warm_ups=warm_ups))


@dataclass(frozen=True)
class OnePlan:
    """A plan without a choice; `reason` says why a second one is not used, where there is one."""

    plan: Plan
    driver: Driver
    reason: str = ""

    @contextmanager
    def choose(self) -> Iterator[PlanChoice]:
        yield PlanChoice(self.plan, self.driver, self.reason)

    def counted(self, count: Callable[[Driver], Driver]) -> OnePlan:
        return replace(self, driver=count(self.driver))


class TwoPlans:
    """Chooses between a warm plan, whose functions `policy` has observed, and a cold plan, each with a driver.

    `slots` are those that both drivers use; requests by `warmer` are observed too.
    """

    def __init__(
        self,
        warm: OnePlan,
        cold: OnePlan,
        policy: PlanPolicy,
        invoker: ObservedInvoker,
        slots: PrioritySemaphore,
        facts: LambdaFacts,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        self._warm = warm
        self._cold = cold
        self._policy = policy
        self.warmer = invoker
        self._slots = slots
        self._functions = _warmed_functions(warm.plan, facts)
        self._clock = clock
        self._warming: set[asyncio.Task[None]] = set()

    @contextmanager
    def choose(self) -> Iterator[PlanChoice]:
        decision = self._policy.decide(self._clock.time())
        way = self._warm if decision.warm else self._cold
        chosen = PlanChoice(way.plan, way.driver, decision.reason, self._warm_up(decision))
        try:
            yield chosen
        finally:
            self._policy.ended(decision, chosen.took_s)

    def counted(self, count: Callable[[Driver], Driver]) -> TwoPlans:
        self._warm, self._cold = self._warm.counted(count), self._cold.counted(count)
        return self

    async def close(self) -> None:
        for task in self._warming:
            task.cancel()
        if self._warming:
            await asyncio.wait([*self._warming])

    def _warm_up(self, decision: Decision) -> list[SentQuery]:
        sent = []
        for name in decision.warm_ups:
            if self._slots.try_acquire():
                sent.append(SentQuery(self._functions[name], self._clock.time()))
                task = asyncio.get_running_loop().create_task(self._send(name, sent[-1]))
                self._warming.add(task)
                task.add_done_callback(self._warming.discard)
        return sent

    async def _send(self, name: str, sent: SentQuery) -> None:
        try:
            sent.result = await self.warmer.warm(name, sent.function.request)
        except Exception as bug:  # the policy would wait for it
            self._policy.refused(repr(bug), self._clock.time())
            raise
        finally:
            sent.ended = self._clock.time()
            self._slots.release()
        if isinstance(sent.result, Failure):
            self._policy.refused(f"{sent.result.kind.value}: {sent.result.message}", sent.ended)
        else:
            self._policy.warmed()


def terms(warm: Plan, cold: Plan, concurrency: int, facts: LambdaFacts) -> Terms:
    """Return what two plans need of an account that lets `concurrency` invocations run at once."""
    needs = {warm.function(*part): _environments(warm, *part) for part in warm.functions}
    width = max(len(stage.tiles) for stage in cold.stages)
    return Terms(needs, width, concurrency, sum(warm.predicted_ms) / MS_PER_S, facts.kept_warm)


def _environments(plan: Plan, stage: int, part: int) -> int:
    gang = plan.gang_of(stage)
    stages = gang.stages if gang else [stage]
    return max(sum(tile.function == part for tile in plan.stages[number].tiles) for number in stages)


def _warmed_functions(plan: Plan, facts: LambdaFacts) -> Mapping[str, WarmedFunction]:
    return {
        plan.function(stage, part): WarmedFunction(
            WarmUp(plan.digest, stage, part, hold_s=0.0),
            plan.stages[stage].memory_mb,
            MS_PER_S
            * cold_start(
                sum(function.weights.bytes for function in plan.parts(stage, part)),
                plan.stages[stage].weights_in,
                facts,
            ).billed_seconds,
        )
        for stage, part in plan.functions
    }
