"""Shadows decide on what the live policy sees; nothing that they do reaches it."""

import asyncio
from threading import Event

import pytest

from serfer.api.observability.pool_metrics import ShadowMetrics
from serfer.control.policies import make_policy
from serfer.control.policy import on_demand
from serfer.control.router import Router
from serfer.fleet.beside import shadows as shadows_module
from serfer.fleet.beside.decider import Decider
from serfer.fleet.beside.shadows import Shadows
from tests.control.worlds import QPS, fleet, scenario, seen

WORLD = scenario()


class Scripted:
    """A policy that does what a test says."""

    name = "scripted"

    def __init__(self, act):
        self.act = act
        self.calls = 0

    def observe(self, seen):
        self.calls += 1
        return self.act(seen)

    def resume(self, fleet):
        raise RuntimeError(f"cannot resume from {fleet}")


def decider(*policies):
    live = make_policy("serverless", WORLD)
    return Decider(Router(WORLD, live), shadows=Shadows(live.name, WORLD, policies))


def settle(made):
    """Wait until the shadows have done what was given to them."""
    for runner in made._shadows._runners:
        assert runner._thread.close(60)


async def observed(made, times, rate=QPS):
    return [await made.decide(seen(1.0, rate)) for _ in range(times)]


def test_shadows_and_the_live_policy_are_accounted_alike():
    made = decider(make_policy("instances", WORLD))
    plans = asyncio.run(observed(made, 10))
    settle(made)
    live, shadow = made.courses()
    assert {plan.total for plan in plans} == {0}
    assert (live.policy, live.wanted, live.instances_usd) == ("serverless", 0, 0.0)
    assert live.serverless_usd == pytest.approx(10 * QPS * WORLD.serverless.usd_per_query)
    assert (shadow.policy, shadow.wanted) == ("instances", 1)
    assert shadow.instances_usd == pytest.approx(9.0)  # a dollar a second, from the first decision on
    assert shadow.troubles == 0


def test_what_a_shadow_raises_is_counted_and_logged_once(caplog):
    def fail(_seen):
        raise SystemExit("a shadow's own end")

    made = decider(Scripted(fail), make_policy("instances", WORLD))
    made.resume(fleet(1))
    assert len(asyncio.run(observed(made, 5))) == 5
    settle(made)
    _, failing, other = made.courses()
    assert (failing.troubles, other.troubles) == (6, 0)
    assert other.wanted == 1
    messages = [record.serfer["message"] for record in caplog.records if record.message == "shadow trouble"]
    assert [message.partition(":")[0] for message in messages] == ["RuntimeError", "SystemExit"]


def test_a_shadow_that_hangs_delays_nothing_and_misses_observations(monkeypatch):
    monkeypatch.setattr(shadows_module, "_MAX_WAITING", 3)
    goes_on, entered = Event(), Event()

    def hang(_seen):
        entered.set()
        assert goes_on.wait(60)
        return on_demand(WORLD.instance, 1, "at last")

    policy = Scripted(hang)
    made = decider(policy)

    async def scene():
        await observed(made, 1)
        assert await asyncio.to_thread(entered.wait, 60)
        await observed(made, 9)
        await made.close()

    asyncio.run(scene())
    assert made.courses()[1].troubles == 6
    goes_on.set()
    settle(made)
    assert policy.calls == 4


def test_a_change_of_what_a_shadow_wants_is_logged_with_its_reason(caplog):
    caplog.set_level("INFO")
    made = decider(make_policy("instances", WORLD))
    asyncio.run(observed(made, 3))
    asyncio.run(observed(made, 3, 2.5 * QPS))
    settle(made)
    lines = [record.serfer for record in caplog.records if record.message == "shadow"]
    assert [(line["policy"], line["wanted"]) for line in lines] == [("instances", 1), ("instances", 3)]
    assert "in the last hour" in lines[0]["reason"]


def test_metrics_have_every_course():
    made = decider(make_policy("instances", WORLD))
    asyncio.run(observed(made, 2))
    settle(made)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in ShadowMetrics(made.courses).collect()
        for sample in family.samples
    }
    assert samples["serfer_shadow_instances", "instances"] == 1
    assert samples["serfer_shadow_usd_total", "instances", "gpu"] == pytest.approx(1.0)
    assert samples["serfer_shadow_usd_total", "serverless", "gpu"] == 0
    assert samples["serfer_shadow_troubles_total", "instances"] == 0


def test_without_shadows_there_is_nothing_to_compare():
    assert Decider(Router(WORLD, make_policy("serverless", WORLD))).courses() == []
