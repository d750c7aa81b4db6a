"""Queries under load while the whole function is killed, against each plan alone in the same simulated world."""

import asyncio
import itertools

import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.keys import StoreCounts, output_key
from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import Crop, Report, WarmUpAnswer
from serfer.drivers.dispatching.observed_invoker import ObservedInvoker
from serfer.drivers.dispatching.plan_policy import PlanPolicy
from serfer.drivers.dispatching.prewarming import Prewarming
from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore
from serfer.drivers.push import PushDriver
from serfer.pipeline.plan_choice import OnePlan, TwoPlans, terms
from serfer.storage.memory import MemoryStore
from tests.drivers.fake_clock import FakeClock
from tests.drivers.plans import linked_plan
from tests.drivers.test_push import stored

FACTS = shipped_aws().functions
WHOLE = linked_plan((1,))
PARTS = linked_plan((4, 1))
object.__setattr__(PARTS, "digest", "f" * 64)  # another name for each function
START_S, RUN_S = {WHOLE.digest: 3.0, PARTS.digest: 1.0}, {WHOLE.digest: 0.06, PARTS.digest: 0.04}
QUERIES, EVERY_S, KILLED = 150, 0.1, (60, 110)
CONCURRENCY, DEADLINE_S = 200, 60.0


class World:
    """Functions whose environments take time to start, and can be killed."""

    def __init__(self, clock, store):
        self.clock, self.store = clock, store
        self.names, self.killed = itertools.count(), set()
        self.idle, self.alive = {}, {}
        self.running, self.most = 0, 0

    async def _run(self, *given):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self._in_environment(*given)
        finally:
            self.running -= 1

    async def _in_environment(self, function, plan, seconds):
        """Return the environment that took an invocation and the seconds of its start; None if it was killed."""
        idle, alive = self.idle.setdefault(function, []), self.alive.setdefault(function, set())
        started_s = 0.0
        if idle:
            name = idle.pop()
        else:
            name, started_s = f"e{next(self.names)}", START_S[plan]
            alive.add(name)
            await self.clock.sleep(started_s)
        await self.clock.sleep(seconds)
        if name not in alive:
            return None
        idle.append(name)
        return name, started_s

    async def invoke(self, function, task, timeout_s):
        assert timeout_s > 0
        ran = await self._run(function, task.plan, RUN_S[task.plan])
        if ran is None:
            return Failure(FailureKind.FAILED_IN_CODE, "Runtime.ExitError", "killed")
        if not task.inline:
            self.store.put(output_key(task.query, task.stage, task.tile), stored(task), task.ttl)
        output = stored(task) if task.inline else None
        return Report(ran[0], 1000 * ran[1], 0.0, 1.0, 0.0, 2.0, 1, 1, StoreCounts(), output)

    async def warm(self, function, request):
        ran = await self._run(function, request.plan, 0.0)
        if ran is None:
            return Failure(FailureKind.FAILED_IN_CODE, "Runtime.ExitError", "killed")
        return WarmUpAnswer(ran[0], 1000 * ran[1], 1)

    def kill(self, function):
        self.idle.get(function, []).clear()
        self.alive.get(function, set()).clear()

    async def close(self):
        pass


def outcome(plans_of, concurrency=CONCURRENCY):
    """Run the load through `plans_of(world, slots)`; return each query's plan and how long it took.

    Never more than `concurrency` invocations may run at once.
    """
    clock, store = FakeClock(), MemoryStore()
    world, slots = World(clock, store), PrioritySemaphore(concurrency)

    def driver(plan, invoker):
        return PushDriver(
            plan,
            invoker,
            store,
            inline_limit=1000,
            slots=slots,
            clock=clock,
            prewarming=Prewarming(FACTS.kept_warm, FACTS.init_limit),
        )

    async def main():
        plans = plans_of(world, slots, clock, driver)

        async def query():
            started = clock.time()
            with plans.choose() as chosen:
                crops = [Crop("uint8", b"1234")] * len(chosen.plan.stages[0].tiles)
                answer = chosen.complete(await chosen.driver.run(crops, 1, DEADLINE_S))
            assert len(answer.outputs) == 1
            return chosen, clock.time() - started

        queries = []
        for number in range(QUERIES):
            if number in KILLED:
                world.kill(WHOLE.function(0, 0))
            queries.append(asyncio.create_task(query()))
            await clock.sleep(EVERY_S)
        return await asyncio.gather(*queries)

    results = clock.run(main())
    assert 0 < world.most <= concurrency
    return results


def two(world, slots, clock, driver):
    policy = PlanPolicy(terms(WHOLE, PARTS, CONCURRENCY, FACTS))
    observed = ObservedInvoker(world, policy.environments, clock)
    ways = OnePlan(WHOLE, driver(WHOLE, observed)), OnePlan(PARTS, driver(PARTS, world))
    return TwoPlans(*ways, policy, observed, slots, FACTS, clock)


def alone(plan):
    return lambda world, _slots, _clock, driver: OnePlan(plan, driver(plan, world))


@pytest.fixture(scope="module")
def outcomes():
    return {name: outcome(plans) for name, plans in (("two", two), ("whole", alone(WHOLE)), ("parts", alone(PARTS)))}


@pytest.mark.killed
def test_queries_change_over_and_back_with_each_kill(outcomes):
    plans = [chosen.plan is WHOLE for chosen, _ in outcomes["two"]]
    assert [key for key, _ in itertools.groupby(plans)][:2] == [False, True]
    assert plans[-1]
    for since, until in ((0, KILLED[0]), (KILLED[0], KILLED[1]), (KILLED[1], QUERIES)):
        assert any(plans[since:until])
        assert not all(plans[since:until])
        assert all(plans[until - 5 : until])
    assert all(chosen.reason for chosen, _ in outcomes["two"])


def test_no_answer_is_later_than_the_worse_plan_alone_would_give(outcomes):
    """Rank by rank: the latest answer, the second latest, and so on."""
    took = {name: sorted(seconds for _, seconds in each) for name, each in outcomes.items()}
    worse = [max(*each) for each in zip(took["whole"], took["parts"], strict=True)]
    assert all(mine <= other + 1e-6 for mine, other in zip(took["two"], worse, strict=True))


def test_fewer_queries_wait_for_the_whole_function_to_start_than_with_it_alone(outcomes):
    late = {name: sum(seconds > 2 * START_S[PARTS.digest] for _, seconds in each) for name, each in outcomes.items()}
    assert late["two"] <= len(KILLED) * 2 < late["whole"]


@pytest.mark.two_at_once
def test_both_plans_share_one_limit_of_concurrency():
    """Of which there is too little here: queries wait for slots, and none is lost."""
    assert len(outcome(two, concurrency=7)) == QUERIES
