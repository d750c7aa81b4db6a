from dataclasses import replace
from itertools import pairwise, product

import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cold_queries import starting_ways
from serfer.core.costs.cold_starts import cold_seconds, cold_start, fetched_at_init
from serfer.core.costs.cost_model import Platform, gang_load, plan_load, price_plan, starting_usd
from serfer.core.plan import CONTAINER, FETCHED, WEIGHT_PLACES, ZIP, Gang
from tests.core.plans import small_plan

FACTS = shipped_aws().functions
MB_240 = 240_000_000


def test_fetched_weights_arrive_at_the_bandwidth_of_an_environment_and_those_of_an_image_by_its_blocks():
    start = cold_start(MB_240, ZIP, FACTS)
    assert (start.process, start.sessions) == (FACTS.init, pytest.approx(0.6))
    assert {cold_seconds(0, place, FACTS) for place in WEIGHT_PLACES} == {FACTS.init}
    seconds = {place: cold_start(MB_240, place, FACTS).fetching for place in WEIGHT_PLACES}
    assert seconds == {
        ZIP: 0.0,
        FETCHED: pytest.approx(FACTS.fetch_latency + 3.2),
        CONTAINER: pytest.approx(MB_240 / FACTS.image_rate),
    }


def test_a_snapshot_has_the_sessions_wherever_the_weights_were_and_restoring_is_not_billed():
    starts = {cold_start(MB_240, place, FACTS, snapstart=True) for place in WEIGHT_PLACES}
    (start,) = starts
    assert (start.process, start.sessions) == (FACTS.restore, 0.0)
    assert start.billed_seconds == pytest.approx(MB_240 / FACTS.snapshot_rate) == start.seconds - FACTS.restore


def test_every_way_to_start_is_priced_with_a_snapshot_and_without():
    plan, platform = small_plan(), Platform(FACTS, shipped_aws().redis, cold_share=0.1)
    ways = starting_ways(plan, platform)
    assert [(way.weights_in, way.snapstart) for way in ways] == [*product(WEIGHT_PLACES, (False, True))]
    assert [way.weights_in for way in ways if way.chosen] == [ZIP]
    memory_gb = sum(plan.stages[stage].memory_mb / 1024 for stage, _ in plan.functions)
    for plain, snapshot in pairwise(ways):
        if snapshot.snapstart:
            assert snapshot.cold_seconds < plain.cold_seconds
            assert snapshot.month_usd == pytest.approx(memory_gb * 730 * 3600 * FACTS.price_snapstart_cached)
            assert plain.month_usd == 0
    (own,) = (way for way in ways if way.chosen)
    assert own.usd == price_plan(plan, platform).usd
    restored = sum(stage.tasks * stage.memory_mb / 1024 for stage in price_plan(plan, platform).stages)
    cold, warm = ways[1].cold_usd, price_plan(plan, replace(platform, cold_share=0.0)).usd
    price = price_plan(plan, replace(platform, snapstart=True))
    pages = sum(
        float(starting_usd(stage.tasks, stage.memory_mb, start.billed_seconds, FACTS, first=not step))
        for step, (stage, start) in enumerate(zip(price.stages, price.cold_starts, strict=True))
    )
    assert cold - warm == pytest.approx(restored * FACTS.price_snapstart_restored + pages)


def test_weights_are_fetched_at_init_while_that_takes_less_than_seven_seconds_as_predicted():
    most = (7 - FACTS.init - FACTS.fetch_latency) / (1 / FACTS.bandwidth + 1 / FACTS.load_rate)
    assert fetched_at_init(int(0.999 * most), FACTS)
    assert not fetched_at_init(int(1.001 * most), FACTS)
    assert not fetched_at_init(int(0.999 * most), replace(FACTS, init_limit=5))


@pytest.mark.parametrize("gangs", [False, True])
def test_a_plan_whose_weights_are_fetched_starts_colder_and_is_as_warm(gangs):
    """A cold query takes longer by what fetching takes, and pays for it; a warm one is the same."""
    plan = replace(small_plan(), gangs=(Gang(0, 2, 0.0, 0.0),) if gangs else ())
    fetched = replace(plan, stages=tuple(replace(stage, weights_in=FETCHED) for stage in plan.stages))
    warm = Platform(FACTS, shipped_aws().redis)
    cold = replace(warm, cold_share=1.0)
    assert price_plan(plan, warm).usd == price_plan(fetched, warm).usd
    load = (lambda each: gang_load(each, each.gangs[0]).outer) if gangs else (lambda each: plan_load(each, 0))
    extra = load(fetched).cold_start(warm).fetching
    prices = [price_plan(each, cold).stages[0] for each in (plan, fetched)]
    assert extra >= FACTS.fetch_latency
    assert prices[1].seconds - prices[0].seconds == pytest.approx(extra)
    assert prices[1].billed_s - prices[0].billed_s == pytest.approx(extra * prices[0].tasks)
