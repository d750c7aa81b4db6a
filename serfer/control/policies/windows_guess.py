"""The guess by windows: each level's keep-alive and pre-warming windows, learnt from its bursts and gaps."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from serfer.control.policies.capacity_levels import Bools, Floats, lambda_units
from serfer.control.policies.keep_alive_predictor import BOOT_TICKS, KeepAlivePredictor
from serfer.control.policy import Observation
from serfer.control.scenario import Scenario

_LEAST_TICK_S: Final = 1.0


class WindowsGuess:
    """A keep-alive predictor for each level; time passes in ticks of an eighth of a boot."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._tick_s = max(scenario.instance.boot_s / BOOT_TICKS, _LEAST_TICK_S)
        self._predictors: list[KeepAlivePredictor] = []
        self._seconds = self._queries = 0.0  # of the tick that has begun

    @property
    def on(self) -> Bools:
        """The levels that should be on: (levels,)."""
        return np.array([bool(predictor.on) for predictor in self._predictors], np.bool_)

    def grow(self, levels: int) -> None:
        """Append levels, which are off, up to so many."""
        self._predictors += [KeepAlivePredictor() for _ in range(levels - len(self._predictors))]

    def units(self, elapsed_s: float, lambda_units: Floats) -> Floats:
        """Return what each level cost in the last seconds, NaN where it has seen too few bursts."""
        pairs = zip(self._predictors, lambda_units.tolist(), strict=True)
        return np.array([_units_per_s(*pair) for pair in pairs]) * elapsed_s

    def observe(self, seen: Observation) -> bool:
        """Advance the predictors once a tick is over; return whether it is."""
        self._seconds += seen.elapsed_s
        self._queries += seen.elapsed_s * seen.rate
        if self._seconds < self._tick_s:
            return False
        units = lambda_units(self._scenario, self._queries / self._seconds, len(self._predictors)).tolist()
        for predictor, each in zip(self._predictors, units, strict=True):
            predictor.tick(each)
        self._seconds = self._queries = 0.0
        return True


def _units_per_s(predictor: KeepAlivePredictor, lambda_units: float) -> float:
    if predictor.on is None:
        return math.nan
    if predictor.serves:
        return 1.0
    return 1.0 + lambda_units if predictor.on else lambda_units
