"""The guess by windows: each level's keep-alive and pre-warming windows, learnt from its bursts and gaps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from serfer.control.policies.ski_rental import Bools, Floats, lambda_units
from serfer.control.policy import Observation
from serfer.control.scenario import Scenario

_LONG: Final = 0.998  # what is left of a length's weight after the next one
_SHORT: Final = 0.9
_SHARE: Final = 0.8  # of the long-term histogram
_SPREAD: Final = 2  # ticks to both sides over which a length counts
_NONE: Final = 1e-6


class LengthHistogram:
    """LengthHistogram in ticks, below `most`; longer ones only count as such."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._counts = np.zeros((2, end))  # long term, short term
        self._weights = np.zeros(2)

    def add(self, ticks: int) -> None:
        kept = np.array([_LONG, _SHORT])
        self._counts *= kept[:, None]
        self._weights = self._weights * kept + 1.0
        if ticks < self._end:
            for offset in range(-_SPREAD, _SPREAD + 1):
                at = min(max(ticks + offset, 0), self._end - 1)
                self._counts[:, at] += (_SPREAD + 1 - abs(offset)) / (_SPREAD + 1) ** 2

    def shares(self) -> Floats:
        """Return the share of each length, (end,); the rest up to 1 are longer ones."""
        long, short = self._counts / np.maximum(self._weights, _NONE)[:, None]
        mixed: Floats = _SHARE * long + (1.0 - _SHARE) * short
        return mixed


def hazards(bursts: Floats, gaps: Floats) -> tuple[Floats, Floats]:
    """Return the hazards that a burst ends, and that the next one begins, at each tick since the burst began.

    `bursts` and `gaps` are the shares of lengths, from a burst's begin to its end and to the next one's begin. The
    first hazard holds while the burst lasts, the second one after it.
    """
    over, again = np.cumsum(bursts), np.cumsum(gaps)
    lasting = 1.0 - over + bursts
    ending = np.where(lasting > _NONE, bursts / np.maximum(lasting, _NONE), 0.0)
    quiet = np.maximum(np.minimum(over, 1.0) - again + gaps, 0.0)  # over, and not begun again
    beginning = np.where(gaps > _NONE, gaps / np.maximum(quiet, np.maximum(gaps, _NONE)), 0.0)
    return np.clip(ending, 0.0, 1.0), np.clip(beginning, 0.0, 1.0)


# The best moments to start and stop a level's instance, if bursts come as they have come so far.
#
# Bursts are taken for a renewal process whose clock is the time since the last one began. On that clock the hazards
# that the burst ends and that the next one begins are known, an instance is off, boots for a few
# more ticks, or serves, and what each costs a tick is known too:
#
#       burst, off: Lambda's price      booting: Lambda's and the instance's      serving: the instance's
#       quiet, off: less, or nothing    booting: the same                         serving: the instance's
#
# A dynamic programme, backwards over the clock and again until the value of a burst's begin stands, gives the cheapest
# action at every moment: to keep an instance for how long after a burst (the keep-alive window), to start one how long
# before the next (the pre-warming window), or not at all.

BURST: Final = 0
QUIET: Final = 1
_ROUNDS: Final = 40
_SETTLED: Final = 0.05  # ticks' price


@dataclass(frozen=True)
class Actions:
    """What to do, (ticks since the burst began, BURST or QUIET, state): whether the instance is on afterwards.

    A state is 0: off, 1 to n: boots for so many more ticks, n + 1: serves. `begin` is what each state is worth when a
    burst begins, against off, in ticks of the instance's price.
    """

    on: Bools
    begin: Floats


def best_actions(
    hazards: tuple[Floats, Floats], burst_units: float, quiet_units: float, boot_ticks: int, begin: Floats | None = None
) -> Actions:
    """Return the cheapest actions; `burst_units` and `quiet_units` are Lambda's price, the instance's being 1.

    `begin` is where to start from: an earlier solution's.
    """
    states = boot_ticks + 2
    prices = np.array([[units, *[units + 1.0] * boot_ticks, 1.0] for units in (burst_units, quiet_units)])
    following = np.array([0, states - 1, *range(1, boot_ticks), states - 1])  # the state a tick later
    begin = np.zeros(states) if begin is None else begin
    on = np.zeros((len(hazards[0]), 2, states), np.bool_)
    endless = burst_units * np.array([boot_ticks, *range(1, boot_ticks + 1), 0.0])  # what a lasting burst costs on top
    changes = np.stack(hazards, axis=1)[:, :, None]
    stays = 1.0 - changes
    for _ in range(_ROUNDS):
        values = np.stack([endless - endless[0], np.zeros(states)])
        changed = np.stack([values[QUIET], begin])  # what follows a burst, and what follows the quiet after it
        for tick in range(len(changes) - 1, -1, -1):
            changed[BURST] = values[QUIET]
            values = prices + (changes[tick] * changed + stays[tick] * values)[:, following]
            off = np.minimum(values[:, 0], values[:, boot_ticks])[:, None]  # stay off, or start
            on[tick] = values <= off
            on[tick, :, 0] = values[:, boot_ticks] < values[:, 0]
            values = np.minimum(values, off) - off
        settled = np.abs(values[BURST] - begin).max() < _SETTLED
        begin = values[BURST]
        if settled:
            break
    return Actions(on, begin)


BOOT_TICKS: Final = 8
_CLOCK: Final = 480  # ticks: an hour where a boot takes one minute, four where it takes four
_BEGUN_TWICE: Final = 3  # bursts, after which there are two distances between begins
_GROWTH: Final = 1.1  # the actions are computed again after so many times the bursts
_CALM: Final = BOOT_TICKS // 4  # ticks below the instance's price that end a burst


class KeepAlivePredictor:
    """Predicts each tick whether the level should be `on`; None while it has seen too few bursts."""

    def __init__(self) -> None:
        self.on: bool | None = None
        self._bursts, self._gaps = LengthHistogram(_CLOCK), LengthHistogram(_CLOCK)
        self._phase, self._clock, self._calm = QUIET, _CLOCK, 0
        self._count = self._solved_at = 0
        self._units = [0.0, 0.0]
        self._ticks = [0, 0]
        self._actions: Actions | None = None
        self._state = 0  # as in Actions

    @property
    def serves(self) -> bool:
        return self._state > BOOT_TICKS

    def tick(self, units: float) -> None:
        """Advance by a tick in which Lambda cost `units` for each that the instance costs."""
        self._clock = min(self._clock + 1, _CLOCK)
        self._detect(units)
        self._units[self._phase] += units
        self._ticks[self._phase] += 1
        if self._count >= max(_BEGUN_TWICE, _GROWTH * self._solved_at + 1) and self._phase == QUIET:
            self._solve()
        self._act()

    def _detect(self, units: float) -> None:
        """Lengths are read off the clock as it stood when the phase last changed."""
        if self._phase == QUIET and units > 1.0:
            if self._count:
                self._gaps.add(self._clock - 1)
            self._phase, self._clock, self._calm = BURST, 0, 0
            self._count += 1
        elif self._phase == BURST:
            self._calm = 0 if units > 1.0 else self._calm + 1
            if self._calm >= _CALM:
                self._bursts.add(self._clock - 1)
                self._phase = QUIET

    def _solve(self) -> None:
        self._solved_at = self._count
        means = [units / max(ticks, 1) for units, ticks in zip(self._units, self._ticks, strict=True)]
        before = self._actions.begin if self._actions else None
        chances = hazards(self._bursts.shares(), self._gaps.shares())
        self._actions = best_actions(chances, means[BURST], means[QUIET], BOOT_TICKS, before)

    def _act(self) -> None:
        if self._actions is None:
            return
        if self._state > 1:
            self._state = self._state - 1 if self._state <= BOOT_TICKS else self._state
        elif self._state == 1:
            self._state = BOOT_TICKS + 1
        known = self._clock < _CLOCK
        self.on = bool(self._actions.on[self._clock, self._phase, self._state]) if known else self._phase == BURST
        if not self.on:
            self._state = 0
        elif self._state == 0:
            self._state = BOOT_TICKS


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
        return np.array([bool(predictor.on) for predictor in self._predictors], np.bool_)

    def grow(self, levels: int) -> None:
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
        for predictor, unit in zip(self._predictors, units, strict=True):
            predictor.tick(unit)
        self._seconds = self._queries = 0.0
        return True


def _units_per_s(predictor: KeepAlivePredictor, lambda_units: float) -> float:
    if predictor.on is None:
        return math.nan
    if predictor.serves:
        return 1.0
    return 1.0 + lambda_units if predictor.on else lambda_units
