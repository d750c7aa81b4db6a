from dataclasses import replace
from itertools import pairwise, product

import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cold_queries import ColdChoice, price_cold, starting_ways, warm_up_usd
from serfer.core.costs.cold_starts import cold_seconds, cold_start, critical_path, fetched_at_init
from serfer.core.costs.cost_model import (
    Platform,
    billed_usd,
    gang_load,
    invoke_seconds,
    plan_load,
    price_plan,
    starting_usd,
)
from serfer.core.plan import CONTAINER, FETCHED, WEIGHT_PLACES, ZIP, Gang
from tests.core.plans import small_plan

FACTS = shipped_aws().functions
MB_240 = 240_000_000


def test_fetched_weights_arrive_at_the_bandwidth_of_an_environment_and_those_of_an_image_by_its_blocks():
    start = cold_start(MB_240, ZIP, FACTS)
    assert (start.process, start.sessions) == (FACTS.init, pytest.approx(0.6))
    assert start.package == pytest.approx(MB_240 / FACTS.package_rate) == start.seconds - start.billed_seconds
    assert [cold_start(MB_240, place, FACTS).package for place in (FETCHED, CONTAINER)] == [0.0, 0.0]
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
    extra, copied = load(fetched).cold_start(warm).fetching, load(plan).cold_start(warm).package
    prices = [price_plan(each, cold).stages[0] for each in (plan, fetched)]
    assert extra >= FACTS.fetch_latency
    assert prices[1].seconds - prices[0].seconds == pytest.approx(extra - copied)
    assert prices[1].billed_s - prices[0].billed_s == pytest.approx(extra * prices[0].tasks)


PLATFORM = Platform(FACTS, shipped_aws().redis)


def fetched(plan):
    return replace(plan, stages=tuple(replace(stage, weights_in=FETCHED) for stage in plan.stages))


@pytest.mark.parametrize(
    ("steps", "ended", "waited"),
    [
        ([(2.0, 0.5)], [2.5], [2.0]),
        ([(2.0, 0.5), (2.2, 0.1)], [2.5, 2.6], [2.0, 0.0]),
        ([(1.0, 0.5), (4.0, 0.1), (3.0, 1.0)], [1.5, 4.1, 5.1], [1.0, 2.5, 0.0]),
        ([], [], []),
    ],
)
def test_a_step_waits_for_the_step_before_and_for_its_environments_whichever_come_later(steps, ended, waited):
    times = critical_path(steps)
    assert [time.ended for time in times] == pytest.approx(ended)
    assert [time.waited for time in times] == pytest.approx(waited)


def test_cold_starts_of_stages_overlap():
    """The first answer is earlier than with one cold start after another, and no earlier than the longest allows."""
    plan = fetched(small_plan())
    warm, cold = price_plan(plan, PLATFORM), price_cold(plan, PLATFORM)
    one_by_one = warm.latency.mean + sum(start.seconds for start in cold.cold_starts)
    assert cold.seconds < one_by_one - 0.5
    assert cold.seconds >= max(start.seconds for start in cold.cold_starts) + warm.stages[-1].seconds
    assert cold.seconds == pytest.approx(sum(stage.seconds for stage in cold.stages))
    assert cold.latency.mean == pytest.approx(cold.seconds, rel=1e-2)
    assert price_cold(plan, replace(PLATFORM, cold_share=0.3)).usd == cold.usd


def test_a_cold_query_pays_for_every_environment_and_every_warm_up_request():
    warm, cold = price_plan(small_plan(), PLATFORM), price_cold(small_plan(), PLATFORM)
    start, ready = (times.ready for times in cold.times)
    assert start == cold.cold_starts[0].seconds
    assert ready == pytest.approx(cold.cold_starts[1].seconds + invoke_seconds(cold.stages[1].tasks, FACTS))
    first, later = cold.stages
    started = [
        stage.tasks * float(billed_usd(stage.memory_mb, start.billed_seconds, FACTS))
        for stage, start in zip(cold.stages, cold.cold_starts, strict=True)
    ]
    assert cold.usd - warm.usd == pytest.approx(sum(started) + later.tasks * FACTS.price_request)
    assert cold.environments == first.tasks + later.tasks
    assert warm_up_usd(warm, FACTS) == pytest.approx(sum(started) + cold.environments * FACTS.price_request)


def test_a_gang_is_one_step_that_starts_with_the_query():
    plan = replace(small_plan(), gangs=(Gang(0, 2, 0.0, 0.0),))
    warm, cold = price_plan(plan, PLATFORM), price_cold(plan, PLATFORM)
    assert len(cold.times) == 1
    assert cold.seconds == pytest.approx(warm.stages[0].seconds + cold.cold_starts[0].seconds)
    assert cold.environments == warm.stages[0].tasks


def test_a_query_on_the_cold_plan_pays_for_warming_the_other_one():
    plan, split = fetched(small_plan()), small_plan()
    choice = ColdChoice.of(plan, split, PLATFORM)
    assert choice.usd == pytest.approx(choice.split.usd + warm_up_usd(choice.whole, FACTS))
    assert choice.times_earlier == pytest.approx(choice.whole.seconds / choice.split.seconds)
    whole, both = choice.burst(7)
    assert whole.environments == 7 * choice.whole.environments
    assert both.environments == 7 * (choice.whole.environments + choice.split.environments)
    assert (whole.usd, both.usd) == (pytest.approx(7 * choice.whole.usd), pytest.approx(7 * choice.usd))
    assert (whole.seconds, both.seconds) == (choice.whole.seconds, choice.split.seconds)


def test_a_burst_that_an_account_has_no_environments_for_is_refused():
    plan = small_plan()
    facts = replace(FACTS, concurrency=40)
    choice = ColdChoice.of(plan, plan, replace(PLATFORM, functions=facts))
    each = choice.whole.environments
    most = choice.burst(1)[0].most_queries
    assert most == 40 // each
    assert [choice.burst(queries)[0].refused for queries in (most, most + 1)] == [False, True]
    assert choice.burst(1)[1].most_queries == 40 // (2 * each)
