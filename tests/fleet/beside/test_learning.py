"""Policies of a pool learn in the background, at once while they go through a history, and only with the extra."""

import pytest

from serfer.control.policies.break_even import BreakEven
from serfer.control.policies.ski_rental import SkiRental
from serfer.fleet.beside import learning
from serfer.fleet.beside.learning import Learning
from serfer.learn.trainers import BackgroundTrainer, KeptTrainer
from tests.control.worlds import scenario


def trainer(policy):
    return policy._values._trainer


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(learning, "can_learn", lambda: True)


@pytest.mark.usefixtures("installed")
def test_each_policy_that_can_learn_has_a_trainer_of_its_own(tmp_path):
    policies, pool = [BreakEven(scenario()), BreakEven(scenario())], Learning(tmp_path)
    for policy in [*policies, SkiRental(scenario())]:
        pool.join(policy)
    first, second = map(trainer, policies)
    assert isinstance(first, BackgroundTrainer)
    assert isinstance(second, BackgroundTrainer)
    assert first is not second
    pool.close()


@pytest.mark.usefixtures("installed")
def test_a_history_is_learnt_from_at_once(tmp_path):
    policy, pool = BreakEven(scenario()), Learning(tmp_path)
    with pool.at_once(policy):
        assert trainer(policy) == KeptTrainer(tmp_path)
    assert isinstance(trainer(policy), BackgroundTrainer)


def test_without_the_extra_nothing_is_learnt(monkeypatch, tmp_path):
    monkeypatch.setattr(learning, "can_learn", lambda: False)
    policy, pool = BreakEven(scenario()), Learning(tmp_path)
    pool.join(policy)
    with pool.at_once(policy):
        assert trainer(policy) is None
    assert trainer(policy) is None
    pool.close()


@pytest.mark.usefixtures("installed")
def test_closing_ends_trainings_that_run(monkeypatch, tmp_path):
    ended = []
    monkeypatch.setattr(BackgroundTrainer, "close", lambda self: ended.append(self))  # noqa: PLW0108 - a method
    policy, pool = BreakEven(scenario()), Learning(tmp_path)
    pool.join(policy)
    pool.close()
    assert ended == [trainer(policy)]
