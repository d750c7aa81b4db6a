"""Queries that choose between two plans: which driver gets them, what is warmed, and what it costs in whose report."""

import asyncio
from dataclasses import dataclass, field

import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cold_starts import cold_start
from serfer.core.keys import StoreCounts
from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import Report, Task, WarmUp, WarmUpAnswer
from serfer.drivers.dispatching.observed_invoker import ObservedInvoker
from serfer.drivers.dispatching.plan_policy import COLD, NO_ROOM, WARM, PlanPolicy
from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore
from serfer.drivers.driver import Answer, Overheads, WarmUpRecord
from serfer.pipeline.plan_choice import OnePlan, TwoPlans, terms
from tests import bugs
from tests.drivers.fake_clock import FakeClock
from tests.drivers.plans import wide_plan

FACTS = shipped_aws().functions
WHOLE, PARTS = wide_plan((1,)), wide_plan((4, 2))
[FUNCTION] = [WHOLE.function(*part) for part in WHOLE.functions]
START_S, QUERY_S = 5.0, 1.0


@dataclass
class Functions:
    """Functions whose environments take `START_S` to start; `failure` is what warming them comes to."""

    clock: FakeClock
    failure: Failure | None = None
    warmed: list[WarmUp] = field(default_factory=list)

    async def warm(self, function, request):
        assert function == FUNCTION
        self.warmed.append(request)
        await self.clock.sleep(START_S)
        return self.failure or WarmUpAnswer("e1", 1000 * START_S, 1)

    async def invoke(self, *_):
        return Report("e1", 0.0, 0.0, 1.0, 0.0, 1.0, 1, 1, StoreCounts())


@dataclass
class Driver:
    clock: FakeClock
    invoker: ObservedInvoker | None = None

    async def run(self, *_):
        started = self.clock.time()
        if self.invoker:
            await self.invoker.invoke(FUNCTION, Task(WHOLE.digest, "q", 0, 0, 1, 60.0), 60.0)
        await self.clock.sleep(QUERY_S)
        return Answer("q", started, self.clock.time(), (), (), (), Overheads())


class Testbed:
    __test__ = False

    def __init__(self, *, concurrency=100, slots=100, failure=None):
        self.clock = FakeClock()
        self.functions = Functions(self.clock, failure)
        self.policy = PlanPolicy(terms(WHOLE, PARTS, concurrency, FACTS))
        observed = ObservedInvoker(self.functions, self.policy.environments, self.clock)
        self.slots = PrioritySemaphore(slots)
        warm, cold = OnePlan(WHOLE, Driver(self.clock, observed)), OnePlan(PARTS, Driver(self.clock))
        self.plans = TwoPlans(warm, cold, self.policy, observed, self.slots, FACTS, self.clock)

    async def query(self):
        with self.plans.choose() as chosen:
            return chosen, chosen.complete(await chosen.driver.run((), 1, 60.0))

    def run(self, *waits_s):
        """Run a query, and one more after each of the waits; return what was chosen and answered for each."""

        async def main():
            results = [await self.query()]
            for wait_s in waits_s:
                await self.clock.sleep(wait_s)
                results.append(await self.query())
            await self.plans.close()
            return results

        return self.clock.run(main())


def test_queries_run_on_the_cold_plan_until_the_whole_function_is_warm():
    results = Testbed().run(1.0, START_S)
    assert [(chosen.plan, chosen.reason) for chosen, _ in results] == [(PARTS, COLD), (PARTS, COLD), (WHOLE, WARM)]
    assert [len(answer.overheads.warm_ups) for _, answer in results] == [1, 0, 0]


def test_a_warm_up_that_outlives_its_query_is_counted_with_what_it_is_predicted_to_take():
    [(_, answer)] = Testbed().run()
    stage = WHOLE.stages[0]
    predicted_ms = 1000 * cold_start(stage.functions[0].weights.bytes, stage.weights_in, FACTS).billed_seconds
    ms = max(1000 * QUERY_S, predicted_ms)
    memory_mb = WHOLE.stages[0].memory_mb
    assert answer.overheads.warm_ups == (WarmUpRecord(0, memory_mb, answer.started, ms, None, WHOLE.digest),)


def test_a_warm_up_that_ends_before_its_query_is_counted_as_measured(monkeypatch):
    monkeypatch.setattr("tests.pipeline.test_plan_choice.QUERY_S", START_S + 1)
    [(_, answer)] = Testbed().run()
    [record] = answer.overheads.warm_ups
    assert (record.ms, record.result, record.cold) == (1000 * START_S, WarmUpAnswer("e1", 1000 * START_S, 1), True)


@pytest.mark.parametrize("kind", [FailureKind.THROTTLED, FailureKind.OUT_OF_MEMORY])
def test_a_warm_up_that_fails_is_not_billed_and_later_reasons_say_why(monkeypatch, kind):
    monkeypatch.setattr("tests.pipeline.test_plan_choice.QUERY_S", START_S + 1)
    testbed = Testbed(failure=Failure(kind, "", "on purpose"))
    results = testbed.run(0.0)
    assert [answer.overheads.warm_ups for _, answer in results] == [(), ()]
    assert f"{kind.value}: on purpose" in results[1][0].reason
    assert [chosen.plan for chosen, _ in results] == [PARTS, PARTS]


def test_a_bug_in_a_warm_up_is_a_reason_for_queries_that_come_later(monkeypatch, caplog):
    monkeypatch.setattr("tests.pipeline.test_plan_choice.QUERY_S", START_S + 1)
    testbed = Testbed()
    monkeypatch.setattr(type(testbed.functions), "warm", bugs.buggy)
    results = testbed.run(0.0)
    assert "ZeroDivisionError('a bug')" in results[1][0].reason
    assert bugs.logged(caplog.records) >= 1


def test_warm_ups_use_slots_that_are_free_and_give_them_back():
    testbed = Testbed(slots=0)
    [(chosen, answer)] = testbed.run()
    assert (chosen.plan, answer.overheads.warm_ups, testbed.functions.warmed) == (PARTS, (), [])
    testbed = Testbed(slots=1)
    testbed.run(START_S)
    assert testbed.slots.try_acquire()


def test_a_query_takes_the_whole_function_where_the_cold_plan_has_no_room():
    [(chosen, _), (again, _)] = Testbed(concurrency=4).run(0.0)
    assert (chosen.plan, chosen.reason) == (WHOLE, NO_ROOM)
    assert (again.plan, again.reason) == (WHOLE, WARM)  # its environment is known from the first one


def test_a_query_that_fails_gives_up_its_environment():
    testbed = Testbed()

    async def main():
        await testbed.query()
        await testbed.clock.sleep(START_S)
        with pytest.raises(ZeroDivisionError), testbed.plans.choose():
            raise ZeroDivisionError
        return await testbed.query()

    assert testbed.clock.run(main())[0].reason == WARM


def test_closing_waits_for_no_warm_up():
    testbed = Testbed()

    async def main():
        await testbed.query()
        before = testbed.clock.time()
        await testbed.plans.close()
        return testbed.clock.time() - before

    assert testbed.clock.run(main()) == 0


def test_what_two_plans_need_of_an_account():
    gathered = terms(wide_plan((4, 3), parts=(1, 2)), PARTS, 10, FACTS)
    assert sorted(gathered.needs.values()) == [1, 2, 4]
    assert (gathered.width, gathered.least) == (4, 11)


def test_a_single_plan_needs_no_choice():
    async def main():
        with OnePlan(WHOLE, None, "because").choose() as chosen:
            return chosen

    chosen = asyncio.run(main())
    assert (chosen.plan, chosen.reason, chosen.sent) == (WHOLE, "because", ())
