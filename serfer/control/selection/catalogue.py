"""The variants that may answer an application's queries, prepared once a release so that a query finds its own fast."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from serfer.control.selection.places import FUNCTIONS, PlaceState, States, VariantPlaces
from serfer.core.errors import UsageError
from serfer.core.variants import Objectives, Place, Variant, VariantState

Mask = npt.NDArray[np.bool_]
Key = tuple[float | None, float | None, float | None, str | None]
"""Latency, accuracy, dollars and network that a query asks for."""

_COLD: Final = VariantPlaces([PlaceState(FUNCTIONS, VariantState.INACTIVE)])
_NOWHERE: Final = VariantPlaces([])
_NAMED: Final = 20
"""Names that an error has at most."""
_KEPT: Final = 1000
"""Objectives whose nearest variant is remembered while states stay."""
_LEAST_QPS: Final = 1e-9


class Row:
    """A variant's figures as plain numbers, and `unseen`: its places where nothing is known of it."""

    __slots__ = ("accuracy", "latency_ms", "loaded_ms", "name", "network", "qps", "unseen", "usd")

    def __init__(self, variant: Variant) -> None:
        self.name, self.network = variant.name, variant.network
        self.latency_ms = variant.latency_ms.value
        self.loaded_ms = variant.latency_ms.value + variant.load_ms.value
        self.accuracy, self.usd = variant.least_accuracy, variant.usd.value
        self.qps = max(_LEAST_QPS, variant.qps.value)
        self.unseen = _COLD if variant.place == Place.FUNCTIONS else _NOWHERE


class Live:
    """The states of a catalogue's variants, in its order: prepared once an update.

    `active`, `inactive` and `loaded` (active or busy) say which have such a place. `latency_ms` is a query's time where
    the variant is: with loading where it is not loaded anywhere. `load` is the least of its loaded places', `weight`
    the sum of their throughputs over the roots of their loads.
    """

    __slots__ = ("active", "inactive", "latency_ms", "load", "loaded", "nearest", "places", "weight")

    def __init__(self, rows: tuple[Row, ...], states: States) -> None:
        self.nearest: dict[Key, int] = {}
        self.places = tuple(states.by_variant.get(row.name, row.unseen) for row in rows)
        self.active = np.array([place.active is not None for place in self.places])
        self.inactive = np.array([place.inactive is not None for place in self.places])
        self.loaded = np.array([place.loaded is not None for place in self.places])
        at = list(zip(rows, self.places, strict=True))
        self.latency_ms = np.array([row.latency_ms if state.loaded else row.loaded_ms for row, state in at])
        self.load = np.array([place.loaded.least_load if place.loaded else 0.0 for place in self.places])
        self.weight = np.array([row.qps * state.loaded.weight if state.loaded else 0.0 for row, state in at])

    def keep_nearest(self, key: Key, at: int) -> int:
        if len(self.nearest) >= _KEPT:
            self.nearest.clear()
        self.nearest[key] = at
        return at


class Catalogue:
    """The variants of a release or a canary in the order of their dollars, ties by latency, then name."""

    def __init__(self, variants: Iterable[Variant]) -> None:
        """Prepare variants; raises UsageError where there are none, or two have one name."""
        self.rows = tuple(sorted(map(Row, variants), key=lambda row: (row.usd, row.latency_ms, row.name)))
        if not self.rows:
            raise UsageError("a catalogue needs a variant: register a network first")
        self._by_name = {row.name: at for at, row in enumerate(self.rows)}
        if len(self._by_name) < len(self.rows):
            raise UsageError("two variants of a catalogue have one name")
        self._by_network = {
            name: np.array([row.network == name for row in self.rows]) for name in {row.network for row in self.rows}
        }
        self.latency_ms = np.array([row.latency_ms for row in self.rows])
        self.loaded_ms = np.array([row.loaded_ms for row in self.rows])
        self.accuracy = np.array([row.accuracy for row in self.rows])
        self.usd = np.array([row.usd for row in self.rows])
        self._every = np.ones(len(self.rows), dtype=bool)
        self._live: tuple[States, Live] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def live(self, states: States) -> Live:
        """Return the variants' states, prepared when these states are first seen.

        That takes as long as ten selections: call it when new states arrive, so that no query waits for it.
        """
        kept = self._live
        if kept is None or kept[0] is not states:
            self._live = kept = states, Live(self.rows, states)
        return kept[1]

    def named(self, name: str) -> int:
        if (at := self._by_name.get(name)) is None:
            raise UsageError(f"there is no variant {name!r:.80}: there are {_some(self._by_name)}")
        return at

    def among(self, asked: Objectives) -> Mask:
        if asked.network is None:
            return self._every
        if (mask := self._by_network.get(asked.network)) is None:
            raise UsageError(f"there is no network {asked.network!r:.80}: there are {_some(self._by_network)}")
        return mask

    def meeting(self, asked: Objectives) -> Mask:
        """Return which variants meet the objectives where they are loaded, an accuracy by the interval's lower end."""
        mask = self.among(asked)
        if asked.latency_ms is not None:
            mask = mask & (self.latency_ms <= asked.latency_ms)
        if asked.min_accuracy is not None:
            mask = mask & (self.accuracy >= asked.min_accuracy)
        if asked.max_cost_usd is not None:
            mask = mask & (self.usd <= asked.max_cost_usd)
        return mask


def _some(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
