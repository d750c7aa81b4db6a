"""Whatever is wished for, what is chosen costs no more than the plain rule's guarantee; good guesses get through."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.optimum import optimum_usd
from serfer.control.policies.levels import lambda_units
from serfer.control.policies.purse import Purse, bound
from serfer.control.policies.ski_rental import SkiRental
from tests.control.worlds import QPS, rows, scenario, steps

LEVELS = 3
SHORTEST_S = 1e-6
FINE_S = 0.25
ADVANTAGES = st.sampled_from([0.7, 1.0, 1.5, 2.0, 3.0, 13.0, 26.0])


class Books:
    """A purse, and what was paid for what it chose, as its docstring and docs count it, kept independently.

    A start costs a boot at once, and what is left of it comes back at a stop; while an instance boots, Lambda counts up
    to the instance's price. The load is known to everybody.
    """

    def __init__(self, advantage, levels=LEVELS, boot_s=60.0):
        self.world = scenario(advantage, boot_s=boot_s)
        self.purse = Purse(self.world)
        self.purse.grow(levels)
        self.paid = 0.0
        self.crossings = 0  # how often the plain rule started or stopped a level
        self.load = []
        self.on = np.zeros(levels, np.bool_)
        self.boot = np.zeros(levels)

    def step(self, seconds, rate, wish, until_next=None):
        """Let time pass, then choose; `wish` is given what the plain rule has on."""
        self.load.append((seconds, rate))
        units, plain = lambda_units(self.world, rate, len(self.on)), self.purse.plain.copy()
        for level, on in enumerate(self.on):
            booting = min(self.boot[level], seconds) if on else 0.0
            self.boot[level] -= booting
            second = seconds - booting + min(units[level], 1.0) * booting if on else units[level] * seconds
            self.paid += second
        self.purse.pass_time(seconds, units)
        self.crossings += int(np.count_nonzero(plain != self.purse.plain))
        chosen = self.purse.choose(wish(self.purse.plain.copy()), until_next or seconds)
        started, stopped = chosen & ~self.on, self.on & ~chosen
        self.paid += self.world.instance.boot_s * np.count_nonzero(started) - self.boot[stopped].sum()
        self.boot[started], self.boot[stopped] = self.world.instance.boot_s, 0.0
        self.on = chosen.copy()
        return chosen

    def best(self):
        return optimum_usd(self.world, *zip(*self.load, strict=True))

    def crossing_s(self, rate):
        """Return in how many seconds at that load a level of the plain rule arrives at an end of its walk next."""
        pace = 1.0 - lambda_units(self.world, rate, len(self.on))
        way = np.where(pace > 0, self.world.instance.boot_s - self.purse.behind, self.purse.behind)
        times = (way / np.maximum(np.abs(pace), 1e-12))[way > 0]
        return max(float(times.min(initial=np.inf)), SHORTEST_S)

    def spare(self):
        """Return by how much less was paid than is guaranteed, but for what the shortest steps make of it.

        A step lets the plain rule act too late: a late start costs up to c a second where the rule would have paid 1, a
        late stop 1 where it would have paid less.
        """
        late = self.crossings * (self.world.advantage + 1.0) * SHORTEST_S
        return bound(self.world.advantage) * self.best() + late - self.paid


def obeyed(books, load, step_s, wishes):
    """Wish something at every step, and hold what is chosen to the guarantee; steps end where the plain rule acts."""
    number = 0
    for row_s, rate in load:
        left = float(row_s)
        while left > 0:
            seconds = min(left, step_s, books.crossing_s(rate))
            books.step(seconds, rate, lambda plain, number=number: wishes(number, plain), step_s)
            left -= seconds
            number += 1
            assert books.purse.units >= -1e-3  # it is what is left of the guarantee, as another test shows
    assert books.spare() >= -1e-6


def stubborn(wish):
    return lambda number, _: np.array(wish[number % len(wish)])


ROWS = rows(LEVELS * QPS, most_rows=6, most_s=150)
WISHES = st.lists(st.lists(st.booleans(), min_size=LEVELS, max_size=LEVELS), min_size=1, max_size=12)


@settings(derandomize=True, max_examples=25)
@given(load=ROWS, wish=WISHES, advantage=ADVANTAGES, step_s=st.sampled_from([2.0, 5.0]))
def test_whatever_is_wished_for_the_guarantee_holds_at_every_moment(load, wish, advantage, step_s):
    obeyed(Books(advantage), load, step_s, stubborn(wish))


@settings(derandomize=True, max_examples=20)
@given(load=ROWS, advantage=ADVANTAGES, which=st.integers(0, 3))
def test_a_wish_that_is_always_wrong_costs_no_more_than_the_guarantee(load, advantage, which):
    wishes = [
        lambda _, plain: ~plain,
        lambda _, __: np.ones(LEVELS, np.bool_),
        lambda _, __: np.zeros(LEVELS, np.bool_),
        lambda number, plain: plain ^ (np.arange(LEVELS) == number % LEVELS),
    ]
    obeyed(Books(advantage), load, 5.0, wishes[which])


def attacked(books, fill_s, moves, wish, rate):
    """Fill the purse by that many seconds of full load, then let an adversary choose wishes and load, move by move."""
    full = QPS * len(books.on)
    while not books.on.all():
        books.step(books.crossing_s(full), full, lambda plain: plain)
    books.step(fill_s, full, lambda plain: plain, FINE_S)
    for _ in range(moves):
        now = rate(books)
        books.step(min(FINE_S, books.crossing_s(now)), now, lambda plain: wish(books, plain), FINE_S)
        assert books.purse.units >= -1e-3  # it is what is left of the guarantee, as other tests show
    assert books.spare() >= -1e-3


@pytest.mark.parametrize("advantage", [1.5, 3.0, 26.0])
@pytest.mark.parametrize("wish", ["off", "on", "other", "flip"])
@pytest.mark.parametrize("fill_s", [0.0, 11.3, 30.7])
def test_no_adversary_who_knows_what_is_on_gets_more_out_of_it(advantage, wish, fill_s):
    """A full load where it is off, none where it is on: first what wishes lead to, then what the plain rule does."""
    books = Books(advantage, levels=1, boot_s=20.0)
    wishes = {
        "off": lambda _, plain: plain & False,
        "on": lambda _, plain: plain | True,
        "other": lambda _, plain: ~plain,
        "flip": lambda books, _: ~books.on,
    }
    attacked(books, fill_s, 200, wishes[wish], lambda books: 0.0 if books.on[0] else QPS)


@pytest.mark.parametrize("fill_s", [0.0, 4.0, 7.0, 17.0])
def test_what_idles_on_a_wish_leaves_the_purse_enough_for_a_start(fill_s):
    books = Books(26.0, levels=1, boot_s=20.0)
    attacked(books, fill_s, 200, lambda _, plain: plain | True, lambda _: 0.0)


def test_what_one_level_may_still_lose_is_not_spent_on_the_others():
    books = Books(13.0, levels=9, boot_s=20.0)
    attacked(books, 11.0, 0, None, None)
    while books.on.any():
        books.step(FINE_S, 0.0, lambda plain: plain)
    while books.purse.behind[0] > 10.0:  # the lowest goes half way to a start, and stays there
        books.step(FINE_S, QPS, lambda plain: plain)
    others = np.arange(9) > 0
    followed = []
    while not followed or books.on.any():
        seconds = 0.5 if books.boot.any() else 0.02
        followed.append(books.step(seconds, QPS / 13.0, lambda plain: plain | others, 0.02).any())
    assert len(followed) > 50  # they idle on a wish, until what is left is needed
    while not books.on.any():
        books.step(books.crossing_s(QPS), QPS, lambda plain: plain)
    while books.on.any():
        books.step(FINE_S, 0.0, lambda plain: plain)
        assert books.purse.units >= -1e-3
    assert books.spare() >= -1e-3


@settings(derandomize=True, max_examples=20)
@given(load=ROWS, advantage=ADVANTAGES)
def test_wishes_of_the_plain_rule_are_always_followed_and_it_is_the_plain_rule(load, advantage):
    books = Books(advantage)
    rule = SkiRental(books.world)
    for seconds, rate in steps(load, 5.0):
        chosen = books.step(seconds, rate, lambda plain: plain)
        assert chosen.tolist() == books.purse.plain.tolist()
        assert np.count_nonzero(chosen) == rule.observe(seconds, rate).instances


@settings(derandomize=True, max_examples=20)
@given(load=ROWS, advantage=ADVANTAGES, wish=WISHES)
def test_the_purse_is_rho_times_the_optimum_less_what_was_paid(load, advantage, wish):
    books = Books(advantage)
    for number, (seconds, rate) in enumerate(steps(load, 5.0)):
        books.step(seconds, rate, lambda plain, number=number: stubborn(wish)(number, plain))
    assert books.purse.units == pytest.approx(books.purse.rho * books.best() - books.paid, rel=1e-9, abs=1e-6)


def test_with_a_full_purse_a_harmless_wish_is_followed_and_with_an_empty_one_it_is_not():
    books = Books(13.0, levels=1)
    for _ in range(100):
        books.step(5.0, QPS, lambda plain: plain)
    assert books.on.all()
    on = [books.step(5.0, 0.0, lambda plain: ~plain | True)[0] for _ in range(600)]
    followed = on.index(False)
    assert followed > 60 / 5 + 20  # long after the plain rule would have stopped
    assert not any(on[followed:])  # and then the purse is empty for good: nothing comes in
    assert books.purse.units >= 0


def test_a_new_purse_lets_nothing_be_guessed():
    books = Books(13.0, levels=2)
    assert not books.step(5.0, 0.0, lambda plain: ~plain).any()


def test_levels_that_come_later_change_nothing_for_those_that_are_there():
    few, many = Books(13.0, levels=1), Books(13.0, levels=5)
    for number in range(300):
        rate = 0.9 * QPS if number % 80 < 40 else 0.0
        if number == 100:
            few.purse.grow(5)
            few.on, few.boot = np.append(few.on, [False] * 4), np.append(few.boot, [0.0] * 4)
        found = [books.step(5.0, rate, lambda plain: plain) for books in (few, many)]
        assert found[0][0] == found[1][0]
    assert few.purse.units == pytest.approx(many.purse.units)
    assert few.paid == pytest.approx(many.paid)


def test_instances_that_were_there_are_the_plain_rules_from_then_on():
    purse = Purse(scenario(13.0, boot_s=60.0))
    purse.resume(2)
    purse.grow(3)
    assert purse.plain.tolist() == [True, True, False]
    assert purse.units == 2 * 60.0  # what they may idle for
    assert purse.choose(purse.plain.copy(), 5.0).tolist() == [True, True, False]
    assert purse.units == 2 * 60.0  # nothing was started
    purse.pass_time(60.0, np.zeros(3))
    assert not purse.plain.any()
    assert not purse.choose(np.array([True, True, False]), 5.0).any()  # what it held, idling has cost


def test_what_is_left_of_a_boot_comes_back_when_it_is_stopped():
    books = Books(13.0, levels=1)
    for _ in range(100):
        books.step(5.0, QPS, lambda plain: plain)
    purse, off, on = books.purse, np.array([False]), np.array([True])
    assert not purse.choose(off, 5.0).any()
    before = purse.units
    assert purse.choose(on, 5.0).all()
    assert purse.units == before - 60.0
    assert not purse.choose(off, 5.0).any()
    assert purse.units == before


@pytest.mark.parametrize(("advantage", "rho"), [(0.1, 1.0), (1.0, 1.0), (2.0, 2.0), (26.0, 3 - 1 / 13)])
def test_the_bound(advantage, rho):
    assert bound(advantage) == pytest.approx(rho)


def test_without_a_boot_the_plain_rule_is_on_exactly_while_it_is_cheaper():
    books = Books(13.0, levels=1, boot_s=0.0)
    on = [books.step(5.0, rate, lambda plain: plain)[0] for rate in (QPS, QPS, 0.0, 0.2, QPS / 2, 0.0, 0.0)]
    assert on == [True, True, False, False, True, False, False]
