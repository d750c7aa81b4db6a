"""Drivers that keep functions warm together, in a test's own time, with functions that a test makes fail."""

import asyncio

from serfer.api.observability.pool_metrics import KeepWarmMetrics
from serfer.control.windows import WarmLevels, window_policies
from serfer.core.errors import UnavailableError
from serfer.fleet.control_loop import Timing
from serfer.fleet.keep_warm import InFlight, KeepWarm, PingLimits
from serfer.fleet.registry import PoolRegistry
from serfer.fleet.warming import Pinger
from tests.fleet.fakes import DriverWorld, scenario

LIMITS = PingLimits(concurrency=10, keep_alive_s=240.0)
UNIX = 1.7e9


class Drivers(DriverWorld):
    """Drivers that ping; `pings` are (time, how many), each when it was sent."""

    def __init__(self, windows="300", names="a"):
        super().__init__(0.0)
        self.make = window_policies(windows)
        self.pings, self.paid, self.broken = [], [], None
        for name in names:
            self.add(name)

    def add(self, name):
        registry = PoolRegistry(self.coordination, "w", name, self.clock)
        timing = Timing(self.clock, asyncio.sleep, lambda: UNIX + self.clock.now)
        self.running[name] = KeepWarm(
            WarmLevels(self.make), registry, self.ping, LIMITS, paid=self.paid.append, timing=timing
        )

    async def ping(self, count):
        self.pings.append((self.clock.now, count))
        if self.broken:
            raise self.broken

    async def query(self, *names):
        """Have these drivers run a query each, all at once, and step on for a second."""
        for name in names:
            self.running[name].in_flight.change(1)
        await self.step(1)
        for name in names:
            self.running[name].in_flight.change(-1)

    def sent(self, since):
        return [round(now - since) for now, _ in self.pings if now > since]


async def test_pings_go_on_for_the_keep_alive_window_and_stop():
    made = Drivers("600")
    await made.step(10)
    assert made.pings == []
    await made.query("a")
    since = made.clock.now
    await made.step(3000)
    assert made.sent(since) == [241, 481]
    assert made.paid == [1, 1]
    assert made.running["a"].pings == 2


async def test_queries_of_all_drivers_count_together_and_one_pings_for_all():
    made = Drivers("300", "abc")
    await made.step(10)
    await made.query("a", "b", "c")
    await made.step(260)
    assert [count for _, count in made.pings] == [3]
    assert sum(driver.status.leads for driver in made.running.values()) == 1
    assert {driver.status.wanted for driver in made.running.values()} == {3}


async def test_the_next_leader_knows_what_the_one_before_had_learnt():
    made = Drivers("lsth", "ab")
    for _ in range(6):
        await made.query("b")
        await made.step(1800, by=8)
    made.kill(made.leader)
    (left,) = made.running
    await made.query(left)
    since = made.clock.now
    await made.step(1900, by=8)
    assert 0.85 * 1800 < made.sent(since)[0] < 1800


async def test_without_the_store_none_pings_and_each_driver_learns_on():
    made = Drivers("600")
    one = made.running["a"]
    await made.step(3)
    made.coordination.gone = True
    await made.step(20)
    await made.query("a")
    await made.step(400)
    assert made.pings == []
    assert one.troubles["store"] > 100
    assert one.status.wanted == 1
    made.coordination.gone = False
    await made.step(30)
    assert [count for _, count in made.pings] == [1]


async def test_pings_that_fail_are_repeated_in_a_minute_and_end_nothing(caplog):
    with caplog.at_level("WARNING", "serfer.fleet"):
        made = Drivers("3000")
        await made.query("a")
        made.broken = UnavailableError("f was not warmed: throttled")
        since = made.clock.now
        await made.step(400)
        assert made.sent(since) == [241, 301, 361]
        assert made.running["a"].troubles["functions"] == 3
    assert [record.msg for record in caplog.records].count("keep warm trouble") == 1


async def test_no_more_environments_are_pinged_than_the_concurrency_has():
    made = Drivers("300")
    one = made.running["a"]
    one.in_flight.change(50)
    await made.step(1)
    one.in_flight.change(-50)
    await made.step(290)
    assert [count for _, count in made.pings] == [10]


def test_short_queries_between_two_looks_are_counted():
    count = InFlight()
    for by in (1, 1, 1, -1, -1, -1):
        count.change(by)
    assert [count.take(), count.take()] == [3, 0]


async def test_metrics_tell_of_each_model():
    made = Drivers("300")
    one = made.running["a"]
    await made.query("a")
    await made.step(260)
    result = {
        (sample.name, sample.labels["model"]): sample.value
        for family in KeepWarmMetrics({"small": one}).collect()
        for sample in family.samples
    }
    assert result == {
        ("serfer_keep_warm_wanted", "small"): 1,
        ("serfer_keep_warm_pings_total", "small"): 1,
        ("serfer_keep_warm_troubles_total", "small"): 0,
    }


TARGET = scenario().serverless  # keeps environments for 600 s, 100 at once


def test_queries_that_keep_enough_environments_leave_nothing_to_ping():
    warming = Pinger(None, TARGET, None)
    assert warming.due(0.0, 9, 9) == 0
    assert warming.due(300.0, 2, 9) == 0
    assert warming.due(601.0, 2, 9) == 7
    assert [warming.due(601.0 + s, 2, 30 + s) for s in range(1, 22)] == [0] * 9 + [38] + [0] * 9 + [48, 0]  # a surge
