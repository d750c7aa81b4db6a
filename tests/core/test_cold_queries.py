"""A query that finds nothing warm waits for the slowest chain of cold starts, and pays for all of them."""

from dataclasses import replace

import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cold_queries import ColdChoice, price_cold, warm_up_usd
from serfer.core.costs.cold_starts import critical_path
from serfer.core.costs.cost_model import Platform, billed_usd, invoke_seconds, price_plan
from serfer.core.plan import FETCHED, Gang
from tests.core.plans import small_plan

FACTS = shipped_aws().functions
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
        stage.tasks * float(billed_usd(stage.memory_mb, start.seconds, FACTS))
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
