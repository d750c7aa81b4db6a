"""The guess by value: it learns from the past alone, decides by what is learnt, and survives a restart."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies.break_even import BreakEven
from serfer.control.policies.guesses.value_guess import ValueGuess
from serfer.control.policy import Observation
from serfer.control.snapshots import SavedFields
from serfer.control.values.features import NAMES
from serfer.control.values.load_history import DAY
from tests.control.values.worlds import Told
from tests.control.worlds import QPS, scenario

WORLD = scenario(13.0, boot_s=30.0)
READY = DAY + DAY // 48


class Walk:
    """A guess that goes through loads of (slots, rate), on a clock."""

    def __init__(self, trainer, levels=2):
        self.guess, self.now_s = ValueGuess(WORLD), 0.0
        self.guess.grow(levels)
        if trainer:
            self.guess.learn_by(trainer)

    def over(self, *load):
        """Return the levels that are on after each slot."""
        on = []
        for slots, rate in load:
            for _ in range(slots):
                self.now_s += 10.0
                self.guess.observe(Observation(self.now_s, 10.0, rate))
                on.append(self.guess.on.tolist())
        return on

    def jump(self, slots, rate=0.0):
        """Go through many slots of one rate at once."""
        self.now_s += 10.0 * slots
        self.guess.observe(Observation(self.now_s, 10.0 * slots, rate))


def ready(trainer):
    walk = Walk(trainer)
    walk.jump(DAY)
    walk.jump(DAY // 48)
    return walk


def test_a_model_is_learnt_from_a_day_and_decides_half_an_hour_later():
    trainer = Told(start_above=-10.0)
    walk = Walk(trainer)
    walk.jump(DAY - 1)
    assert not trainer.records
    assert walk.over((DAY // 48, 0.0)) == [[False, False]] * (DAY // 48)
    assert np.isnan(walk.guess.units(10.0, np.zeros(2))).all()
    assert [len(record.rates) for record in trainer.records] == [DAY]
    assert trainer.records[0].end_s == DAY * 10.0
    assert walk.over((1, 0.0)) == [[True, True]]


def test_trainings_come_less_often_and_see_no_more_than_the_past():
    trainer = Told()
    walk = Walk(trainer)
    for _ in range(20 * 24):
        walk.jump(DAY // 24)
    days = [record.end_s / 86_400 for record in trainer.records]
    assert days[:7] == [1, 2, 3, 4, 5, 6, pytest.approx(7.2, abs=0.05)]
    assert max(np.diff(days)) <= 7.1
    assert all(len(record.rates) <= record.end_s / 10 for record in trainer.records)


def test_levels_start_boot_are_kept_and_stop_by_what_that_saves():
    walk = ready(Told(start_above=0.5, keep_above=0.1))
    on = walk.over((1, 0.4 * QPS), (1, 0.7 * QPS), (5, 0.2 * QPS), (1, 0.05 * QPS))
    assert [levels[0] for levels in on] == [False, True, True, True, True, True, True, False]
    assert not any(levels[1] for levels in on)


def test_an_instance_that_boots_is_not_stopped_and_costs_lambda_too():
    walk = ready(Told(start_above=0.5, keep_above=0.1))
    walk.over((1, 0.7 * QPS))
    units = np.array([2.0, 0.0])
    paid = [walk.guess.units(10.0, units).tolist()]
    for _ in range(4):
        walk.over((1, 0.0))
        paid.append(walk.guess.units(10.0, units).tolist())
    assert [first for first, _ in paid] == [30.0, 30.0, 30.0, 20.0, 20.0]
    assert [second for _, second in paid] == [0.0] * 5


def test_instances_fill_levels_from_below_whichever_levels_are_decided_to_be_on():
    walk = ready(Told(start_above=10.0, keep_above=-10.0))
    state = walk.guess.snapshot() | {"state": [0, 1]}
    walk.guess.restore(SavedFields.of(state, "values"), 2)
    assert walk.guess.on.tolist() == [True, False]
    assert walk.guess.units(10.0, np.array([3.0, 2.0])).tolist() == [10.0, 20.0]


def test_without_a_trainer_nothing_is_kept():
    walk = Walk(None)
    walk.over((50, QPS))
    assert walk.guess.snapshot()["history"]["rates"] == ""


class Late(Told):
    """A trainer that is not done for so many questions, and then fails or has a model."""

    def __init__(self, asked, data=None):
        super().__init__()
        self.asked, self.data = asked, data

    def model(self):
        self.asked -= 1
        return None if self.asked >= 0 else self.data or self._data


def test_a_model_that_is_late_decides_when_it_is_there():
    walk = ready(Late(5))
    assert walk.guess.reason == "values, not learnt yet"
    walk.over((5, 0.0))
    assert walk.guess.reason == "values learnt from 1.0 days"


def test_a_model_that_is_damaged_or_never_comes_is_given_up():
    damaged, never = Late(0, b"{}"), Late(10**9)
    for trainer in (damaged, never):
        walk = ready(trainer)
        for _ in range(3):
            walk.jump(DAY // 2)
        assert walk.guess.reason == "values, not learnt yet"
        assert len(trainer.records) == 2


@settings(derandomize=True, max_examples=6, deadline=None)
@given(
    before=st.integers(DAY - 20, READY + 20),
    load=st.lists(st.tuples(st.integers(1, 8), st.floats(0.0, 2.0 * QPS)), min_size=1, max_size=8),
)
def test_a_restored_guess_decides_as_if_it_had_not_stopped(before, load):
    walk = Walk(Told())
    walk.jump(DAY - 30)
    walk.over((before - (DAY - 30), 0.6 * QPS))
    other = Walk(None)
    other.now_s = walk.now_s
    other.guess = ValueGuess(WORLD)
    saved = json.loads(json.dumps(walk.guess.snapshot(), allow_nan=False))
    other.guess.grow(2)
    other.guess.restore(SavedFields.of(saved, "values"), 2)
    other.guess.learn_by(Told())
    assert other.over(*load, (200, 0.6 * QPS)) == walk.over(*load, (200, 0.6 * QPS))
    assert other.guess.snapshot() == walk.guess.snapshot()


@settings(derandomize=True, max_examples=5, deadline=None)
@given(later=st.tuples(st.floats(0.0, 3 * QPS), st.floats(0.0, 3 * QPS)), seen=st.integers(0, 100))
def test_decisions_do_not_depend_on_what_comes_later(later, seen):
    walks = [ready(Told()), ready(Told())]
    on = [walk.over((seen, 0.6 * QPS), (40, rate)) for walk, rate in zip(walks, later, strict=True)]
    assert on[0][:seen] == on[1][:seen]


@pytest.mark.slow
def test_the_default_policy_follows_values_once_they_are_cheaper():
    """Bursts of random distances: no window foresees them, but the model is told of them by the minute before."""
    world = scenario(26.0, boot_s=60.0)
    told, plain = BreakEven(world), BreakEven(world)
    told.learn_by(Told(start_above=0.01, keep_above=0.01))
    draw, now_s, reasons = np.random.default_rng(1), 0.0, []
    rows = [row for _ in range(40) for row in ((int(draw.integers(120, 480)), 0.0), (6, 0.02 * QPS), (30, QPS))]
    for policy in (told, plain):
        policy.observe(Observation(0.0, 2 * 86_400.0, 0.0))
    for slots, rate in rows:
        for _ in range(slots):
            now_s += 10.0
            seen = Observation(now_s, 10.0, rate)
            reasons.append(told.observe(seen).reason)
            plain.observe(seen)
    assert all("values learnt from" in reason for reason in reasons[-200:])
    assert not any("values" in plain.observe(Observation(now_s, 10.0, QPS)).reason for _ in range(3))


def test_names_are_one_a_column():
    assert len(set(NAMES)) == len(NAMES)
