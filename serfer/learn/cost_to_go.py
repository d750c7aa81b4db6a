"""What it would have saved to keep or to start an instance, at each slot of a past load.

A level is off, boots or serves. Its load does not depend on what is decided, so what it costs to follow given decisions
from a slot on is known for each state, by going backwards:

    off(t)     = start(t)? boot(t) + serves(t + boot) : lambda(t) + off(t + 1)
    serves(t)  = keep(t)?  slot + serves(t + 1)       : off(t)

Costs are in instance-seconds. An instance that boots is not stopped.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.control.values.load_history import SLOT_S

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
AHEAD: Final = 6
"""Slots by which alternatives differ at least: a start is compared with one so many slots later at the earliest, a stop
with keeping an instance for so long. One slot's difference would be lost in the noise of what comes after it."""


def savings(units: Floats, keep: Bools, start: Bools, boot_slots: int) -> tuple[Floats, Floats]:
    """Return what keeping and what starting saves before each slot, two arrays (slots,), in instance-seconds.

    `units` (slots,) is what Lambda costs a second, the instance 1; `keep` and `start` are the decisions that follow.
    After the last slot nothing costs anything: what is near the end is not to be learnt from.
    """
    slots = len(units)
    sums = np.concatenate(([0.0], np.cumsum(units))) * SLOT_S
    at = np.arange(slots)
    booted, later = np.minimum(at + boot_slots, slots), np.minimum(at + AHEAD, slots)
    boots: list[float] = (sums[booted] - sums[at] + (booted - at) * SLOT_S).tolist()
    waits: list[float] = (sums[later] - sums[at]).tolist()
    stays: list[float] = ((later - at) * SLOT_S).tolist()
    on_lambda: list[float] = (units * SLOT_S).tolist()
    kept, started = keep.tolist(), start.tolist()
    off, serves = [0.0] * (slots + max(boot_slots, AHEAD) + 1), [0.0] * (slots + max(boot_slots, AHEAD) + 1)
    saved_by_keeping, saved_by_starting = [0.0] * slots, [0.0] * slots
    for slot in range(slots - 1, -1, -1):
        stay_off = on_lambda[slot] + off[slot + 1]
        begin = boots[slot] + serves[slot + boot_slots]
        saved_by_keeping[slot] = stay_off - (stays[slot] + serves[slot + AHEAD])
        saved_by_starting[slot] = waits[slot] + off[slot + AHEAD] - begin
        off[slot] = begin if started[slot] else stay_off
        serves[slot] = SLOT_S + serves[slot + 1] if kept[slot] else off[slot]
    return np.array(saved_by_keeping), np.array(saved_by_starting)


def plain_decisions(units: Floats, boot_slots: int) -> Bools:
    """Return before which slots the plain break-even rule has an instance on, (slots,): what learning begins with."""
    price = boot_slots * SLOT_S
    gap, on, decided = price, False, []
    for dearer in (SLOT_S * (1.0 - units)).tolist():
        decided.append(on)
        gap = min(max(gap + dearer, 0.0), price)
        on = gap < price and (on or gap <= 0.0)
    return np.array(decided, np.bool_)
