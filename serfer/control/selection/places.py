"""The states of variants by place, prepared once an update so that a query reads them fast."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from serfer.core.variants import VariantState

FUNCTIONS: Final = "functions"
"""The place of all functions; that of an instance is its name or address."""
_LEAST: Final = 0.05
"""The least weight of a place among its like."""
_MODERATE: Final = (0.5, 1.5)
"""What a load counts at least and at most where queries are divided by it: a queue of a period ago may be gone."""
_DAMPING: Final = 0.5
"""The power of the load that queries are divided by: by the load itself, two places swap their loads each period."""


@dataclass(frozen=True, slots=True)
class PlaceState:
    """The state of a variant at a place.

    `load` is the share of the place's capacity in use, above 1 where queries wait: also where the variant is inactive,
    the instance's utilisation by other variants then. `admitted` is the share of the queries that come to the place
    which it takes while dearer variants could take the rest, 1 where it has room for all.
    """

    place: str
    state: VariantState
    load: float = 0.0
    admitted: float = 1.0


class Ranking:
    """Places of one state, the least loaded first, with weights: a draw of 0 picks the least loaded one."""

    __slots__ = ("_cumulated", "least_load", "names", "weight")

    def __init__(self, places: Iterable[tuple[PlaceState, float]]) -> None:
        ranked = sorted(places, key=lambda place: (place[0].load, place[0].place))
        self.names = tuple(place.place for place, _ in ranked)
        self.least_load = ranked[0][0].load
        self._cumulated = tuple(accumulate(weight for _, weight in ranked))
        self.weight = self._cumulated[-1]

    def pick(self, draw: float) -> str:
        if len(self.names) == 1:
            return self.names[0]
        return self.names[min(bisect_right(self._cumulated, draw * self.weight), len(self.names) - 1)]


class VariantPlaces:
    """The places of a variant by state; None for a state that none is in.

    `loaded` has active and busy places, `admitted` is the mean of the active places' shares.
    """

    __slots__ = ("active", "admitted", "inactive", "loaded")

    def __init__(self, places: Sequence[PlaceState]) -> None:
        active = [place for place in places if place.state == VariantState.ACTIVE]
        inactive = [place for place in places if place.state == VariantState.INACTIVE]
        loaded = [place for place in places if place.state != VariantState.INACTIVE]
        self.admitted = sum(place.admitted for place in active) / len(active) if active else 0.0
        self.active = Ranking((place, place.admitted * _spare(place.load)) for place in active) if active else None
        self.inactive = Ranking((place, _spare(place.load)) for place in inactive) if inactive else None
        self.loaded = Ranking((place, 1 / _moderate(place.load)) for place in loaded) if loaded else None


class States:
    """The states of all variants by place, as they were last seen: made once an update, read by every query."""

    __slots__ = ("by_variant",)

    def __init__(self, states: Mapping[str, Sequence[PlaceState]]) -> None:
        """Prepare states by the variant's name.

        A variant on functions that is missing is inactive; one on instances has no instance that could load it.
        """
        self.by_variant = {variant: VariantPlaces(places) for variant, places in states.items() if places}


def _spare(load: float) -> float:
    """By 1 - load, what two places take would swing ever wider where their loads are above a half, not only above 1."""
    return max(_LEAST, 2.0 - load)


def _moderate(load: float) -> float:
    least, most = _MODERATE
    moderate: float = min(most, max(least, load)) ** _DAMPING
    return moderate
