"""Arrivals of a load's queries: as many in each row as the load says, at random times within it.

A row that was counted has the randomness of the service that it was counted at. Drawing its number again, by Poisson,
would add as much once more: policies would see a load twice as noisy as the one that they decide for. Given their
number, the arrivals of a Poisson process are spread evenly and independently over the time; so they are drawn here.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from serfer.cost.loads.steps import Steps, steps_of
from serfer.cost.loads.trace import Floats, Trace


def arrivals_in_steps(steps: Steps, rng: Generator) -> NDArray[np.int64]:
    """Return how many queries come in each step: (steps,).

    A row's number is its rate times its seconds, rounded up as often as its fraction says; it is divided among its
    steps at random, by their seconds.
    """
    durations_s, rates = steps.durations_s, steps.rates
    if not len(rates):
        return np.zeros(0, np.int64)
    begins = np.flatnonzero(np.diff(steps.rows, prepend=-1))
    ends = np.append(begins[1:], len(rates))
    expected = np.add.reduceat(durations_s * rates, begins)
    queries = np.floor(expected + rng.random(len(expected))).astype(np.int64)
    counts = np.zeros(len(rates), np.int64)
    single = ends - begins == 1
    counts[begins[single]] = queries[single]
    for row in np.flatnonzero(~single):
        part = slice(begins[row], ends[row])
        counts[part] = rng.multinomial(queries[row], durations_s[part] / durations_s[part].sum())
    return counts


def arrival_times(load: Trace, begin_s: float, end_s: float, seed: int) -> Floats:
    """Return when queries come between two times of a load, in seconds of the load, ascending: (queries,)."""
    part = load.cut(load.begin_s + begin_s, load.begin_s + end_s)
    rng = np.random.default_rng(seed)
    counts = arrivals_in_steps(steps_of(part, part.seconds), rng)
    starts = np.repeat(part.starts_s[:-1], counts)
    lengths = np.repeat(part.durations_s, counts)
    return np.asarray(np.sort(starts + rng.random(len(starts)) * lengths) + begin_s, dtype=np.float64)
