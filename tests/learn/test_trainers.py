"""Trainings in processes of their own: repeatable, kept, only of the past, and their failures are told."""

import dataclasses

import numpy as np
import pytest

from serfer.control.policies.guesses.value_guess import ValueGuess
from serfer.control.policies.ski_rental import SkiRental
from serfer.control.policy import Observation, on_demand
from serfer.control.values.features import LevelFacts
from serfer.control.values.load_history import DAY
from serfer.control.values.load_record import LoadRecord
from serfer.control.values.value_model import ValueModel
from serfer.core.errors import UnavailableError
from serfer.learn import trainers
from serfer.learn.trainers import BackgroundTrainer, KeptTrainer
from tests.control.worlds import QPS, scenario, with_boots

pytest.importorskip("lightgbm")
FACTS = LevelFacts(QPS, 26.0, 60.0)
BURSTS = [(6600, 0.0), (600, QPS)]  # every two hours


def record(days=0.6, rate=QPS):
    slots = np.arange(int(days * DAY))
    return LoadRecord(np.where(slots % 720 >= 660, rate, 0.0).astype(np.float32), days * 86_400.0, FACTS)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return KeptTrainer(tmp_path_factory.mktemp("values") / "models")


@pytest.fixture(scope="module")
def learnt(kept):
    return kept.begin(record()).model()


def test_a_model_is_of_the_load_that_it_was_learnt_from(learnt):
    assert ValueModel.read(learnt, FACTS).slots == int(0.6 * DAY)


def test_a_model_is_found_again_by_what_it_was_learnt_from(kept, learnt, monkeypatch):
    monkeypatch.setattr(trainers, "_COMMAND", ("false",))
    assert kept.begin(record()).model() == learnt
    with pytest.raises(UnavailableError, match="values could not be learnt: the process ended without a word"):
        kept.begin(record(rate=0.9 * QPS))


def test_models_that_cannot_be_kept_are_used_all_the_same(monkeypatch, tmp_path):
    monkeypatch.setattr(trainers, "_COMMAND", ("echo", "model"))
    (tmp_path / "file").touch()
    assert KeptTrainer(tmp_path / "file").begin(record()).model() == b"model\n"


def test_a_training_in_the_background_gives_the_same_model_once_it_is_done(learnt):
    told = []
    trainer = BackgroundTrainer(told.append)
    training = trainer.begin(record())
    training._process.wait()
    assert training.model() == learnt
    assert training.model() is None  # it has been handed over
    assert told == []


def test_a_training_that_fails_in_the_background_is_told(monkeypatch):
    told = []
    training = BackgroundTrainer(told.append).begin(dataclasses.replace(record(), rates=np.array([np.nan], np.float32)))
    training._process.wait()
    assert training.model() is None
    assert told == ["values could not be learnt: the record's rates should be finite, and not negative"]
    monkeypatch.setattr(trainers, "_COMMAND", ("/no/such/program",))
    assert BackgroundTrainer(told.append).begin(record()).model() is None
    assert "No such file" in told[1]


def test_a_full_disk_is_told_and_leaves_no_model(monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trainers, "TemporaryFile", full)
    told = []
    training = BackgroundTrainer(told.append).begin(record())
    assert training.model() is None
    training.close()
    assert told == ["values cannot be learnt: [Errno 28] No space left on device"]


def test_a_training_ends_with_its_trainer_and_when_the_next_one_begins(monkeypatch):
    monkeypatch.setattr(trainers, "_COMMAND", ("sh", "-c", "exec sleep 60"))  # further arguments are for the shell
    trainer = BackgroundTrainer(pytest.fail)
    first = trainer.begin(record())
    process = first._process
    second = trainer.begin(record())
    assert process.returncode is not None
    assert first.model() is second.model() is None
    trainer.close()
    trainer.close()


@pytest.mark.slow
def test_regular_bursts_are_anticipated_by_what_was_learnt(kept):
    world = scenario(26.0, boot_s=60.0)
    guess, plain = ValueGuess(world), SkiRental(world)
    guess.learn_by(kept)
    now_s = 0.0

    class Values:
        """The guess alone, on a clock, as a policy."""

        def observe(self, seen):
            nonlocal now_s
            now_s += seen.elapsed_s
            guess.observe(Observation(now_s, seen.elapsed_s, seen.rate))
            return on_demand(world.instance, int(np.count_nonzero(guess.on)), "values")

    guess.grow(1)
    with_boots(world, Values(), BURSTS * 26, 10.0)
    last = with_boots(world, Values(), BURSTS * 6, 10.0)
    assert last.usd <= 0.8 * with_boots(world, plain, BURSTS * 6, 10.0).usd
