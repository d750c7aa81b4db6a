"""Where one driver's queries go, and that none is lost where an instance fails."""

import asyncio
import math
from collections import Counter
from unittest.mock import AsyncMock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.policies import make_policy
from serfer.control.policy import LatencyWindow
from serfer.control.router import Reason, Router
from serfer.control.scenario import Market
from serfer.core.errors import CeilingError, DeadlineError, OverloadedError
from serfer.drivers.instance.client import FaultKind
from serfer.fleet.pool import Latencies, Pool, of_all
from serfer.fleet.purchase import Purchase
from tests.fleet.fakes import GPU, TWO_TYPES, Net, scenario, serving
from tests.support.hand_clock import Clock

ONE = np.zeros((1, 4, 4, 3), np.uint8)
A, B = "http://a", "http://b"


class Made:
    def __init__(self, *, ceiling=math.inf, overflow=True, members=("a",), **changes):
        self.clock, self.net = Clock(1000.0), Net()
        known = scenario(**changes)
        self.router = Router(known, make_policy("serverless", known), max_usd_per_hour=ceiling, overflow=overflow)
        self.pool = Pool(self.router, self.net.connect, self.clock)
        self.pool.use(serving({name: f"http://{name}" for name in members}))

    async def ask(self, batch=ONE, deadline_s=30.0):
        return await self.pool.run(batch, deadline_s)

    async def begin(self, count, **given):
        """Begin so many queries, which instances do not answer until the gate opens."""
        self.net.gate.clear()
        pending = [asyncio.create_task(self.ask(**given)) for _ in range(count)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return pending


async def test_without_instances_everything_goes_through_the_functions():
    made = Made(members=())
    assert await made.ask() is None
    assert made.router.counts == {Reason.NO_INSTANCE: 1}
    assert made.pool.take_stats().paid_usd == pytest.approx(1e-4)


async def test_an_instance_answers_at_its_own_price_and_is_paid_for_by_the_hour():
    made = Made()
    served = await made.ask(np.zeros((2, 4, 4, 3), np.uint8))
    assert (served.instance, served.batch, served.computed_ms) == ("a", 4, 2.5)
    assert served.cost_usd == pytest.approx(2 * 3.6 / 3600 / 100)
    assert served.logits.shape == (2, 7)
    stats = made.pool.take_stats()
    assert (stats.images, stats.paid_usd, stats.busy) == (2, 0.0, ())
    assert made.pool.take_stats().images == 0


async def test_queries_go_to_the_instance_with_the_least_to_do_and_to_the_functions_when_all_would_be_late():
    made = Made(members=("a", "b"))
    pending = await made.begin(200)
    sent = [url for url, *_ in made.net.requests]
    assert sent[:4] == [A, B, A, B]
    assert abs(sent.count(A) - sent.count(B)) <= 1
    assert made.pool.take_stats().busy == ("a", "b")
    made.net.gate.set()
    answers = await asyncio.gather(*pending)
    assert sum(answer is not None for answer in answers) == len(sent) < 200
    assert made.router.counts[Reason.FULL] == 200 - len(sent)


async def test_other_drivers_are_taken_to_send_as_much():
    sent = []
    for drivers in (1, 4):
        made = Made()
        made.pool.drivers = drivers
        pending = await made.begin(200)
        sent.append(len(made.net.requests))
        made.net.gate.set()
        await asyncio.gather(*pending)
    assert 3 * sent[1] < sent[0] < 5 * sent[1]


@pytest.mark.parametrize("kind", list(FaultKind))
async def test_queries_that_fail_on_an_instance_run_on_functions_in_time(kind):
    made = Made()
    made.net.fail(A, kind)
    assert await made.ask() is None
    assert made.pool.faults == {kind: 1}
    assert made.pool.take_stats().paid_usd == pytest.approx(1e-4)
    gone = kind in (FaultKind.UNREACHABLE, FaultKind.NO_RESPONSE)
    assert made.pool.serving == (0 if gone else 1)  # what is gone gets no more queries
    await made.ask()
    assert len(made.net.requests) == (1 if gone else 2)


async def test_a_query_in_a_hurry_takes_no_instance_from_the_others():
    made = Made()
    made.net.fail(A, FaultKind.NO_RESPONSE)
    assert await made.ask(deadline_s=0.01) is None
    assert made.pool.serving == 1  # it was waited for no longer than half of that


async def test_an_instance_that_is_silent_hangs_however_short_each_query_waits_for_it():
    made = Made()
    made.net.fail(A, FaultKind.NO_RESPONSE)
    made.net.gate.clear()
    pending = [asyncio.create_task(made.ask(deadline_s=seconds)) for seconds in (0.5, 30.0)]
    await asyncio.sleep(0)
    made.clock.now += 1.1
    made.net.gate.set()
    with pytest.raises(DeadlineError):
        await pending[0]
    assert await pending[1] is None
    assert made.pool.serving == 0


def test_metrics_read_in_another_thread_while_instances_come():
    made = Made(members=("a",))

    class Endpoint:  # each look at it is where the other thread may go on
        down = False
        purchase = GPU

        @property
        def listed(self):
            made.pool._endpoints[f"new-{len(made.pool._endpoints)}"] = self
            return True

    made.pool._endpoints["a"] = Endpoint()
    assert made.pool.serving == 1


async def test_an_instance_is_given_as_long_as_leaves_the_functions_their_time():
    made = Made()
    await made.ask(deadline_s=30.0)
    await made.ask(deadline_s=1.2)
    await made.ask(deadline_s=0.4)
    (_, _, timeout, patience), (_, _, _, short), (_, _, _, shortest) = made.net.requests
    assert timeout == 0.2  # the objective: beyond it, the functions are asked
    assert patience == pytest.approx(1.0)  # four objectives, and at least a second
    assert short == pytest.approx(0.7)  # the functions take 0.5 s when cold
    assert shortest == pytest.approx(0.2)


async def test_where_the_functions_are_full_an_instance_is_given_all_the_time():
    made = Made()
    made.pool.elsewhere = 100
    pending = await made.begin(100)
    assert len(made.net.requests) == 100
    assert made.net.requests[-1][2:] == (30.0, 30.0)
    made.net.gate.set()
    assert all(await asyncio.gather(*pending))
    assert made.router.counts[Reason.LATE] > 0


async def test_without_functions_a_failed_query_goes_to_another_instance():
    made = Made(overflow=False, members=("a", "b"))
    made.net.fail(A)
    served = [await made.ask(), await made.ask()]
    assert [one.instance for one in served] == ["b", "b"]
    made.net.fail(B)
    with pytest.raises(OverloadedError):
        await made.ask()
    with pytest.raises(OverloadedError) as none:  # both are down
        await made.ask()
    assert none.value.retry_after_s == 10  # what a boot takes
    assert made.pool.take_stats().paid_usd == 0


async def test_ceiling_refuses_and_says_when_there_is_money_again():
    made = Made(ceiling=3.5e-4, members=())
    for _ in range(3):
        assert await made.ask() is None
    with pytest.raises(CeilingError) as refused:
        await made.ask()
    assert 3600 <= refused.value.retry_after_s <= 3660
    made.clock.now += refused.value.retry_after_s
    assert await made.ask() is None
    made = Made(ceiling=1e-5)
    made.net.fail(A)
    with pytest.raises(CeilingError):
        await made.ask()


async def test_a_query_past_its_deadline_is_not_sent_again():
    made = Made()
    made.net.fail(A, FaultKind.NO_RESPONSE)
    [pending] = await made.begin(1, deadline_s=5.0)
    made.clock.now += 6
    made.net.gate.set()
    with pytest.raises(DeadlineError):
        await pending


async def test_a_removed_instance_still_answers_its_queries():
    made = Made()
    [pending] = await made.begin(1)
    made.pool.use([])
    assert await made.ask() is None
    assert made.pool.take_stats().busy == ("a",)
    made.net.gate.set()
    assert (await pending).instance == "a"
    assert made.pool.take_stats().busy == ()
    made.pool.use(serving({"a": "http://a/"}))
    assert (await made.ask()).instance == "a"


async def test_a_cancelled_query_leaves_no_trace():
    made = Made()
    [pending] = await made.begin(1)
    pending.cancel()
    await asyncio.gather(pending, return_exceptions=True)
    assert made.pool.take_stats().busy == ()


async def test_queries_on_the_functions_are_counted_until_they_end():
    async def run(crops, batch, deadline_s, _):
        assert (crops, batch, deadline_s) == ([], 1, 2.0)
        await gate.wait()
        raise DeadlineError("late")

    gate, made, driver = asyncio.Event(), Made(), AsyncMock(run=run)
    counted = made.pool.counted(driver)
    pending = asyncio.create_task(counted.run([], 1, 2.0))
    await asyncio.sleep(0)
    assert made.pool.take_stats().in_flight == 1
    gate.set()
    with pytest.raises(DeadlineError):
        await pending
    assert made.pool.take_stats().in_flight == 0
    await counted.close()
    driver.close.assert_awaited_once()


CPU, SPOT = Purchase("cpu"), Purchase("gpu", Market.SPOT)


def two_types(**more):
    made = Made(members=(), instance=TWO_TYPES["instance"], **more)
    made.pool.use([*serving({"a": A}), *serving({"b": B}, SPOT), *serving({"c": "http://c"}, CPU)])
    return made


async def test_queries_go_to_the_type_that_answers_first_and_cost_a_share_of_its_price_in_its_market():
    prices = {"a": 3.6 / 100, "b": 1.2 / 100, "c": 0.36 / 10}
    made = two_types()
    pending = await made.begin(20)
    sent = Counter(url for url, *_ in made.net.requests)
    assert sent[A] + sent[B] > 3 * sent["http://c"] > 0
    made.net.gate.set()
    result = {answer.instance: answer.cost_usd for answer in await asyncio.gather(*pending)}
    assert result == {name: pytest.approx(usd / 3600) for name, usd in prices.items()}


async def test_a_query_that_fails_alone_on_instances_goes_on_to_the_one_that_answers_first():
    made = two_types(overflow=False)
    made.net.fail(A)
    made.net.fail(B)
    assert (await made.ask()).instance == "c"
    assert [url for url, *_ in made.net.requests] == [A, B, "http://c"]


SLO_MS = 200.0


def measured(latencies):
    meter = Latencies(SLO_MS)
    for latency in latencies:
        meter.add(latency)
    return meter


def test_queries_past_the_objective_are_late_and_a_window_begins_where_the_last_one_ended():
    meter = measured([SLO_MS, SLO_MS + 1, 10.0])
    assert meter.take() == LatencyWindow(3, 1, SLO_MS + 1)
    assert meter.take() == LatencyWindow(0, 0, 0.0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_the_99th_percentile_is_that_of_numpy(latencies):
    expected = np.percentile(latencies, 99, method="inverted_cdf")
    assert measured(latencies).take().p99_ms == expected


@given(st.lists(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), min_size=1, max_size=4))
def test_the_percentile_of_several_drivers_is_at_least_that_of_all_their_queries(drivers):
    together = of_all(measured(one).take() for one in drivers)
    alone = measured([latency for one in drivers for latency in one]).take()
    assert (together.answered, together.late) == (alone.answered, alone.late)
    assert together.p99_ms >= alone.p99_ms
