"""For any predictions the choices cost no more than the guarantee; good predictions are followed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies.break_even import RobustnessBudget, competitive_ratio
from serfer.control.policies.ski_rental import SkiRental, lambda_units
from serfer_bench.study.policies.clairvoyant import optimum_usd
from tests.control.worlds import QPS, rows, scenario, seen, steps

LEVELS = 3
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
        self.crossings = 0  # how often the algorithm started or stopped a level
        self.load = []
        self.on = np.zeros(levels, np.bool_)
        self.boot = np.zeros(levels)

    def step(self, seconds, rate, prediction, until_next=None):
        """Let time pass, then choose; `prediction` is given what the algorithm has on."""
        self.load.append((seconds, rate))
        units, plain = lambda_units(self.world, rate, len(self.on)), self.budget.plain.copy()
        for level, on in enumerate(self.on):
            booting = min(self.boot[level], seconds) if on else 0.0
            self.boot[level] -= booting
            second = seconds - booting + min(units[level], 1.0) * booting if on else units[level] * seconds
            self.paid += second
        self.budget.pass_time(seconds, units)
        self.crossings += int(np.count_nonzero(plain != self.budget.plain))
        chosen = self.budget.choose(prediction(self.budget.plain.copy()), until_next or seconds)
        started, stopped = chosen & ~self.on, self.on & ~chosen
        self.paid += self.world.instance.boot_s * np.count_nonzero(started) - self.boot[stopped].sum()
        self.boot[started], self.boot[stopped] = self.world.instance.boot_s, 0.0
        self.on = chosen.copy()
        return chosen

    def best(self):
        return optimum_usd(self.world, *zip(*self.load, strict=True))

    def crossing_s(self, rate):
        """Return in how many seconds at that load a level of the algorithm arrives at an end of its walk next."""
        pace = 1.0 - lambda_units(self.world, rate, len(self.on))
        way = np.where(pace > 0, self.world.instance.boot_s - self.budget.gap, self.budget.gap)
        times = (way / np.maximum(np.abs(pace), 1e-12))[way > 0]
        return max(float(times.min(initial=np.inf)), SHORTEST_S)

    def spare(self):
        """Return by how much less was paid than is guaranteed, but for what the shortest steps make of it.

        A step lets the algorithm act too late: a late start costs up to c a second where the rule would have paid 1, a
        late stop 1 where it would have paid less.
        """
        late = self.crossings * (self.world.price_ratio + 1.0) * SHORTEST_S
        return competitive_ratio(self.world.price_ratio) * self.best() + late - self.paid


def obeyed(account, load, step_s, predictions):
    """Predict something at every step, and hold what is chosen to the guarantee; steps end where the algorithm acts."""
    number = 0
    for row_s, rate in load:
        left = float(row_s)
        while left > 0:
            seconds = min(left, step_s, account.crossing_s(rate))
            account.step(seconds, rate, lambda plain, number=number: predictions(number, plain), step_s)
            left -= seconds
            number += 1
            assert account.budget.units >= -1e-3  # it is what is left of the guarantee, as another test shows
    assert account.spare() >= -1e-6


def fixed(prediction):
    return lambda number, _: np.array(prediction[number % len(prediction)])


ROWS = rows(LEVELS * QPS, most_rows=6, most_s=150)
PREDICTIONS = st.lists(st.lists(st.booleans(), min_size=LEVELS, max_size=LEVELS), min_size=1, max_size=12)


@settings(derandomize=True, max_examples=25)
@given(load=ROWS, prediction=PREDICTIONS, price_ratio=PRICE_RATIOS, step_s=st.sampled_from([2.0, 5.0]))
def test_the_guarantee_holds_at_every_moment_for_any_prediction(load, prediction, price_ratio, step_s):
    obeyed(Account(price_ratio), load, step_s, fixed(prediction))


@settings(derandomize=True, max_examples=20)
@given(load=ROWS, price_ratio=PRICE_RATIOS, which=st.integers(0, 3))
def test_predictions_that_are_always_wrong_cost_no_more_than_the_guarantee(load, price_ratio, which):
    predictions = [
        lambda _, plain: ~plain,
        lambda _, __: np.ones(LEVELS, np.bool_),
        lambda _, __: np.zeros(LEVELS, np.bool_),
        lambda number, plain: plain ^ (np.arange(LEVELS) == number % LEVELS),
    ]
    obeyed(Account(price_ratio), load, 5.0, predictions[which])


def attacked(account, fill_s, moves, prediction, rate):
    """Fill the budget by that many seconds of full load, then let an adversary choose predictions and load."""
    full = QPS * len(account.on)
    while not account.on.all():
        account.step(account.crossing_s(full), full, lambda plain: plain)
    account.step(fill_s, full, lambda plain: plain, FINE_S)
    for _ in range(moves):
        now = rate(account)
        account.step(min(FINE_S, account.crossing_s(now)), now, lambda plain: prediction(account, plain), FINE_S)
        assert account.budget.units >= -1e-3  # it is what is left of the guarantee, as other tests show
    assert account.spare() >= -1e-3


@pytest.mark.parametrize("price_ratio", [1.5, 3.0, 26.0])
@pytest.mark.parametrize("prediction", ["off", "on", "other", "flip"])
@pytest.mark.parametrize("fill_s", [0.0, 11.3, 30.7])
def test_an_adaptive_adversary_cannot_exceed_the_guarantee(price_ratio, prediction, fill_s):
    """Full load where it is off, none where it is on: first what predictions lead to, then what the algorithm does."""
    account = Account(price_ratio, levels=1, boot_s=20.0)
    predictions = {
        "off": lambda _, plain: plain & False,
        "on": lambda _, plain: plain | True,
        "other": lambda _, plain: ~plain,
        "flip": lambda account, _: ~account.on,
    }
    attacked(account, fill_s, 200, predictions[prediction], lambda account: 0.0 if account.on[0] else QPS)


@pytest.mark.parametrize("fill_s", [0.0, 4.0, 7.0, 17.0])
def test_idling_on_predictions_leaves_the_budget_enough_for_a_start(fill_s):
    account = Account(26.0, levels=1, boot_s=20.0)
    attacked(account, fill_s, 200, lambda _, plain: plain | True, lambda _: 0.0)


def test_budget_reserved_for_one_level_is_not_spent_on_others():
    account = Account(13.0, levels=9, boot_s=20.0)
    attacked(account, 11.0, 0, None, None)
    while account.on.any():
        account.step(FINE_S, 0.0, lambda plain: plain)
    while account.budget.gap[0] > 10.0:  # the lowest goes half way to a start, and stays there
        account.step(FINE_S, QPS, lambda plain: plain)
    others = np.arange(9) > 0
    followed = []
    while not followed or account.on.any():
        seconds = 0.5 if account.boot.any() else 0.02
        followed.append(account.step(seconds, QPS / 13.0, lambda plain: plain | others, 0.02).any())
    assert len(followed) > 50  # they idle on a prediction, until what is left is needed
    while not account.on.any():
        account.step(account.crossing_s(QPS), QPS, lambda plain: plain)
    while account.on.any():
        account.step(FINE_S, 0.0, lambda plain: plain)
        assert account.budget.units >= -1e-3
    assert account.spare() >= -1e-3


@settings(derandomize=True, max_examples=20)
@given(load=ROWS, price_ratio=PRICE_RATIOS)
def test_predictions_that_agree_with_the_algorithm_are_always_followed(load, price_ratio):
    account = Account(price_ratio)
    rule = SkiRental(account.world)
    for seconds, rate in steps(load, 5.0):
        chosen = account.step(seconds, rate, lambda plain: plain)
        assert chosen.tolist() == account.budget.plain.tolist()
        assert np.count_nonzero(chosen) == rule.observe(seen(seconds, rate)).total


@settings(derandomize=True, max_examples=20)
@given(load=ROWS, price_ratio=PRICE_RATIOS, prediction=PREDICTIONS)
def test_the_budget_is_rho_times_the_optimum_less_payments(load, price_ratio, prediction):
    account = Account(price_ratio)
    for number, (seconds, rate) in enumerate(steps(load, 5.0)):
        account.step(seconds, rate, lambda plain, number=number: fixed(prediction)(number, plain))
    assert account.budget.units == pytest.approx(account.budget.rho * account.best() - account.paid, rel=1e-9, abs=1e-6)


def test_a_full_budget_lets_a_harmless_prediction_be_followed_and_an_empty_one_does_not():
    account = Account(13.0, levels=1)
    for _ in range(100):
        account.step(5.0, QPS, lambda plain: plain)
    assert account.on.all()
    on = [account.step(5.0, 0.0, lambda plain: ~plain | True)[0] for _ in range(600)]
    followed = on.index(False)
    assert followed > 60 / 5 + 20  # long after the algorithm would have stopped
    assert not any(on[followed:])  # and then the budget is empty for good: nothing comes in
    assert account.budget.units >= 0


def test_a_new_budget_allows_no_prediction():
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


def test_the_rest_of_a_boot_is_refunded_when_it_is_stopped():
    account = Account(13.0, levels=1)
    for _ in range(100):
        account.step(5.0, QPS, lambda plain: plain)
    budget, off, on = account.budget, np.array([False]), np.array([True])
    assert not budget.choose(off, 5.0).any()
    before = budget.units
    assert budget.choose(on, 5.0).all()
    assert budget.units == before - 60.0
    assert not budget.choose(off, 5.0).any()
    assert budget.units == before


@pytest.mark.parametrize(("price_ratio", "rho"), [(0.1, 1.0), (1.0, 1.0), (2.0, 2.0), (26.0, 3 - 1 / 13)])
def test_the_bound_of_the_robustness_budget(price_ratio, rho):
    assert competitive_ratio(price_ratio) == pytest.approx(rho)


def test_an_instance_is_on_exactly_while_cheaper_without_a_boot():
    account = Account(13.0, levels=1, boot_s=0.0)
    on = [account.step(5.0, rate, lambda plain: plain)[0] for rate in (QPS, QPS, 0.0, 0.2, QPS / 2, 0.0, 0.0)]
    assert on == [True, True, False, False, True, False, False]
