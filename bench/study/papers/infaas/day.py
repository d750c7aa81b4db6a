"""A day of a trace pressed into minutes, between two rates, as INFaaS' evaluation maps Twitter's (6.1, 6.3.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Final

import numpy as np
import typer
from numpy.typing import NDArray

from serfer.core.errors import UsageError
from serfer_bench.core.traces import end_skipped, skipped, split_missing
from serfer_bench.study.sim.simulate import LoadSpec

_S_PER_DAY = 86_400.0
_MINUTES: Final = 1440
_HOUR: Final = 60
Rates = NDArray[np.float64]


def _here(load: str) -> str:
    """Leave the figure out where its trace is a public one that is not here."""
    _, missing = split_missing([load])
    if missing:
        end_skipped(skipped(missing))
    return load


GENERATED: Final = "bursty-days:hours=48"
DayLoadOption = Annotated[
    str,
    typer.Option(
        "--trace",
        metavar="LOAD",
        callback=_here,
        help="A load of at least a day: a file, as Twitter's, or a generator.",
    ),
]
DayOption = Annotated[int, typer.Option(min=0, help="Which day of it, from 0.")]


def read_day(load: str, number: int, seed: int, progress: Callable[[str], None]) -> Rates:
    """Return the mean rate of each minute of a load's day, counted from 0: (1440,); raises UsageError without it."""
    trace = LoadSpec(load).read(seed, progress)
    edges = number * _S_PER_DAY + np.linspace(0.0, _S_PER_DAY, _MINUTES + 1)
    starts = trace.starts_s
    if edges[-1] > starts[-1]:
        raise UsageError(f"{load} has no whole day {number}: it lasts {starts[-1] / _S_PER_DAY:.1f} days")
    counted = np.concatenate(([0.0], np.cumsum(trace.durations_s * trace.rates)))
    return np.diff(np.interp(edges, starts, counted)) * _MINUTES / _S_PER_DAY


def smoothed(day: Rates) -> Rates:
    padded = np.pad(day, _HOUR // 2, mode="edge")
    return np.array(np.convolve(padded, np.full(_HOUR, 1 / _HOUR), mode="valid")[: len(day)])


FORMS: Final[dict[str, Callable[[Rates], Rates]]] = {"minutes": lambda day: day, "hours' means": smoothed}
"""Forms of a day: the paper does not say which resolution it pressed; at minutes, the trace jumps within a second."""


def pressed(day: Rates, low: float, high: float, queries: int) -> Rates:
    """Return rates, one a second, between `low` and `high`, for so many seconds that about `queries` come."""
    seconds = queries / float(_between(day, low, high).mean())
    edges = np.linspace(0.0, len(day), round(seconds) + 1)
    counted = np.concatenate(([0.0], np.cumsum(day)))
    return _between(np.diff(np.interp(edges, np.arange(len(counted)), counted)), low, high)


def _between(rates: Rates, low: float, high: float) -> Rates:
    least, most = float(rates.min()), float(rates.max())
    return np.interp(rates, (least, most), (low, high))


def arrivals(rates: Rates, weights: Sequence[float], seed: int) -> Iterator[tuple[float, int]]:
    """Yield Poisson arrivals (time, number of the network) at rates of a second each; networks by their weights."""
    rng = np.random.default_rng(seed)
    share = np.asarray(weights) / sum(weights)
    for second, rate in enumerate(rates):
        count = int(rng.poisson(rate))
        times = np.sort(rng.uniform(0.0, 1.0, count))
        for offset, which in zip(times, rng.choice(len(share), count, p=share), strict=True):
            yield second + float(offset), int(which)
