"""The tracked cost of each break-even rule equals its cost when run alone."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings

from serfer.control.policies.break_even import PLAIN, SIZES, ExpertRules
from serfer.control.policies.ski_rental import SkiRental, WorkFunction, lambda_units, levels_of
from serfer.control.policy import on_demand
from tests.control.worlds import QPS, rows, scenario, steps, with_boots

BOOT_S = 60.0
LEVELS = 3
OFF = np.array([False])


class Rule:
    """One rule as a policy, by its definition: sizes are in starts' prices, which are `boot_s` dollars here."""

    name = "rule"

    def __init__(self, world, start, stop):
        self._world, self._start, self._stop = world, start * world.instance.boot_s, stop * world.instance.boot_s
        self._on, self._dearer, self._idle = [False] * LEVELS, [0.0] * LEVELS, [0.0] * LEVELS

    def observe(self, seen):
        elapsed_s = seen.elapsed_s
        for level, units in enumerate(lambda_units(self._world, seen.rate, LEVELS)):
            if self._on[level]:
                self._idle[level] = max(self._idle[level] + (1 - units) * elapsed_s, 0.0)
                if self._idle[level] >= self._stop and units < 1:
                    self._on[level], self._dearer[level] = False, 0.0
            else:
                self._dearer[level] = max(self._dearer[level] + (units - 1) * elapsed_s, 0.0)
                if self._dearer[level] >= self._start and units > 1:
                    self._on[level], self._idle[level] = True, 0.0
        return on_demand(self._world.instance, sum(self._on), "")

    def resume(self, fleet):
        pass


def run(world, load, *, fading=1.0):
    rules, work_function = ExpertRules(world), WorkFunction(world.instance.boot_s)
    rules.grow(LEVELS)
    work_function.grow(LEVELS)
    on = []
    for seconds, rate in steps(load, 5.0):
        units = lambda_units(world, rate, LEVELS)
        work_function.advance((1.0 - units) * seconds)
        rules.pass_time(seconds, units, fading, np.array(work_function.on))
        on.append(rules.on.sum(axis=0).tolist())
    return rules, on


@settings(derandomize=True, max_examples=6)
@given(load=rows(LEVELS * QPS, most_s=400))
@example([(50, QPS), (85, 0.0), (5, QPS / 2), (260, 0.0), (5, QPS / 2)])  # load again, soon after a stop
def test_each_rule_costs_the_same_as_alone(load):
    world = scenario(13.0, boot_s=BOOT_S)
    rules, on = run(world, load)
    for number, sizes in enumerate(SIZES):
        alone = with_boots(world, Rule(world, *sizes), load, 5.0)
        assert [each[number] for each in on] == alone.on
        assert rules.cost[:, number].sum() == pytest.approx(alone.usd)


@settings(derandomize=True, max_examples=12)
@given(load=rows(LEVELS * QPS, most_s=600))
def test_the_plain_expert_equals_the_plain_rule(load):
    world = scenario(13.0, boot_s=BOOT_S)
    rules, on = run(world, load)
    alone = with_boots(world, SkiRental(world), load, 5.0)
    assert [each[PLAIN] for each in on] == alone.on
    assert rules.cost[:, PLAIN].sum() == pytest.approx(alone.usd)


def test_experts_include_the_plain_rule_and_quicker_and_slower_ones():
    assert SIZES[PLAIN] == (1.0, 1.0)
    assert {start for start, _ in SIZES} == {0.0, 0.3, 1.0}
    assert {stop for _, stop in SIZES} == {1.0, 4.0, 16.0, 64.0}


def test_a_quick_rule_starts_at_once_but_never_where_lambda_is_cheaper():
    world = scenario(13.0, boot_s=BOOT_S)
    quick = SIZES.index((0.0, 64.0))
    _, on = run(world, [(50, QPS / 14), (5, QPS / 12), (3835, 0.0), (50, 0.0)])
    assert [each[quick] for each in on] == [0] * 10 + [1] * 768 + [0] * 10  # off after 64 boots' seconds of idling


def test_costs_fade_by_the_given_factor():
    world = scenario(13.0, boot_s=BOOT_S)
    rules = ExpertRules(world)
    rules.grow(1)
    paid = [rules.pass_time(5.0, np.array([0.5]), 0.9, OFF)[0, PLAIN] for _ in range(3)]
    assert paid == [2.5] * 3
    assert rules.cost[0, PLAIN] == pytest.approx(2.5 * (1 + 0.9 + 0.81))


def test_new_levels_begin_off_and_without_cost():
    rules = ExpertRules(scenario(13.0, boot_s=BOOT_S))
    rules.grow(1)
    rules.pass_time(100.0, np.array([13.0]), 1.0, ~OFF)
    before = rules.cost.copy()
    rules.grow(3)
    assert rules.cost[0].tolist() == before[0].tolist()
    assert not rules.cost[1:].any()
    assert rules.on[0].all()
    assert not rules.on[1:].any()


def test_resumed_instances_are_on_in_every_rule():
    rules = ExpertRules(scenario(13.0, boot_s=BOOT_S))
    rules.grow(2)
    rules.resume(1)
    assert rules.on.all(axis=1).tolist() == [True, False]
    paid = rules.pass_time(5.0, np.array([13.0, 0.0]), 1.0, np.array([True, False]))
    assert paid[0].tolist() == [5.0] * len(SIZES)  # no boot


def test_without_a_boot_no_rule_stops_while_an_instance_is_cheaper():
    world = scenario(13.0, boot_s=0.0)
    _, on = run(world, [(50, QPS), (50, 0.0)])
    assert on == [[1] * len(SIZES)] * 10 + [[0] * len(SIZES)] * 10


@pytest.mark.parametrize("rate", [0.0, 0.1, QPS - 0.1, QPS, QPS + 0.1, 3.5 * QPS])
def test_levels_split_a_load(rate):
    world = scenario(13.0)
    levels = levels_of(world, rate)
    assert levels == math.ceil(rate / QPS)
    units = lambda_units(world, rate, levels + 2)
    assert units.sum() == pytest.approx(rate * world.serverless.usd_per_query)
    assert (units <= 13.0 + 1e-9).all()
    assert not units[levels:].any()
    assert (np.diff(units) <= 0).all()
