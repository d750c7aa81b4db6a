"""What the picture of a plan's alternatives tells: which are beaten, the scales of its axes, and where labels go."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from serfer.core.errors import PlanError
from serfer.core.plan import Alternative, Plan

_MILLION = 1_000_000
_UNSPLIT = "one function of "
_WIDE = 5.0  # largest to smallest value, from which on a scale is logarithmic
_AIR = 0.08  # of a scale, on either side
_MOST_TICKS = 6
_FEW_DECADES = 4
_STEPS = (1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Choice:
    """An alternative with its number, the fastest first; `best` says that none that fits is faster and cheaper."""

    number: int
    plan: Alternative
    best: bool

    @property
    def usd(self) -> float:
        """Dollars of a million queries."""
        return self.plan.usd * _MILLION

    @property
    def label(self) -> str:
        """What stands beside its point: its number, and what is special about it."""
        words = [f"unsplit, {self.plan.stages.removeprefix(_UNSPLIT)}"] if self.plan.tasks == 1 else []
        return " ".join([str(self.number), *(["chosen"] if self.plan.chosen else []), *words])

    @property
    def verdict(self) -> str:
        """What became of it."""
        if self.plan.chosen:
            return "chosen"
        return "does not fit" if not self.plan.fits else "best" if self.best else "beaten"


def choices(plan: Plan) -> tuple[Choice, ...]:
    """Return what a plan competed with, itself among it; raises PlanError where it does not say or says nonsense."""
    found = sorted(plan.alternatives, key=lambda each: (each.ms, each.usd))
    if not found:
        raise PlanError("plan.json says nothing of what the plan competed with; split the model again")
    if not all(0 <= value < math.inf for each in found for value in (each.ms, each.usd)):
        raise PlanError("plan.json has alternatives with impossible figures; split the model again")
    return tuple(Choice(number, each, _is_best(each, found)) for number, each in enumerate(found, 1))


def _is_best(one: Alternative, others: Iterable[Alternative]) -> bool:
    """Say whether no other that fits is as good in both and better in one."""
    mine = (one.ms, one.usd)
    return one.fits and not any(
        other.fits and other.ms <= one.ms and other.usd <= one.usd and (other.ms, other.usd) != mine for other in others
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from `low` to `high` along an axis, logarithmic or not."""

    low: float
    high: float
    log: bool

    def at(self, value: float) -> float:
        """Return where a value lies, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        """Round values to mark."""
        return [tick for tick in (self._decades() if self.log else self._even()) if self.low <= tick <= self.high]

    def _decades(self) -> Iterator[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        few = last - first <= _FEW_DECADES
        for power in range(first, last + 1, 1 if few else -(-(last - first) // _MOST_TICKS)):
            yield from (float(f"{step}e{power}") for step in (_STEPS if few else _STEPS[:1]))

    def _even(self) -> Iterator[float]:
        span = self.high - self.low
        power = 10.0 ** math.floor(math.log10(span / _MOST_TICKS))
        step = next(step * power for step in (*_STEPS, 10.0) if step * power * _MOST_TICKS >= span)
        first = math.ceil(self.low / step)
        yield from (float(f"{number * step:.12g}") for number in range(first, first + _MOST_TICKS + 1))


def scale_of(values: Sequence[float]) -> Scale:
    """Return a scale on which all values have some air."""
    low, high = min(values), max(values)
    if low > 0 and high > _WIDE * low:
        air = (high / low) ** _AIR
        return Scale(low / air, high * air, log=True)
    air = max(_AIR * (high - low), 0.02 * high) or 1.0
    return Scale(max(0.0, low - air), high + air, log=False)


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle on the page, in inches."""

    left: float
    top: float
    width: float
    height: float

    def meets(self, other: Box) -> bool:
        """Say whether two rectangles overlap."""
        across = self.left < other.left + other.width and other.left < self.left + self.width
        return across and self.top < other.top + other.height and other.top < self.top + self.height

    def holds(self, other: Box) -> bool:
        """Say whether a rectangle lies inside."""
        across = self.left <= other.left and other.left + other.width <= self.left + self.width
        return across and self.top <= other.top and other.top + other.height <= self.top + self.height


_RADII = (0.03, 0.14, 0.28, 0.45, 0.65, 0.9, 1.2, 1.6)
_DIRECTIONS = 16


def placed(dots: Sequence[Box], sizes: Sequence[tuple[float, float]], others: Sequence[Box], page: Box) -> list[Box]:
    """Return where each dot's label goes, as near to it as is free of dots, other labels and `others`.

    Where all is taken it lies on the last place that was tried: so many labels fit no page.
    """
    taken = [*dots, *others]
    count = len(taken)
    for dot, size in zip(dots, sizes, strict=True):
        tried = list(_around(dot, size))
        free = (box for box in tried if page.holds(box) and not any(box.meets(other) for other in taken))
        taken.append(next(free, tried[-1]))
    return taken[count:]


def _around(dot: Box, size: tuple[float, float]) -> Iterator[Box]:
    """Yield places for a label, the nearest first: right of the dot, then round it."""
    middle_x, middle_y = dot.left + dot.width / 2, dot.top + dot.height / 2
    for radius in _RADII:
        for turn in range(_DIRECTIONS):
            angle = math.tau * ((turn + 1) // 2) / _DIRECTIONS * (-1) ** turn
            across = math.cos(angle) * (dot.width / 2 + radius + size[0] / 2)
            down = math.sin(angle) * (dot.height / 2 + radius + size[1] / 2)
            yield Box(middle_x + across - size[0] / 2, middle_y + down - size[1] / 2, *size)
