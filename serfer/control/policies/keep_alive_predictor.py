"""The keep-alive and pre-warming windows of one capacity level, learnt from its bursts."""

from __future__ import annotations

from typing import Final

from serfer.control.policies.length_histograms import LengthHistogram, hazards
from serfer.control.policies.renewal import BURST, QUIET, Actions, best_actions

BOOT_TICKS: Final = 8
_CLOCK: Final = 480  # ticks: an hour where a boot takes one minute, four where it takes four
_BEGUN_TWICE: Final = 3  # bursts, after which there are two distances between begins
_GROWTH: Final = 1.1  # the actions are computed again after so many times the bursts
_MOST: Final = 2**53  # bursts and ticks in a snapshot
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
        """Whether its instance is on and has booted."""
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
        """Detect that a burst begins, or that one has ended: it has been calm for long enough.

        Lengths are read off the clock as it stood when the phase last changed.
        """
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
