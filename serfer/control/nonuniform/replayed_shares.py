"""Where a recorded driver sent its queries, beside the shares that the rates and the fleet of each moment give."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from serfer.control.nonuniform.rate_dispatcher import MeanRate, shares
from serfer.control.policy import InstanceState, Observation
from serfer.control.scenario import Scenario


@dataclass(frozen=True)
class DispatchedShare:
    """The images that went to instances of a type with a batch size, or to Lambda (no type), and what a replay has."""

    kind: str
    batch: int
    recorded: int
    replayed: float


@dataclass(frozen=True)
class _Place:
    name: str
    kind: int
    batch: int


class DispatchAccount:
    """Adds up recorded dispatches, and what the shares of the same moments give of as many images."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._kinds = {kind.name: number for number, kind in enumerate(scenario.instances)}
        self._mean = MeanRate()
        self._recorded: Counter[tuple[str, int]] = Counter()
        self._replayed: dict[tuple[str, int], float] = {}

    def take(self, seen: Observation) -> None:
        """Take in an observation; what was dispatched before it was so by the rate up to the one before."""
        images = sum(one.images for one in seen.dispatched)
        if images:
            self._recorded.update({(one.kind, one.batch): one.images for one in seen.dispatched})
            for target, share in self._shares(seen).items():
                self._replayed[target] = self._replayed.get(target, 0.0) + share * images
        self._mean.observe(seen.rate, seen.elapsed_s)

    def rows(self) -> tuple[DispatchedShare, ...]:
        """Return all targets, by type and batch size; nothing where no dispatches were recorded."""
        targets = sorted({*self._recorded, *self._replayed}) if self._recorded else []
        return tuple(DispatchedShare(*one, self._recorded[one], self._replayed.get(one, 0.0)) for one in targets)

    def _shares(self, seen: Observation) -> dict[tuple[str, int], float]:
        groups = [group for group in seen.fleet if group.state is InstanceState.SERVING and group.kind in self._kinds]
        places, of = [], {}
        for number, group in enumerate(groups):
            for one in range(group.count):
                place = _Place(f"{number}.{one}", self._kinds[group.kind], group.batch)
                places.append(place)
                of[place.name] = group.kind, group.batch
        known = shares(self._mean.value, places, self._scenario)
        found = {("", 0): known.rest}
        for name, share in known.of.items():
            found[of[name]] = found.get(of[name], 0.0) + share
        return found
