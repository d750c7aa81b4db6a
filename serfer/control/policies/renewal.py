"""The best moments to start and stop a level's instance, if bursts come as they have come so far.

Bursts are taken for a renewal process whose clock is the time since the last one began. On that clock the hazards that
the burst ends and that the next one begins are known (length_histograms.py), an instance is off, boots for a few more
ticks, or serves, and what each costs a tick is known too:

      burst, off: Lambda's price      booting: Lambda's and the instance's      serving: the instance's
      quiet, off: less, or nothing    booting: the same                         serving: the instance's

A dynamic programme, backwards over the clock and again until the value of a burst's begin stands, gives the cheapest
action at every moment: to keep an instance for how long after a burst (the keep-alive window), to start one how long
before the next (the pre-warming window), or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from serfer.control.policies.capacity_levels import Bools, Floats

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
