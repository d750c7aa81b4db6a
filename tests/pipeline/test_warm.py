import asyncio

import pytest

from serfer.core.errors import UnavailableError
from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import WarmUpAnswer
from serfer.pipeline.warm import Warmth, keep_warm, warm
from tests.drivers.plans import wide_plan


class Functions:
    """Environments that are busy for as long as a request holds them; the `limit`-th is one too many."""

    def __init__(self, limit=1000):
        self.limit, self.sent, self.busy, self.idle, self.started = limit, [], {}, {}, 0

    def called(self, function):
        return function

    async def warm(self, function, request):
        self.sent.append((function, request))
        busy, idle = self.busy.setdefault(function, set()), self.idle.setdefault(function, set())
        if len(busy) == self.limit:
            return Failure(FailureKind.THROTTLED, "TooManyRequestsException", "Rate Exceeded.")
        cold = not idle
        self.started += cold
        environment = f"{function}-{self.started}" if cold else idle.pop()
        busy.add(environment)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        busy.remove(environment)
        idle.add(environment)
        return WarmUpAnswer(environment, 100.0 + self.started if cold else 0.0, 1)


@pytest.fixture
def plan():
    """Two stages: four tiles of one function; three columns, of two functions."""
    return wide_plan((4, 3), parts=(1, 2))


def test_every_function_gets_as_many_environments_as_its_tiles_need_at_once(plan):
    warmths = asyncio.run(warm(plan, Functions(), queries=3))
    assert [(one.function, one.asked, one.warm, one.started) for one in warmths] == [
        (plan.function(0, 0), 12, 12, 12),
        (plan.function(1, 0), 6, 6, 6),
        (plan.function(1, 1), 3, 3, 3),
    ]
    assert warmths[0].slowest_start_ms == 112.0


def test_failures_are_reported(plan):
    warmths = asyncio.run(warm(plan, Functions(limit=5), queries=2))
    assert warmths[0] == Warmth(plan.function(0, 0), 8, 5, 5, 105.0, "throttled: Rate Exceeded.")
    assert warmths[1].problem is None


def test_a_controllers_pings_name_the_function_that_failed(plan):
    functions = Functions()
    asyncio.run(keep_warm(plan, functions, queries=2))
    assert len(functions.sent) == 8 + 4 + 2
    with pytest.raises(UnavailableError, match=f"{plan.function(0, 0)} was not warmed: throttled: Rate Exceeded"):
        asyncio.run(keep_warm(plan, Functions(limit=5), queries=2))


def test_requests_name_stage_and_part(plan):
    functions = Functions()
    asyncio.run(warm(plan, functions, queries=1, hold_s=0.25))
    assert {(name, request.stage, request.part, request.hold_s, request.plan) for name, request in functions.sent} == {
        (plan.function(stage, part), stage, part, 0.25, plan.digest) for stage, part in [(0, 0), (1, 0), (1, 1)]
    }
