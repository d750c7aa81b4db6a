"""Requests a second that each instance of a function gets: the three cases of section 3.2 of INFless."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

ALPHA: Final = 0.8
"""The paper's (3.2)."""


class HasRateRange(Protocol):
    """What takes from `low` to `up` requests a second: an instance, by its configuration."""

    @property
    def low(self) -> float: ...

    @property
    def up(self) -> float:
        """The highest rate without queues."""
        ...


class Case(StrEnum):
    """What the rate asks of the instances that there are: more of them, nothing, or fewer."""

    SHORT = "short"
    STEADY = "steady"
    AMPLE = "ample"


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The case, the requests a second of an instance of each kind, in order, and what all do not take."""

    case: Case
    rates: tuple[float, ...]
    residual: float = 0.0


def threshold(low: float, up: float, alpha: float = ALPHA) -> float:
    """Return the rate below which instances are released: alpha * R_min + (1 - alpha) * R_max, as section 3.2 has it.

    Equation 7 has both exchanged, which at 0.8 would release instances of a function in the upper half of its range.
    """
    return alpha * low + (1 - alpha) * up


def case_of(rate: float, low: float, up: float, alpha: float = ALPHA) -> Case:
    """Return the case of a rate among instances that take `low` to `up` together."""
    if rate > up:
        return Case.SHORT
    return Case.AMPLE if rate < threshold(low, up, alpha) else Case.STEADY


def dispatch(rate: float, kinds: Sequence[tuple[HasRateRange, int]], alpha: float = ALPHA) -> Dispatch:
    """Divide requests a second among so many instances of each kind.

    Each gets its share of the range, r_up - (R_max - R) / (R_max - R_min) * (r_up - r_low): between its bounds for
    every rate between theirs. Above them each gets r_up, and the rest is the residual; below them, in proportion to
    r_low: batches time out there before they are full.
    """
    low, up = sum(one.low * count for one, count in kinds), sum(one.up * count for one, count in kinds)
    case = case_of(rate, low, up, alpha)
    if case is Case.SHORT:
        return Dispatch(case, tuple(one.up for one, _ in kinds), rate - up)
    if rate < low:
        return Dispatch(case, tuple(rate * one.low / low for one, _ in kinds))
    below = (up - rate) / (up - low) if up > low else 0.0
    return Dispatch(case, tuple(one.up - below * (one.up - one.low) for one, _ in kinds))
