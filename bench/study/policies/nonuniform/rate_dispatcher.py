"""Which instance gets a query: in proportion to the rates of section 3.2's three cases, in a deterministic order.

Smooth weighted round robin: each query gives every target its share of it as credit, and goes to the one with the most,
which pays for it. An instance that would be late passes its turn on, to the next that would not, or else to Lambda.
Each driver divides its own queries so, by the load of all: together they have the same shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from serfer.control.policy import Target
from serfer.control.scenario import Scenario
from serfer_bench.study.policies.infless.dispatch import dispatch
from serfer_bench.study.policies.nonuniform.sizes import size_of

REST: Final = ""
"""The target of what exceeds the instances' upper bounds."""
_MEAN_S: Final = 3.0  # of the rate: a second's count is noisy, and R_max should not be crossed by noise


class MeanRate:
    """An exponential moving average of a rate over about `mean_s` seconds."""

    def __init__(self, mean_s: float = _MEAN_S) -> None:
        self.value = 0.0
        self._mean_s = mean_s

    def observe(self, rate: float, elapsed_s: float) -> float:
        """Take in a rate that held for some seconds, and return the average."""
        self.value += (1.0 - math.exp(-elapsed_s / self._mean_s)) * (rate - self.value)
        return self.value


@dataclass(frozen=True)
class Shares:
    """The share of the queries that each target gets, by name, and the rest's: they sum to 1."""

    of: dict[str, float]
    rest: float


def shares(rate: float, targets: Sequence[Target], scenario: Scenario) -> Shares:
    """Return how `rate` queries a second divide among instances: by the three cases of section 3.2.

    Above R_max each gets r_up, and the rest is left; before any rate is known, in proportion to r_up.
    """
    ranges = [size_of(scenario.instances[one.kind], one.batch, scenario.slo_ms) for one in targets]
    rates = dispatch(rate, [(one, 1) for one in ranges]).rates if rate > 0 else tuple(one.up for one in ranges)
    if sum(rates) <= 0:
        rates = tuple(one.up for one in ranges)
    total = max(rate, sum(rates))
    of = {one.name: each / total for one, each in zip(targets, rates, strict=True)} if total > 0 else {}
    return Shares(of, max(0.0, 1.0 - sum(of.values())))


class RateDispatcher:
    """Chooses targets; `rate` is the load of all drivers, and ticks with each observation of it."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._mean = MeanRate()
        self._key: tuple[tuple[str, int, int], ...] | None = None
        self._shares = Shares({}, 1.0)
        self._credit: dict[str, float] = {}

    def observe(self, rate: float, elapsed_s: float) -> None:
        self._mean.observe(rate, elapsed_s)
        self._key = None

    def choose(self, targets: Sequence[Target], images: int, admits: Callable[[int], bool]) -> int | None:
        """Return the place of the instance that a query goes to, None where Lambda gets it.

        `admits` says of a place whether that instance would answer in time: it may have more to do than the mean rate
        says.
        """
        self._update(targets)
        credit = self._credit
        for name, share in self._shares.of.items():
            credit[name] += images * share
        credit[REST] += images * self._shares.rest
        turn = max(credit, key=credit.__getitem__)
        order = sorted(range(len(targets)), key=lambda place: -credit[targets[place].name])
        credit[turn] -= images
        return None if turn == REST else next((place for place in order if admits(place)), None)

    def _update(self, targets: Sequence[Target]) -> None:
        key = tuple((target.name, target.kind, target.batch) for target in targets)
        if key == self._key:
            return
        self._key = key
        self._shares = shares(self._mean.value, targets, self._scenario)
        self._credit = {name: self._credit.get(name, 0.0) for name in [*self._shares.of, REST]}
