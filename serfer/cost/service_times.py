"""Lambda's service times as quantiles to draw from, with their source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import Generator

from serfer.control.scenario import LambdaTarget
from serfer.core.costs.aws import LambdaFacts
from serfer.cost.loads.trace import Floats

_POINTS: Final = 1000  # of a distribution
_LAST: Final = 0.9999  # the largest quantile that is drawn of one that has no end
_BLOCK: Final = 4096  # draws at once
_MS: Final = 1000.0


@dataclass(frozen=True, eq=False)
class Quantiles:
    """A distribution, as its values at evenly spaced shares from 0 to 1: an array, ascending."""

    values: Floats

    @classmethod
    def of(cls, samples: Floats) -> Quantiles:
        points = min(_POINTS, 4 * len(samples)) + 1
        return cls(np.quantile(samples, np.linspace(0, 1, points)))

    @classmethod
    def always(cls, value: float) -> Quantiles:
        return cls(np.array([value, value]))

    @property
    def mean(self) -> float:
        return float(np.mean((self.values[1:] + self.values[:-1]) / 2))

    def at(self, share: float) -> float:
        """Return the value that a share of the draws stays within."""
        return float(np.interp(share, np.linspace(0, 1, len(self.values)), self.values))

    def plus(self, value: float) -> Quantiles:
        return Quantiles(self.values + value)

    def samples(self, rng: Generator) -> Iterator[float]:
        """Draw without end, by the inverse of the distribution function."""
        shares = np.linspace(0, 1, len(self.values))
        while True:
            yield from np.interp(rng.random(_BLOCK), shares, self.values).tolist()


@dataclass(frozen=True, eq=False)
class ServiceTimes:
    """Seconds of a query in warm environments, what a cold start adds, and where both come from.

    `one_task` says that a query is one invocation, which drivers duplicate as a whole where it is late.
    """

    warm_s: Quantiles
    cold_s: Quantiles
    source: str
    one_task: bool = False

    def draws(self, rng: Generator, running: Sequence[float]) -> tuple[Iterator[float], Iterator[float]]:
        """Return seconds without end, of queries and of what cold starts add, while the `running` ones run."""
        del running
        return self.warm_s.samples(rng), self.cold_s.samples(rng)


def scenario_times(target: LambdaTarget, facts: LambdaFacts) -> ServiceTimes:
    """Return the scenario's own times, spread as invocations are: a floor and an exponential tail (aws.toml).

    The mean is the scenario's `latency_ms`.
    """
    mean = target.latency_ms / _MS
    tail = min(facts.invoke_tail, mean)
    shares = np.linspace(0, 1, _POINTS + 1)
    spread = -tail * np.log1p(-np.minimum(shares, _LAST))
    warm = Quantiles(mean - tail + spread)
    source = f"the scenario's latency_ms and cold_ms, with the invocations' tail of {tail * _MS:.1f} ms of aws.toml"
    return ServiceTimes(warm.plus(mean - warm.mean), Quantiles.always(target.cold_ms / _MS), source, one_task=True)
