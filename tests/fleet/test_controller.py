"""The loop of every driver, several of them over one store, in a test's own time."""

import asyncio
import contextlib
import threading

import numpy as np
import pytest

from serfer.fleet import controller as controller_module
from serfer.fleet.control_loop import Timing
from serfer.fleet.controller import _Paid
from serfer.fleet.registry import DriverLoad, FleetMember, FleetState, PoolRegistry, PoolView
from tests import bugs
from tests.fleet.fakes import GPU, Drivers, Wants

ONE = np.zeros((1, 4, 4, 3), np.uint8)


def pool(names="a", **more):
    made = Drivers(ends=[GPU])
    return made, *[made.add(name, **more) for name in names]


async def serving(count, names="a"):
    made, *drivers = pool(names)
    made.want(count)
    await made.step(20)
    return made, *drivers


async def test_a_pool_grows_serves_and_shrinks_to_nothing():
    made, one = pool()
    await made.step(3)
    assert one.status.leads
    made.want(2)
    await made.step(5)
    assert made.provisioner.calls == [("start", 2)]
    assert (one.status.wanted, one.status.on, one.status.serving) == (2, 2, 0)
    assert await one.pool.run(ONE, 30) is None  # while they boot
    await made.step(8)
    assert one.status.serving == 2
    assert await one.pool.run(ONE, 30) is not None
    assert one.status.instances_usd == pytest.approx(11 * 2 * 3.6 / 3600, rel=0.2)
    made.want(0)
    await made.step(12)
    assert made.provisioner.there == {}
    assert (one.status.on, one.status.serving) == (0, 0)
    assert one.changes == {"started": 2, "stopped": 2}


async def test_policies_see_the_latencies_of_all_drivers():
    made, *drivers = await serving(1, "ab")
    for driver in drivers:
        assert await driver.pool.run(ONE, 30) is not None
    await made.step(3)
    for policy in made.policies.values():
        windows = [seen.latency for seen in policy.seen]
        assert sum(window.answered for window in windows) == 2
        assert sum(window.late for window in windows) == 0


async def test_every_driver_decides_on_the_load_of_all_and_uses_the_same_instances():
    made, *drivers = pool("abc")
    made.want(1)

    async def ask():
        for number, driver in enumerate(drivers, 1):
            for _ in range(number):
                await driver.pool.run(ONE, 30)

    await made.step(20, ask)
    assert [driver.pool.serving for driver in drivers] == [1, 1, 1]
    assert made.provisioner.calls == [("start", 1)]
    for policy in made.policies.values():
        assert policy.rates[-1] == (1, 6)
    assert [driver.pool.drivers for driver in drivers] == [3, 3, 3]


@pytest.mark.killed
async def test_another_driver_leads_when_the_leader_dies_and_adopts_its_instances():
    made, *_ = await serving(2, "abc")
    there = dict(made.provisioner.there)
    made.kill(made.leader)
    await made.step(9)  # two ticks, the lease and a second
    assert made.leader is not None
    await made.step(10)
    assert made.provisioner.there == there
    assert all(driver.pool.serving == 2 for driver in made.running.values())
    assert all(driver.pool.drivers == 2 for driver in made.running.values())
    made.want(0)
    await made.step(12)
    assert made.provisioner.there == {}


@pytest.mark.killed
async def test_a_leader_that_died_while_one_drained_is_followed_by_one_that_stops_it():
    made, *_ = await serving(2, "ab")
    made.want(1)
    await made.step(2)
    assert len(made.provisioner.there) == 2
    made.kill(made.leader)
    await made.step(20)
    assert len(made.provisioner.there) == 1


async def test_a_later_driver_learns_of_running_instances():
    made, _ = await serving(2)
    late = made.add("b")
    made.want(2)
    await made.step(2)
    assert made.policies["b"].resumed_counts == [2]
    assert made.policies["a"].resumed == []
    assert late.pool.serving == 2


@pytest.mark.killed
async def test_an_instance_that_dies_is_replaced():
    made, one = await serving(1)
    made.net.up.clear()
    made.provisioner.there.clear()
    await made.step(3)
    assert len(made.provisioner.there) == 1
    assert one.pool.serving == 0
    await made.step(12)
    assert one.pool.serving == 1


async def test_an_instance_that_did_not_answer_gets_queries_again_when_it_is_ready():
    made, one = await serving(1)
    (name,) = made.provisioner.there
    made.net.fail(f"http://{name}")
    assert await one.pool.run(ONE, 30) is None
    await made.step(2)
    assert one.pool.serving == 0
    made.net.faults.clear()
    await made.step(1)
    assert one.pool.serving == 1
    assert len(made.provisioner.calls) == 1  # a few failed looks replace nothing


async def test_without_the_store_instances_go_on_serving_and_none_is_started_or_stopped():
    made, *drivers = await serving(1, "ab")
    made.coordination.gone = True
    made.want(0)
    await made.step(60)
    assert made.provisioner.calls == [("start", 1)]
    assert all([await driver.pool.run(ONE, 30) for driver in drivers])
    assert made.leader is None
    made.coordination.gone = False
    made.want(1)
    await made.step(10)
    assert made.leader is not None
    assert made.provisioner.calls == [("start", 1)]


async def test_a_store_that_fails_once_costs_a_leader_neither_its_lease_nor_an_instance():
    made, one = await serving(2)
    made.coordination.gone = True
    made.want(1)
    await made.step(1)
    made.coordination.gone = False
    assert one.status.leads
    assert one.troubles == {"store": 1}  # nothing was begun that has to be published
    await made.step(10)
    assert len(made.provisioner.there) == 1
    assert one.troubles == {"store": 1}


async def test_a_driver_sends_nothing_to_an_address_that_its_instances_cannot_have():
    made, one = pool(admits=lambda _bought, url: url != "http://evil")
    members = [FleetMember(name, f"http://{name}", "serving") for name in ("evil", "good")]
    other = PoolRegistry(made.coordination, "p", "b", made.clock)
    other.exchange(DriverLoad("b"))
    assert other.publish(FleetState("b", tuple(members), 2, "another program wrote it"))
    await one.tick()
    assert one.pool.serving == 1
    assert await one.pool.run(ONE, 30)
    assert [url for url, *_ in made.net.requests] == ["http://good"]


async def test_a_hanging_store_blocks_neither_the_loop_nor_shutdown():
    made, one = pool()
    await made.step(5)
    made.coordination.answers.clear()
    for _ in range(2):
        await one.tick()
    assert len(made.policies["a"].rates) == 7
    closing = asyncio.create_task(one.close())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not closing.done()
    made.coordination.answers.set()
    await closing
    assert one.troubles == {}
    made.clock.now += 20
    made.store.put("x", b"", 1)
    assert list(made.store._values) == ["x"]  # nothing was written after the end


class Slow(Wants):
    """A policy that decides when a test lets it."""

    def __init__(self):
        super().__init__()
        self.may_decide = threading.Event()

    def observe(self, seen):
        assert self.may_decide.wait(60), "the event loop was blocked by the policy"
        return super().observe(seen)


def test_drivers_that_were_not_seen_for_an_hour_are_forgotten_and_none_is_paid_for_twice():
    paid = _Paid()
    assert paid.since(PoolView((DriverLoad("a", paid_usd=5.0, hour_usd=2.0),)), 0.0) == 2.0
    assert paid.since(PoolView(), 10.0) == 0.0  # the store did not show it for a while
    assert paid.since(PoolView((DriverLoad("a", paid_usd=6.0, hour_usd=3.0),)), 20.0) == 1.0
    for restart in range(1000):
        paid.since(PoolView((DriverLoad(f"d{restart}", paid_usd=1.0, hour_usd=1.0),)), 30.0 + 10 * restart)
    assert len(paid._known) <= 360


async def test_other_drivers_spending_counts_towards_the_ceiling():
    made, one, other = pool("ab", max_usd_per_hour=25e-4)
    await made.step(2)
    for _ in range(20):
        await one.pool.run(ONE, 30)
    await made.step(2)
    assert other.status.serverless_usd == pytest.approx(20e-4)
    assert not other.pool.router.budget_limiter.allows(made.clock(), 6e-4)
    assert other.pool.router.budget_limiter.allows(made.clock(), 4e-4)
    late = made.add("c", max_usd_per_hour=25e-4)
    await made.step(2)
    assert not late.pool.router.budget_limiter.allows(made.clock(), 6e-4)


async def test_changes_are_logged_with_the_policys_reason(caplog):
    caplog.set_level("INFO", "serfer.fleet")
    made, _ = pool()
    await made.step(2)
    made.want(1)
    await made.step(30)
    lines = [record.serfer for record in caplog.records if record.msg == "pool"]
    assert 2 <= len(lines) <= 5  # a line a change, not one a second
    told = {"leads": True, **dict.fromkeys(("wanted", "on", "serving", "drivers"), 1), "types": {"gpu": 1}}
    assert lines[-1] == {**told, "reason": "the test says so"}
    (start,) = [record.serfer for record in caplog.records if record.msg == "pool starts instances"]
    assert start["reason"] == "the test says so"


async def test_the_loop_survives_bugs_which_are_logged_with_their_traceback(caplog):
    class Mad(Wants):
        def observe(self, seen):
            super().observe(seen)
            bugs.buggy()

    made, one = pool(policy=Mad())
    slept = asyncio.Event()

    async def sleep(_):
        made.clock.now += 1
        if len(made.policies["a"].rates) >= 3:
            slept.set()
        await asyncio.sleep(0)

    one._timing = Timing(made.clock, sleep)
    one.start()
    await asyncio.wait_for(slept.wait(), 60)
    assert one.troubles["controller"] >= 3
    with contextlib.suppress(ZeroDivisionError):
        await one.close()
    assert bugs.logged(caplog.records) >= 1


def warmed(made, name, count, **more):
    """Return a driver whose policy wants so many functions warm, and for how many queries each ping was."""
    sent = []

    async def ping(queries):
        sent.append(queries)

    controller = made.add(name, ping=ping, **more)
    made.policies[name].warm = count
    return controller, sent


async def test_the_leader_pings_what_a_plan_wants_once_and_again_when_lambda_has_dropped_it():
    made = Drivers(ends=[GPU])
    (one, first), (two, second) = (warmed(made, name, 7) for name in "ab")
    await made.step(500)
    leader, sent = (one, first) if made.leader == "a" else (two, second)
    assert sorted([first, second]) == [[], [7]]
    assert leader.status.serverless_usd == pytest.approx(7e-4)
    await made.step(200)  # environments are kept for 600 s
    assert sent == [7, 7]
    made.policies[made.leader].warm = 9
    await made.step(5)
    assert sent == [7, 7, 9]  # idle ones answer pings, too


async def test_queries_in_flight_count_as_warm():
    made = Drivers(ends=[GPU])
    one, sent = warmed(made, "a", 5)
    for _ in range(3):
        one.pool._count(1)
    await made.step(3)
    assert sent == [2]
    assert one.pool.take_stats().paid_usd == pytest.approx(2e-4)


@pytest.mark.parametrize("more", [{"overflow": False}, {"max_usd_per_hour": 1e-4}])
async def test_nothing_is_pinged_where_functions_may_not_be_used(more):
    made = Drivers(ends=[GPU])
    _, sent = warmed(made, "a", 3, **more)
    await made.step(5)
    assert sent == []


async def test_functions_that_are_always_warm_take_no_pings():
    made, one = pool()
    made.policies["a"].warm = 3
    await made.step(5)
    assert "functions" not in one.duties


async def test_a_decision_that_takes_longer_than_the_lease_does_not_cost_it(monkeypatch):
    monkeypatch.setattr(controller_module, "PERIOD_S", 0.01)  # between two renewals while a policy decides
    made = Drivers(ends=[GPU])
    policy = Slow()
    policy.may_decide.set()
    one, other = made.add("a", policy), made.add("b")
    await made.step(3)
    assert made.leader == "a"
    policy.may_decide.clear()
    renewed, exchange, loop = asyncio.Event(), one._registry.exchange, asyncio.get_running_loop()

    def exchanged(load):
        view = exchange(load)
        loop.call_soon_threadsafe(renewed.set)
        return view

    one._registry.exchange = exchanged
    deciding = asyncio.create_task(one.tick())
    for _ in range(12):
        made.clock.now += 1
        for _ in range(2):  # the first one may have begun before
            renewed.clear()
            await asyncio.wait_for(renewed.wait(), 30)
        await other.tick()
        assert not other.status.leads, "the other one took over from a driver that is there"
    policy.may_decide.set()
    await deciding
    assert one.status.leads
