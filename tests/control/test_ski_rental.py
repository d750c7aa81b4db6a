"""The plain rule costs at most 3 - 2/c times the best schedule, and the bound is tight."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies.break_even import competitive_ratio
from serfer.control.policies.ski_rental import SkiRental, WorkFunction
from tests.control.worlds import LONG, QPS, at_once, best, fleet, rows, scenario, seen, watching, with_boots

PRICE_RATIOS = [1.5, 3.0, 13.0, 26.0]


@pytest.mark.parametrize("price_ratio", PRICE_RATIOS)
@settings(derandomize=True, max_examples=10)
@given(load=rows(2.5 * QPS, most_rows=8, most_s=600), step_s=st.sampled_from([0.5, 1.0, 3.0]))
def test_the_rule_costs_at_most_3_minus_2_over_c_times_the_optimum(price_ratio, load, step_s):
    # Steps let the rule act up to a step too late. A late start costs at most c a second where the rule would have paid
    # 1; a late stop 1 where it would have paid less than that. Both happen at most once for each start.
    world = scenario(price_ratio)
    paid = at_once(world, SkiRental(world), load, step_s)
    assert (
        paid.usd <= competitive_ratio(price_ratio) * best(world, load) + paid.starts * (price_ratio + 1) * step_s + 1e-6
    )


@pytest.mark.parametrize(("price_ratio", "tight"), [(1.5, 0.02), (3.0, 0.02), (13.0, 0.05), (26.0, 0.1)])
def test_the_bound_is_tight_against_an_adversary(price_ratio, tight):
    world = scenario(price_ratio)
    load = watching(world, SkiRental(world), 1.0, 8_000)
    usd = at_once(world, SkiRental(world), load).usd
    assert usd == pytest.approx(competitive_ratio(price_ratio) * best(world, load), rel=tight)


def ratio_with_boots(price_ratio):
    """Return what the rule pays at most, in optima, where instances boot and it acts at every instant (docs)."""
    return 1 + (price_ratio**2 - 1) / (2 * price_ratio - 1)


@pytest.mark.parametrize("price_ratio", [1.1, *PRICE_RATIOS])
@settings(derandomize=True, max_examples=25)
@given(load=rows(2.5 * QPS, most_rows=12, most_s=300), step_s=st.sampled_from([0.5, 1.0, 3.0, 10.0]))
def test_with_boots_no_load_costs_more_than_the_bound(price_ratio, load, step_s):
    world = scenario(price_ratio, boot_s=40.0)
    late_ratio = (price_ratio - 1) * step_s / world.instance.boot_s  # what decisions add that are so far apart
    bound = ratio_with_boots(price_ratio) + late_ratio
    assert with_boots(world, SkiRental(world), load, step_s).usd <= bound * best(world, load) + 1e-6


@pytest.mark.parametrize("price_ratio", PRICE_RATIOS)
def test_the_bound_with_boots_is_tight_against_an_adversary(price_ratio):
    world = scenario(price_ratio)
    load = watching(world, SkiRental(world), 0.25, 40_000, "serving")
    usd = with_boots(world, SkiRental(world), load, 0.25).usd
    assert usd == pytest.approx(ratio_with_boots(price_ratio) * best(world, load), rel=0.03)


@pytest.mark.parametrize("price_ratio", [0.3, 1.0])
def test_nothing_is_started_where_lambda_is_never_dearer(price_ratio):
    world, load = scenario(price_ratio), [(5000, 7 * QPS)]
    paid = at_once(world, SkiRental(world), load)
    assert paid.starts == 0
    assert paid.usd == pytest.approx(competitive_ratio(price_ratio) * best(world, load))


def test_the_rule_starts_and_stops_after_the_price_of_a_start():
    world = scenario(13.0)
    paid = at_once(world, SkiRental(world), [(100, QPS), (500, 0.0)])
    # a start is 240 dollars, Lambda costs 12 a second more: on after 20 s; idle for 240 s from second 100 on
    assert paid.on.index(1) == 20 - 1
    assert paid.on.index(0, 20) == 100 + 240 - 1
    assert paid.starts == 1


def test_a_policy_resumes_with_running_instances():
    world = scenario(13.0)
    policy = SkiRental(world)
    policy.resume(fleet(3))
    assert at_once(world, policy, [(300, 2.5 * QPS)]).on == [3] * 300
    assert policy.observe(seen(LONG - 1, 0.0)).total == 3
    assert policy.observe(seen(1, 0.0)).total == 0
    idle = SkiRental(world)
    idle.resume(fleet(2))
    assert [idle.observe(seen(LONG / 2, 0.0)).total for _ in range(2)] == [2, 0]


def test_without_a_boot_an_instance_is_on_exactly_while_it_is_cheaper():
    world = scenario(13.0, boot_s=0.0)
    load = [(10, QPS), (10, 0.0), (10, QPS / 26), (10, QPS / 2), (10, 0.0)]
    paid = at_once(world, SkiRental(world), load)
    assert paid.on == [1] * 10 + [0] * 20 + [1] * 10 + [0] * 10
    assert with_boots(world, SkiRental(world), load).usd == pytest.approx(paid.usd)


def test_the_rule_terminates_for_tiny_instances():
    world = scenario(13.0)
    tiny = replace(world, instances=(replace(world.instance, qps=1e-6),))
    assert SkiRental(tiny).observe(seen(1.0, 1e9)).total <= 1000


COSTS = st.one_of(st.just(0), st.integers(0, 400))  # exact sums: two sums that are rounded may differ at an end
STEPS = st.lists(st.tuples(COSTS, COSTS), max_size=60)  # what a level costs in a step: on, off


class ByDefinition:
    """Two work functions, a dynamic programme over both states, and the rule that compares them."""

    def __init__(self, start):
        self.start, self.ends_off, self.ends_on, self.on = start, 0.0, start, False

    def step(self, on, off):
        self.ends_off, self.ends_on = self.ends_off + off, self.ends_on + on
        if self.ends_on - self.ends_off >= self.start:
            self.on = False
        elif self.ends_on <= self.ends_off:
            self.on = True
        self.ends_off, self.ends_on = min(self.ends_off, self.ends_on), min(self.ends_on, self.ends_off + self.start)


@settings(derandomize=True)
@given(st.sampled_from([0.0, 1.0, 60.0, 240.0]), STEPS)
def test_the_gap_is_the_difference_of_both_states_work_functions(start, costs):
    work_function, expected = WorkFunction(start), ByDefinition(start)
    work_function.grow(1)
    for on, off in costs:
        before = expected.ends_off
        [walked] = work_function.advance([on - off])
        expected.step(on, off)
        assert work_function.gap == [expected.ends_on - expected.ends_off]
        assert work_function.on == [expected.on]
        assert before + off + min(walked, 0.0) == expected.ends_off


def test_new_levels_are_off_and_resumed_ones_on():
    work_function = WorkFunction(60.0)
    work_function.resume(2)
    work_function.grow(3)
    work_function.grow(1)  # never fewer
    assert work_function.gap == [0.0, 0.0, 60.0]
    assert work_function.on == [True, True, False]
    with pytest.raises(ValueError, match="shorter"):
        work_function.advance([1.0])
