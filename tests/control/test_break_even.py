"""The default policy keeps the plain rule's guarantee for any load, and learns from past bursts."""

import math
from functools import partial
from itertools import cycle

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serfer.control.policies import make_policy
from serfer.control.policies.break_even import PLAIN, SIZES, BreakEven, ExpertRules, RobustnessBudget, competitive_ratio
from serfer.control.policies.ski_rental import SkiRental, WorkFunction, lambda_units, levels_of
from serfer.control.policy import on_demand
from tests.control import worlds
from tests.control.worlds import LONG, QPS, best, fleet, rows, scenario, seen, steps, with_boots

LEVELS = 3
STEP_S = 5.0
HOUR = 3600


@settings(derandomize=True, max_examples=10)
@given(load=rows(2.5 * QPS, most_rows=8, most_s=60), price_ratio=st.sampled_from([1.0, 1.5, 3.0, 26.0]))
def test_the_guarantee_holds_for_any_load(load, price_ratio):
    world, load = scenario(price_ratio, boot_s=60.0), [(STEP_S * seconds, rate) for seconds, rate in load]
    paid = worlds.up_to_its_price(world, BreakEven(world), load, STEP_S)
    # The guarantee is about the plain rule, which acts up to a step too late: a late start costs up to c a second where
    # it would have paid 1, a late stop 1 where it would have paid less.
    late = worlds.at_once(world, SkiRental(world), load, STEP_S).starts * (price_ratio + 1) * STEP_S
    assert paid.usd <= competitive_ratio(price_ratio) * best(world, load) + late + 1e-6


def bursts(count, *, every=2 * HOUR, lasting=600, rate=QPS):
    return [(every - lasting, 0.0), (lasting, rate)] * count


def test_regular_bursts_are_anticipated_at_hardly_more_than_the_optimum_once_they_are_known():
    world, step_s = scenario(26.0), 30.0
    policy = BreakEven(world)
    taught, learnt = (with_boots(world, policy, bursts(count), step_s) for count in (6, 3))
    assert taught.usd + learnt.usd <= 0.6 * with_boots(world, SkiRental(world), bursts(9), step_s).usd
    assert learnt.usd <= 1.15 * best(world, bursts(3))
    period = int(2 * HOUR / step_s)
    for number in range(3):
        on = learnt.on[number * period : (number + 1) * period]
        begins = period - int(600 / step_s)
        assert on[begins - int(LONG / step_s) - 1]  # booted when the burst begins
        assert sum(on[:begins]) * step_s <= 2 * LONG  # and not on for much longer


@settings(derandomize=True, max_examples=12, deadline=None)
@given(
    load=rows(2.5 * QPS, most_rows=8, most_s=900),
    times=st.integers(1, 20),
    price_ratio=st.sampled_from([3.0, 13.4, 25.8]),
    step_s=st.sampled_from([10.0, 30.0]),
)
def test_no_load_costs_much_more_than_the_cheaper_of_the_plain_rule_and_lambda_alone(load, times, price_ratio, step_s):
    """At most 1.05 times that, and twenty boots of each level: measured over random loads, not proved."""
    world, load = scenario(price_ratio, boot_s=120.0), (load * times)[:40]
    usd, least = against_the_cheaper(world, load, step_s)
    levels = math.ceil(max(rate for _, rate in load) / QPS)
    assert usd <= 1.05 * least + 20 * levels * world.instance.start_usd


def against_the_cheaper(world, load, step_s=10.0):
    names = ("break-even", "ski-rental", "serverless")
    usd, *others = (with_boots(world, make_policy(name, world), load, step_s).usd for name in names)
    return usd, min(others)


@pytest.mark.slow
@pytest.mark.parametrize("price_ratio", [3.0, 13.4, 25.8])
@pytest.mark.parametrize("until", ["started", "serving"])
def test_a_load_that_watches_it_costs_about_twice_that_at_worst(price_ratio, until):
    """Full load until an instance is started, or serves, and then nothing until it has stopped."""
    world = scenario(price_ratio, boot_s=180.0)
    usd, least = against_the_cheaper(world, worlds.watching(world, BreakEven(world), 10.0, 12 * 360, until))
    assert usd <= 2.05 * least


@pytest.mark.parametrize("load", [0.04, 0.5, 1.0, 2.02, 2.5])
def test_a_steady_load_costs_the_optimum_once_instances_have_started(load):
    world, rate = scenario(13.0), load * QPS
    policy = BreakEven(world)
    start = with_boots(world, policy, [(2 * LONG, rate)], STEP_S)
    then = [policy.observe(seen(STEP_S, rate)).total for _ in range(300)]
    on = start.on[-1]
    assert then == [on] * 300
    each_s = on + max(rate - on * QPS, 0.0) * world.serverless.usd_per_query
    steady = best(world, [(1e9, rate)]) / 1e9  # starts are lost in it
    assert each_s == pytest.approx(steady, rel=0.01)


@pytest.mark.parametrize(("resumed", "load", "finally_on"), [(3, 2.5, 3), (2, 0.0, 0), (4, 1.5, 2)])
def test_resumed_instances_idle_for_as_long_as_a_start_is_worth(resumed, load, finally_on):
    world, steps_on = scenario(13.0), int(LONG / STEP_S) - 1
    policy = BreakEven(world)
    policy.observe(seen(1.0, 0.3 * QPS))
    policy.resume(fleet(resumed))
    on = with_boots(world, policy, [(2 * LONG, load * QPS)], STEP_S).on
    assert on[:steps_on] == [resumed] * steps_on
    assert on[-1] == finally_on


def test_decisions_have_reasons():
    world, step_s = scenario(26.0), 30.0
    policy = BreakEven(world)
    reasons = {policy.observe(seen(*step)).reason.partition(": ")[2] for step in steps(bursts(5), step_s)}
    assert "windows learnt from bursts so far" in reasons
    assert "on after 1 starts' price on lambda, off after 1 idle" in reasons
    assert policy.observe(seen(1.0, 12.34)).reason.startswith("12.3 queries/s: ")


BOOT_S = 60.0
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


@settings(derandomize=True, max_examples=6)
@given(load=rows(LEVELS * QPS, most_s=400), boot_s=st.just(BOOT_S))
@example([(50, QPS), (85, 0.0), (5, QPS / 2), (260, 0.0), (5, QPS / 2)], BOOT_S)  # load again, soon after a stop
@example([(50, QPS), (50, 0.0)], 0.0)
def test_each_rule_costs_the_same_as_alone(load, boot_s):
    world = scenario(13.0, boot_s=boot_s)
    rules, work_function, on = ExpertRules(world), WorkFunction(boot_s), []
    rules.grow(LEVELS)
    work_function.grow(LEVELS)
    for seconds, rate in steps(load, 5.0):
        units = lambda_units(world, rate, LEVELS)
        work_function.advance((1.0 - units) * seconds)
        rules.pass_time(seconds, units, 1.0, np.array(work_function.on))
        on.append(rules.on.sum(axis=0).tolist())
    for number, sizes in enumerate(SIZES):
        rule = SkiRental(world) if number == PLAIN else Rule(world, *sizes)
        alone = with_boots(world, rule, load, 5.0)
        assert [each[number] for each in on] == alone.on
        assert rules.cost[:, number].sum() == pytest.approx(alone.usd)


def test_expert_rules_fade_grow_and_resume():
    world = scenario(13.0, boot_s=BOOT_S)
    rules = ExpertRules(world)
    rules.grow(1)
    paid = [rules.pass_time(5.0, np.array([0.5]), 0.9, OFF)[0, PLAIN] for _ in range(3)]
    assert paid == [2.5] * 3
    assert rules.cost[0, PLAIN] == pytest.approx(2.5 * (1 + 0.9 + 0.81))
    rules = ExpertRules(world)
    rules.grow(1)
    rules.pass_time(100.0, np.array([13.0]), 1.0, ~OFF)
    before = rules.cost.copy()
    rules.grow(3)
    assert rules.cost[0].tolist() == before[0].tolist()
    assert not rules.cost[1:].any()
    assert rules.on[0].all()
    assert not rules.on[1:].any()
    rules = ExpertRules(world)
    rules.grow(2)
    rules.resume(1)
    assert rules.on.all(axis=1).tolist() == [True, False]
    paid = rules.pass_time(5.0, np.array([13.0, 0.0]), 1.0, np.array([True, False]))
    assert paid[0].tolist() == [5.0] * len(SIZES)  # no boot


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


SHORTEST_S = 1e-6
FINE_S = 0.25
PRICE_RATIOS = st.sampled_from([0.7, 1.0, 1.5, 2.0, 3.0, 13.0, 26.0])


class Account:
    """A budget, and what was paid for what it chose, as its docstring and docs count it, kept independently.

    A start costs a boot at once, and what is left of it comes back at a stop; while an instance boots, Lambda counts up
    to the instance's price. The load is known to everybody.
    """

    def __init__(self, price_ratio, levels=LEVELS, boot_s=60.0):
        self.world = scenario(price_ratio, boot_s=boot_s)
        self.budget = RobustnessBudget(self.world)
        self.budget.grow(levels)
        self.paid = 0.0
        self.load = []
        self.on = np.zeros(levels, np.bool_)
        self.boot = np.zeros(levels)

    def step(self, seconds, rate, prediction, until_next=None):
        """Let time pass, then choose; `prediction` is given what the algorithm has on."""
        self.load.append((seconds, rate))
        units = lambda_units(self.world, rate, len(self.on))
        for level, on in enumerate(self.on):
            booting = min(self.boot[level], seconds) if on else 0.0
            self.boot[level] -= booting
            self.paid += seconds - booting + min(units[level], 1.0) * booting if on else units[level] * seconds
        self.budget.pass_time(seconds, units)
        chosen = self.budget.choose(prediction(self.budget.plain.copy()), until_next or seconds)
        started, stopped = chosen & ~self.on, self.on & ~chosen
        self.paid += self.world.instance.boot_s * np.count_nonzero(started) - self.boot[stopped].sum()
        self.boot[started], self.boot[stopped] = self.world.instance.boot_s, 0.0
        self.on = chosen.copy()
        return chosen

    def crossing_s(self, rate):
        """Return in how many seconds at that load a level of the algorithm arrives at an end of its walk next."""
        pace = 1.0 - lambda_units(self.world, rate, len(self.on))
        way = np.where(pace > 0, self.world.instance.boot_s - self.budget.gap, self.budget.gap)
        times = (way / np.maximum(np.abs(pace), 1e-12))[way > 0]
        return max(float(times.min(initial=np.inf)), SHORTEST_S)

    def check(self):
        """The budget, which may not be overdrawn but for the shortest step, is what the guarantee leaves."""
        guaranteed = competitive_ratio(self.world.price_ratio) * best(self.world, self.load)
        assert self.budget.units == pytest.approx(guaranteed - self.paid, rel=1e-9, abs=1e-6)


ROWS = rows(LEVELS * QPS, most_rows=6, most_s=150)
PREDICTIONS = st.lists(st.lists(st.booleans(), min_size=LEVELS, max_size=LEVELS), min_size=1, max_size=12)


@settings(derandomize=True, max_examples=25)
@given(load=ROWS, predictions=PREDICTIONS, price_ratio=PRICE_RATIOS, step_s=st.sampled_from([2.0, 5.0]))
def test_the_guarantee_holds_at_every_moment_for_any_prediction(load, predictions, price_ratio, step_s):
    """Steps end where the algorithm acts."""
    account, predicted = Account(price_ratio), cycle(map(np.array, predictions))
    for row_s, rate in load:
        left = float(row_s)
        while left > 0:
            seconds = min(left, step_s, account.crossing_s(rate))
            account.step(seconds, rate, lambda _: next(predicted), step_s)
            left -= seconds
            assert account.budget.units >= -1e-3
    account.check()


@pytest.mark.parametrize("price_ratio", [1.5, 3.0, 26.0])
@pytest.mark.parametrize("prediction", ["off", "on", "idle", "other", "flip"])
@pytest.mark.parametrize("fill_s", [0.0, 11.3, 30.7])
def test_an_adaptive_adversary_cannot_exceed_the_guarantee(price_ratio, prediction, fill_s):
    """Full load for so long, which fills the budget; then where it is off, and none where it is on."""
    account = Account(price_ratio, levels=1, boot_s=20.0)
    predictions = {
        "off": lambda _, plain: plain & False,
        "on": lambda _, plain: plain | True,
        "idle": lambda _, plain: plain | True,
        "other": lambda _, plain: ~plain,
        "flip": lambda account, _: ~account.on,
    }
    while not account.on.all():
        account.step(account.crossing_s(QPS), QPS, lambda plain: plain)
    account.step(fill_s, QPS, lambda plain: plain, FINE_S)
    for _ in range(200):
        rate = 0.0 if prediction == "idle" or account.on[0] else QPS
        chosen = partial(predictions[prediction], account)
        account.step(min(FINE_S, account.crossing_s(rate)), rate, chosen, FINE_S)
        assert account.budget.units >= -1e-3
    account.check()


@settings(derandomize=True, max_examples=20)
@given(load=ROWS, price_ratio=PRICE_RATIOS)
def test_predictions_that_agree_with_the_algorithm_are_always_followed(load, price_ratio):
    account = Account(price_ratio)
    rule = SkiRental(account.world)
    for seconds, rate in steps(load, 5.0):
        chosen = account.step(seconds, rate, lambda plain: plain)
        assert chosen.tolist() == account.budget.plain.tolist()
        assert np.count_nonzero(chosen) == rule.observe(seen(seconds, rate)).total


def test_budget_follows_predictions_while_it_lasts():
    account = Account(13.0, levels=1)
    for _ in range(100):
        account.step(5.0, QPS, lambda plain: plain)
    assert account.on.all()
    on = [account.step(5.0, 0.0, lambda plain: ~plain | True)[0] for _ in range(600)]
    followed = on.index(False)
    assert followed > 60 / 5 + 20  # long after the algorithm would have stopped
    assert not any(on[followed:])  # and then the budget is empty for good: nothing comes in
    assert account.budget.units >= 0
    account = Account(13.0, levels=2)
    assert not account.step(5.0, 0.0, lambda plain: ~plain).any()


def test_new_levels_do_not_change_existing_ones():
    few, many = Account(13.0, levels=1), Account(13.0, levels=5)
    for number in range(300):
        rate = 0.9 * QPS if number % 80 < 40 else 0.0
        if number == 100:
            few.budget.grow(5)
            few.on, few.boot = np.append(few.on, [False] * 4), np.append(few.boot, [0.0] * 4)
        steps = [account.step(5.0, rate, lambda plain: plain) for account in (few, many)]
        assert steps[0][0] == steps[1][0]
    assert few.budget.units == pytest.approx(many.budget.units)
    assert few.paid == pytest.approx(many.paid)


def test_instances_that_already_run_count_as_started_by_the_algorithm():
    budget = RobustnessBudget(scenario(13.0, boot_s=60.0))
    budget.resume(2)
    budget.grow(3)
    assert budget.plain.tolist() == [True, True, False]
    assert budget.units == 2 * 60.0  # what they may idle for
    assert budget.choose(budget.plain.copy(), 5.0).tolist() == [True, True, False]
    assert budget.units == 2 * 60.0  # nothing was started
    budget.pass_time(60.0, np.zeros(3))
    assert not budget.plain.any()
    assert not budget.choose(np.array([True, True, False]), 5.0).any()  # what it held, idling has cost


@pytest.mark.parametrize(("price_ratio", "rho"), [(0.1, 1.0), (1.0, 1.0), (2.0, 2.0), (26.0, 3 - 1 / 13)])
def test_the_bound_of_the_robustness_budget(price_ratio, rho):
    assert competitive_ratio(price_ratio) == pytest.approx(rho)


def test_an_instance_is_on_exactly_while_cheaper_without_a_boot():
    account = Account(13.0, levels=1, boot_s=0.0)
    on = [account.step(5.0, rate, lambda plain: plain)[0] for rate in (QPS, QPS, 0.0, 0.2, QPS / 2, 0.0, 0.0)]
    assert on == [True, True, False, False, True, False, False]
