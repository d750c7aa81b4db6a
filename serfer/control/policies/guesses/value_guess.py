"""The guess by value: what it saves to keep an instance, or to start one, as learnt from the load's past.

    load ──> history, slot by slot ──> features ──> model: what keeping or starting saves ──> on where that is above 0
                    └──> after the first day, ever less often: a training elsewhere ──> half an hour later, its model

A model decides from a fixed time after the history that it was learnt from, so that the same load leads to the same
decisions, however long the training took, if it took no longer. Without a trainer and a model the guess knows nothing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.control.policies.capacity_levels import Bools, Floats
from serfer.control.policy import Observation
from serfer.control.scenario import Scenario
from serfer.control.snapshots import SavedFields, Snapshot
from serfer.control.values.features import LONGEST, Bursts, LevelFacts, level_features, load_features
from serfer.control.values.load_history import DAY, LoadHistory
from serfer.control.values.load_record import LoadRecord
from serfer.control.values.trainer import Trainer, Training
from serfer.control.values.value_model import ValueModel
from serfer.core.errors import InputError

_FIRST: Final = DAY  # slots after which a model is learnt
_LATER: Final = 0.2  # of what was learnt from, after which the next one is: a day at least, a week at most
_READY: Final = DAY // 48  # slots after which it decides
_PATIENCE: Final = DAY // 2  # slots after which one that is not ready is given up
_OFF, _SERVES = 0, 1  # an instance that boots for n more slots is n + 1


class ValueGuess:
    """Decides for all levels at the end of each slot of ten seconds."""

    def __init__(self, scenario: Scenario) -> None:
        kind = scenario.instance
        self._facts = LevelFacts(kind.qps, scenario.price_ratio, kind.boot_s)
        self._trainer: Trainer | None = None
        self._history = LoadHistory()
        self._bursts = Bursts(self._facts)
        self._model: ValueModel | None = None
        self._training: Training | None = None
        self._began, self._began_s = 0, 0.0  # the slot at which the last training did, and the clock then
        self._interrupted = False  # it had begun when the state was saved
        self._state: NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def reason(self) -> str:
        """What its decisions rest on."""
        return f"values learnt from {self._model.slots / DAY:.1f} days" if self._model else "values, not learnt yet"

    @property
    def on(self) -> Bools:
        """The lowest levels, as many as are decided to be on: (levels,).

        Instances fill levels from below. Where a level is decided to be off below one that is on, one of both is wrong:
        the number lies between them.
        """
        return self._lowest(self._state != _OFF)

    def learn_by(self, trainer: Trainer) -> None:
        """Have models learnt from now on."""
        self._trainer = trainer

    def grow(self, levels: int) -> None:
        """Append levels, which are off, up to so many."""
        more = levels - len(self._state)
        if more > 0:
            self._state = np.append(self._state, np.zeros(more, np.int64))
            self._bursts.grow(levels)

    def units(self, elapsed_s: float, lambda_units: Floats) -> Floats:
        """Return what each level cost in the last seconds, NaN before there is a model."""
        if self._model is None:
            return np.full(len(self._state), np.nan)
        serves, on = self._lowest(self._state == _SERVES), self.on
        return np.where(serves, elapsed_s, elapsed_s * (on + lambda_units))

    def observe(self, seen: Observation) -> bool:
        """Add to the history; once a slot ends, learn and decide. Return whether there was a decision."""
        if self._trainer is None and self._model is None:
            return False
        ended = self._history.add(seen.elapsed_s, seen.rate)
        if not ended:
            return False
        shares = self._facts.shares(self._history.rates[-LONGEST:])
        for share in shares[-ended:].tolist():
            self._bursts.add(share)
        self._learn(seen.now_s)
        return self._decide(shares, seen.now_s, ended)

    def snapshot(self) -> Snapshot:
        """Return history, model and decisions, as plain JSON values."""
        return {
            "history": self._history.snapshot(),
            "bursts": self._bursts.snapshot(),
            "model": self._model and self._model.text,
            "began": self._began,
            "began_s": self._began_s,
            "training": self._training is not None or self._interrupted,
            "state": self._state.tolist(),
        }

    def restore(self, saved: SavedFields, levels: int) -> None:
        """Go on from the snapshot of so many levels; raises InputError for another one.

        A training that had begun is begun again, and its model decides when it would have.
        """
        self._history.restore(saved.part("history"))
        self._bursts.restore(saved.part("bursts"), levels)
        model = saved.optional_part("model")
        self._model = ValueModel.restored(model, self._facts) if model else None
        self._began = saved.whole("began", 0, self._history.ended)
        self._began_s = saved.number("began_s")
        self._interrupted = saved.flag("training")
        self._state = saved.wholes("state", levels, _OFF, self._facts.boot_slots + _SERVES)

    def _lowest(self, decided: Bools) -> Bools:
        lowest: Bools = np.arange(len(decided)) < np.count_nonzero(decided)
        return lowest

    def _decide(self, shares: Floats, now_s: float, ended: int) -> bool:
        """Keep, stop and start levels for the next slot."""
        if self._model is None or not len(self._state):
            return False
        booting = self._state > _SERVES
        self._state = np.where(booting, np.maximum(self._state - ended, _SERVES), self._state)
        last, levels = np.array([len(shares) - 1]), np.arange(len(self._state), dtype=np.float64)
        load = load_features(self._facts, shares, last, np.array([now_s]))
        free = np.flatnonzero(self._state <= _SERVES)  # an instance that boots is not stopped
        serving = self._state[free] == _SERVES
        on = self._model.on(level_features(load, self._bursts.features(shares), levels)[free], serving)
        started = np.where(on, self._facts.boot_slots + _SERVES, _OFF)
        self._state[free] = np.where(serving & on, _SERVES, started)
        return True

    def _learn(self, now_s: float) -> None:
        """Take over a model whose time has come, and begin the next training when it is due."""
        if self._trainer is None:
            return
        ended = self._history.ended
        if self._interrupted:
            self._interrupted = False
            self._training = self._trainer.begin(self._record(ended - self._began, self._began_s))
        if self._training is not None:
            if ended >= self._began + _READY:
                self._take_over(self._training, ended)
            return
        wait = min(max(DAY, int(self._began * _LATER)), 7 * DAY)
        if ended >= max(_FIRST, self._began + wait):
            self._began, self._began_s = ended, now_s
            self._training = self._trainer.begin(self._record(0, now_s))

    def _record(self, later: int, end_s: float) -> LoadRecord:
        """Return what was known `later` slots ago, when the clock stood at `end_s`."""
        rates = self._history.rates
        return LoadRecord(rates[: max(len(rates) - later, 1)].copy(), end_s, self._facts)

    def _take_over(self, training: Training, ended: int) -> None:
        data = training.model()
        if data is not None:
            with suppress(InputError):  # the earlier model, or none, goes on
                self._model = ValueModel.read(data, self._facts)
        if data is not None or ended >= self._began + _PATIENCE:
            self._training = None
