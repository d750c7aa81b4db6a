"""Requests of each tick of a load, and which instance each goes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from serfer.core.errors import UsageError
from serfer.cost.loads.trace import Floats, Trace
from serfer_bench.study.sim.time_series import integrated

Counts = NDArray[np.int64]
MAX_TICKS: Final = 4_000_000


def tick_counts(trace: Trace, period_s: float, ticks: int, rng: Generator) -> Counts:
    """Return whole requests of each tick, (ticks,): the load's own number, broken ones rounded up as often as they are.

    Drawing counts around a load that was counted would make it twice as noisy.
    """
    edges = np.arange(ticks + 1, dtype=np.float64) * period_s
    expected = integrated(trace.starts_s, trace.rates, edges)
    return np.floor(expected + rng.uniform(size=ticks)).astype(np.int64)


def ticks_of(traces: Sequence[Trace], period_s: float) -> int:
    """Return how many ticks the longest load has; raises UsageError for an invalid period, or too many."""
    if not period_s > 0:
        raise UsageError(f"--period-s is more than 0, not {period_s:g}")
    ticks = int(np.ceil(max(one.seconds for one in traces) / period_s - 1e-9))
    if ticks > MAX_TICKS:
        raise UsageError(f"--period-s {period_s:g} makes {ticks:,} steps, more than {MAX_TICKS:,}: give a longer one")
    return max(ticks, 1)


def times_within(count: int, begin_s: float, period_s: float, rng: Generator) -> Floats:
    return np.sort(rng.uniform(begin_s, begin_s + period_s, count))


def divided(times_s: Floats, rates: Sequence[float], rng: Generator) -> Iterator[tuple[int, list[float]]]:
    """Yield each instance's number and its requests: as its rate has it, and spread evenly among all requests.

    A dispatcher that keeps each instance within its bounds sends it every so-manyth request, not a random one. Counts
    are the rates' shares, rounded so that they add up, by one random offset.
    """
    weights = np.asarray(rates, dtype=np.float64)
    total = weights.sum()
    if not len(times_s) or total <= 0:
        return
    bounds = np.floor(np.concatenate(([0.0], np.cumsum(weights) / total)) * len(times_s) + rng.uniform())
    bounds[0], bounds[-1] = 0.0, len(times_s)
    counts = np.diff(bounds).astype(np.int64)
    who = np.repeat(np.arange(len(weights)), counts)
    begin = np.repeat(bounds[:-1], counts)
    phases = rng.uniform(size=len(weights))
    places = (np.arange(len(times_s)) - begin + phases[who]) / counts[who]
    of_time = np.empty(len(times_s), dtype=np.int64)  # the instance of each request, in order of time
    of_time[:] = who[np.argsort(places, kind="stable")]
    order = np.argsort(of_time, kind="stable")
    sorted_times = times_s[order].tolist()
    ends = np.cumsum(counts)
    for number in np.flatnonzero(counts):
        yield int(number), sorted_times[ends[number] - counts[number] : ends[number]]
