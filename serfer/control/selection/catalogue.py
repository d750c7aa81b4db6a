"""The variants that may answer an application's queries, prepared once a release so that a query finds its own fast."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from serfer.control.selection.places import FUNCTIONS, PlaceState, VariantPlaces
from serfer.core.errors import UsageError
from serfer.core.variants import Objectives, Place, Variant, VariantState

_COLD: Final = VariantPlaces([PlaceState(FUNCTIONS, VariantState.INACTIVE)])
_NOWHERE: Final = VariantPlaces([])
_NAMED: Final = 20
"""Names that an error has at most."""


class Row:
    """A variant's figures as plain numbers, and `unseen`: its places where nothing is known of it."""

    __slots__ = ("accuracy", "latency_ms", "loaded_ms", "name", "network", "qps", "unseen", "usd")

    def __init__(self, variant: Variant) -> None:
        """Take over a variant; `loaded_ms` are loading and latency."""
        self.name, self.network = variant.name, variant.network
        self.latency_ms = variant.latency_ms.value
        self.loaded_ms = variant.latency_ms.value + variant.load_ms.value
        self.accuracy, self.usd, self.qps = variant.least_accuracy, variant.usd.value, variant.qps.value
        self.unseen = _COLD if variant.place == Place.FUNCTIONS else _NOWHERE


class Rows:
    """Variants in the order of their dollars, ties by latency, then name."""

    __slots__ = ("_accuracy", "_latency_ms", "_soonest", "_usd", "rows")

    def __init__(self, rows: Iterable[Row]) -> None:
        """Sort variants, and lay their figures out as arrays."""
        self.rows = tuple(sorted(rows, key=lambda row: (row.usd, row.latency_ms, row.name)))
        self._latency_ms = np.array([row.latency_ms for row in self.rows])
        self._accuracy = np.array([row.accuracy for row in self.rows])
        self._usd = np.array([row.usd for row in self.rows])
        loaded = [row.loaded_ms for row in self.rows]
        self._soonest = np.array(sorted(range(len(loaded)), key=lambda at: (loaded[at], at)), dtype=np.intp)

    def mask(self, asked: Objectives) -> npt.NDArray[np.bool_]:
        """Return which variants meet the objectives where they are loaded, in the order of dollars."""
        mask: Any = None
        if asked.latency_ms is not None:
            mask = self._latency_ms <= asked.latency_ms
        if asked.min_accuracy is not None:
            accurate = self._accuracy >= asked.min_accuracy
            mask = accurate if mask is None else mask & accurate
        if asked.max_cost_usd is not None:
            cheap = self._usd <= asked.max_cost_usd
            mask = cheap if mask is None else mask & cheap
        return np.ones(len(self.rows), dtype=bool) if mask is None else mask

    def cheapest(self, mask: npt.NDArray[np.bool_]) -> list[Row]:
        """Return the variants of a mask, the cheapest first."""
        rows = self.rows
        return [rows[at] for at in mask.nonzero()[0].tolist()]

    def soonest(self, mask: npt.NDArray[np.bool_]) -> list[Row]:
        """Return the variants of a mask by loading plus inference time, ties as in the order of dollars."""
        rows = self.rows
        return [rows[at] for at in self._soonest[mask[self._soonest]].tolist()]


class Catalogue:
    """The variants of a release, or of a canary."""

    def __init__(self, variants: Iterable[Variant]) -> None:
        """Prepare variants; raises UsageError where there are none, or two have one name."""
        rows = [Row(variant) for variant in variants]
        if not rows:
            raise UsageError("a catalogue needs a variant: register a network first")
        self._by_name = {row.name: row for row in rows}
        if len(self._by_name) < len(rows):
            raise UsageError("two variants of a catalogue have one name")
        self._all = Rows(rows)
        networks = sorted({row.network for row in rows})
        self._by_network = {name: Rows(row for row in rows if row.network == name) for name in networks}

    def __len__(self) -> int:
        """Return the number of variants."""
        return len(self._by_name)

    def named(self, name: str) -> Row:
        """Return a variant by its name; raises UsageError for one that is unknown."""
        if (row := self._by_name.get(name)) is None:
            raise UsageError(f"there is no variant {name!r:.80}: there are {_some(self._by_name)}")
        return row

    def among(self, asked: Objectives) -> Rows:
        """Return the variants of the network that a query names, or all; raises UsageError for an unknown network."""
        if asked.network is None:
            return self._all
        if (rows := self._by_network.get(asked.network)) is None:
            raise UsageError(f"there is no network {asked.network!r:.80}: there are {_some(self._by_network)}")
        return rows


def _some(names: Iterable[str]) -> str:
    """Return names in words, the first of them where they are many."""
    every = sorted(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
