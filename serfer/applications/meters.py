"""What a driver sees of its variants: how many queries run, what they took, what was refused; and of all drivers'."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Final

from serfer.control.selection import VariantSignals
from serfer.core.dataclass_codec import Bounds
from serfer.core.units import MS_PER_S
from serfer.core.variants import Place, Variant

WINDOW_S: Final = 10.0
"""Seconds of answers that signals are made of."""
_MOST = 256  # answers that are remembered
_FEW = 3  # answers that say nothing yet of a variant's latency
_Count = Annotated[int, Bounds(0, 1e9)]
_Ms = Annotated[float, Bounds(0.0, 1e9)]


@dataclass(frozen=True, slots=True)
class DriverSignals:
    """One driver's signals of a variant, as it publishes them.

    `warm` queries at once found warm environments, or would; `answered` warm queries of the last WINDOW_S seconds took
    `median_ms`, `cold` ones waited for an environment, `throttled` ones were refused by Lambda. `undisturbed_ms` is
    the median of answers beside which no other query ran here, 0 where there were none.
    """

    in_flight: _Count = 0
    warm: _Count = 0
    answered: _Count = 0
    cold: _Count = 0
    throttled: _Count = 0
    median_ms: _Ms = 0.0
    undisturbed_ms: _Ms = 0.0


@dataclass(frozen=True, slots=True)
class _Completion:
    at: float
    ms: float
    cold: bool


class VariantMeter:
    """Counts a variant's queries in this driver; `kept_s` is how long an environment that has answered stays warm."""

    def __init__(self, kept_s: float, clock: Callable[[], float]) -> None:
        self.in_flight = 0
        self._kept_s = kept_s
        self._clock = clock
        self._ended: deque[_Completion] = deque(maxlen=_MOST)
        self._alone: deque[float] = deque(maxlen=_FEW * 7)
        self._throttled: deque[float] = deque(maxlen=_MOST)
        self._most: tuple[int, float] = (0, 0.0)  # the most queries at once that were answered, and when last

    def begin(self) -> bool:
        self.in_flight += 1
        return self.in_flight == 1

    def answer(self, ms: float, *, cold: bool, alone: bool) -> None:
        now = self._clock()
        self._ended.append(_Completion(now, ms, cold))
        if alone and not cold and self.in_flight == 1:
            self._alone.append(ms)
        most, when = self._most
        if self.in_flight >= most or now - when > self._kept_s:
            self._most = (self.in_flight, now)

    def warm_up(self) -> None:
        most, _ = self._most
        self._most = (max(1, most), self._clock())

    def throttle(self) -> None:
        self._throttled.append(self._clock())

    def end(self) -> None:
        self.in_flight -= 1

    @property
    def signals(self) -> DriverSignals:
        now = self._clock()
        recent = [query for query in self._ended if now - query.at <= WINDOW_S]
        warm = [query.ms for query in recent if not query.cold]
        most, when = self._most
        return DriverSignals(
            in_flight=self.in_flight,
            warm=most if now - when <= self._kept_s else 0,
            answered=len(warm),
            cold=len(recent) - len(warm),
            throttled=sum(now - at <= WINDOW_S for at in self._throttled),
            median_ms=median(warm) if warm else 0.0,
            undisturbed_ms=median(self._alone) if len(self._alone) >= _FEW else 0.0,
        )


def functions_signals(variant: Variant, seen: Sequence[DriverSignals], share: float) -> VariantSignals:
    """Return the signals of a variant on functions, of all drivers', of which `share` of the concurrency is in use.

    An answer counts as slow beside what the variant was predicted to take, or took here undisturbed, if that is more:
    predictions are of Lambda, and functions also run elsewhere.
    """
    answered = sum(window.answered for window in seen)
    cold = sum(window.cold for window in seen)
    profiled = max([variant.latency_ms.value, *(window.undisturbed_ms for window in seen)])
    ratio = None
    if answered >= _FEW and profiled > 0:
        ratio = sum(window.median_ms * window.answered for window in seen) / answered / profiled
    return VariantSignals(
        Place.FUNCTIONS,
        warm=sum(window.warm for window in seen),
        share=share,
        throttles=sum(window.throttled for window in seen),
        latency_ratio=ratio,
        cold_share=cold / (answered + cold) if cold else 0.0,
    )


def in_use(variants: Iterable[tuple[Variant, Sequence[DriverSignals]]], concurrency: int) -> float:
    invocations = sum(variant.tasks * sum(window.in_flight for window in seen) for variant, seen in variants)
    return invocations / concurrency


def ms_since(begun: float, now: float) -> float:
    return (now - begun) * MS_PER_S
