"""The optimum is the least over all schedules, and does not depend on how a load is split into rows."""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer_bench.study.policies.clairvoyant import optimum_schedule, optimum_usd
from tests.control.worlds import QPS, rows, scenario

PRICE_RATIOS = st.sampled_from([0.5, 1.0, 1.5, 3.0, 13.0, 26.0])
BOOTS = st.sampled_from([0.0, 10.0, 240.0])


def best(world, load):
    return optimum_usd(world, *zip(*load, strict=True))


def least_of_all_levels(world, load):
    """Try every way of having each level on or off in each row."""
    kind, usd_per_query = world.instance, world.serverless.usd_per_query
    total, floor = 0.0, 0.0
    while floor < max(rate for _, rate in load):
        costs = []
        for schedule in product((False, True), repeat=len(load)):
            usd, before = 0.0, False
            for on, (seconds, rate) in zip(schedule, load, strict=True):
                units = min(max(rate - floor, 0.0), kind.qps) * usd_per_query
                usd += kind.start_usd * (on and not before) + seconds * (kind.usd_per_s if on else units)
                before = on
            costs.append(usd)
        total += min(costs)
        floor += kind.qps
    return total


def least_of_all_fleets(world, load):
    """Try every number of instances in every row, without a thought of levels."""
    most = 1 + int(max(rate for _, rate in load) // world.instance.qps)

    def usd(fleet):
        return cost(world, load, fleet)

    return min(map(usd, product(range(most + 1), repeat=len(load))))


@settings(derandomize=True, max_examples=30)
@given(rows(2.5 * QPS, most_rows=7), PRICE_RATIOS, BOOTS)
def test_the_optimum_is_the_least_over_all_schedules_of_all_levels(load, price_ratio, boot_s):
    world = scenario(price_ratio, boot_s=boot_s)
    assert best(world, load) == pytest.approx(least_of_all_levels(world, load), rel=1e-9, abs=1e-9)


@settings(derandomize=True, max_examples=30)
@given(rows(2.5 * QPS, most_rows=4), PRICE_RATIOS, BOOTS)
def test_the_optimum_is_the_least_over_all_fleets(load, price_ratio, boot_s):
    world = scenario(price_ratio, boot_s=boot_s)
    assert best(world, load) == pytest.approx(least_of_all_fleets(world, load), rel=1e-9, abs=1e-9)


@settings(derandomize=True, max_examples=40)
@given(rows(5 * QPS), PRICE_RATIOS, BOOTS, st.integers(0, 9), st.floats(0.0, 1.0))
def test_splitting_a_row_in_two_costs_the_same(load, price_ratio, boot_s, at, share):
    world, place = scenario(price_ratio, boot_s=boot_s), at % len(load)
    seconds, rate = load[place]
    split = [*load[:place], (seconds * share, rate), (seconds - seconds * share, rate), *load[place + 1 :]]
    assert best(world, split) == pytest.approx(best(world, load), rel=1e-9, abs=1e-9)


@settings(derandomize=True, max_examples=40)
@given(rows(5 * QPS), PRICE_RATIOS, BOOTS, st.integers(0, 9), st.floats(0.0, 30.0))
def test_more_load_or_more_time_never_costs_less(load, price_ratio, boot_s, at, more):
    world, place = scenario(price_ratio, boot_s=boot_s), at % len(load)
    seconds, rate = load[place]
    for heavier in ((seconds, rate + more), (seconds + more, rate)):
        assert best(world, [*load[:place], heavier, *load[place + 1 :]]) >= best(world, load) - 1e-9


@settings(derandomize=True, max_examples=40)
@given(rows(5 * QPS), PRICE_RATIOS, BOOTS)
def test_the_optimum_is_at_most_lambda_alone_and_a_permanent_fleet(load, price_ratio, boot_s):
    world = scenario(price_ratio, boot_s=boot_s)
    alone = sum(seconds * rate for seconds, rate in load) * world.serverless.usd_per_query
    levels = -(-max(rate for _, rate in load) // QPS)
    always = levels * (world.instance.start_usd + sum(seconds for seconds, _ in load))
    assert best(world, load) <= min(alone, always) + 1e-9


def test_the_optimum_by_hand():
    world = scenario(10.0, boot_s=50.0)
    assert best(world, [(100, QPS)]) == pytest.approx(150)  # 1,000 on Lambda
    assert best(world, [(5, QPS)]) == pytest.approx(50)
    assert best(world, [(100, QPS), (49, 0), (100, QPS)]) == pytest.approx(299)  # stays on in between
    assert best(world, [(100, QPS), (51, 0), (100, QPS)]) == pytest.approx(300)  # and here it does not
    assert best(world, [(100, 1.05 * QPS)]) == pytest.approx(150 + 50)  # the little above runs on Lambda
    assert best(world, [(100, 0)]) == 0
    assert optimum_usd(world, [], []) == 0


def cost(world, load, fleet):
    """Price a number of instances in each row, Lambda taking what is beyond them."""
    kind = world.instance
    starts = sum(max(after - before, 0) for before, after in pairwise([0, *fleet]))
    running = sum(
        seconds * (count * kind.usd_per_s + max(rate - count * kind.qps, 0.0) * world.serverless.usd_per_query)
        for count, (seconds, rate) in zip(fleet, load, strict=True)
    )
    return starts * kind.start_usd + running


@given(rows(3.5 * QPS, most_rows=30), PRICE_RATIOS, BOOTS)
def test_the_schedule_costs_the_optimum_and_its_dollars_are_those_of_each_beginning(load, price_ratio, boot_s):
    world = scenario(price_ratio, boot_s=boot_s)
    schedule = optimum_schedule(world, *zip(*load, strict=True))
    assert cost(world, load, schedule.instances.tolist()) == pytest.approx(best(world, load))
    beginnings = [best(world, load[:end]) for end in range(1, len(load) + 1)]
    assert schedule.usd.tolist() == pytest.approx(beginnings)
