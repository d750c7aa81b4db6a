"""Case I, a query arrives: the variant and the place that answer it (INFaaS, 4.1: getVariant)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from serfer.control.plug_ins import load
from serfer.control.selection.catalogue import Catalogue, Live, Mask
from serfer.control.selection.places import FUNCTIONS, States
from serfer.core.variants import Objectives, Selection, SelectionReason

_BELOW_ONE: Final = 1.0 - 2**-53


class Selector(Protocol):
    """Selects the variant that answers a query. It is pure and deterministic: no clock, no random numbers, no I/O."""

    def get_variant(self, asked: Objectives, catalogue: Catalogue, states: States, draw: float) -> Selection:
        """Return the variant for a query, and the place; raises UsageError for a variant or network that is unknown.

        `draw`, in [0, 1), is the query's own: drivers that see the same states differ by it (`draw_of`). Strictness is
        the caller's business.
        """
        ...


class InfaasSelector:
    """INFaaS' policy: the cheapest active variant, else the soonest inactive one, else a busy one, else the nearest.

    Which of several active variants answers depends on the draw and on what each admits: the cheapest takes the share
    that keeps its load at the target, the next one its share of the rest, and so on; what none admits is divided among
    all that are loaded, by throughput over the root of the load. With a draw of 0, or where the cheapest has room,
    that is the paper's rule to the letter: the cheapest active variant, at its least loaded place.
    """

    def get_variant(self, asked: Objectives, catalogue: Catalogue, states: States, draw: float) -> Selection:
        live = catalogue.live(states)
        if asked.variant is not None:
            return _at(catalogue.named(asked.variant), asked, catalogue, live, SelectionReason.NAMED, draw)
        meeting = catalogue.meeting(asked)
        chosen = (
            (
                _active(meeting, catalogue, live, draw)
                or _inactive(meeting, asked, catalogue, live, draw)
                or _loaded(meeting, catalogue, live, draw)
            )
            if meeting.any()
            else None
        )
        return chosen or _at(_nearest(asked, catalogue, live), asked, catalogue, live, SelectionReason.NEAREST, draw)


def draw_of(query: str) -> float:
    """Return a query's draw in [0, 1), by the FNV-1a hash of its id with a final mix: the same at every driver."""
    hashed = 0xCBF29CE484222325
    for byte in query.encode():
        hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
    hashed ^= hashed >> 32
    hashed = hashed * 0xD6E8FEB86659FD93 % 2**64
    return (hashed >> 11) / 2**53


def _active(meeting: Mask, catalogue: Catalogue, live: Live, draw: float) -> Selection | None:
    """Return the active variant that a draw falls on, the cheapest first; None where none is active."""
    active = _positions(meeting & live.active)
    taken = 0.0
    for at in active:
        places = live.places[at]
        takes = (1.0 - taken) * places.admitted
        if draw < taken + takes and places.active is not None:
            within = min((draw - taken) / takes, _BELOW_ONE)
            return Selection(catalogue.rows[at].name, SelectionReason.ACTIVE, place=places.active.pick(within))
        taken += takes
    return _loaded(meeting, catalogue, live, (draw - taken) / (1.0 - taken)) if active and taken < 1.0 else None


def _inactive(meeting: Mask, asked: Objectives, catalogue: Catalogue, live: Live, draw: float) -> Selection | None:
    found = np.flatnonzero(meeting & live.inactive)
    if not found.size:
        return None
    at = int(found[catalogue.loaded_ms[found].argmin()])  # the first of the least: ties in the order of dollars
    row, places = catalogue.rows[at], live.places[at].inactive
    if places is None or (asked.latency_ms is not None and row.loaded_ms > asked.latency_ms):
        return None
    return Selection(row.name, SelectionReason.INACTIVE, place=places.pick(draw))


def _loaded(meeting: Mask, catalogue: Catalogue, live: Live, draw: float) -> Selection | None:
    """Return a loaded variant by throughput over the root of the load, the least loaded first; None without one."""
    found = np.flatnonzero(meeting & live.loaded)
    if not found.size:
        return None
    found = found[live.load[found].argsort(kind="stable")]
    weights = live.weight[found].cumsum()
    falls = draw * float(weights[-1])
    nth = min(int(weights.searchsorted(falls, side="right")), found.size - 1)
    at = int(found[nth])
    before = float(weights[nth - 1]) if nth else 0.0
    within = min(max(0.0, (falls - before) / float(live.weight[at])), _BELOW_ONE)
    reason = SelectionReason.ACTIVE if live.active[at] else SelectionReason.BUSY
    ranked = live.places[at].loaded
    return Selection(catalogue.rows[at].name, reason, place=ranked.pick(within) if ranked else "")


def _nearest(asked: Objectives, catalogue: Catalogue, live: Live) -> int:
    """Ties: one that is not busy, then dollars, latency, name. Queries that ask for the same find it again."""
    key = (asked.latency_ms, asked.min_accuracy, asked.max_cost_usd, asked.network)
    if (kept := live.nearest.get(key)) is not None:
        return kept
    among = catalogue.among(asked)
    possible = among & (live.loaded | live.inactive)
    found = np.flatnonzero(possible if possible.any() else among)
    distances = _distances(asked, catalogue, live)[found]
    tied = found[distances == distances.min()]
    free = tied[(live.active | ~live.loaded)[tied]]
    return live.keep_nearest(key, int(free[0] if free.size else tied[0]))


def _distances(asked: Objectives, catalogue: Catalogue, live: Live) -> npt.NDArray[np.float64]:
    """Sum misses relative to what was asked for; dollars above an objective of 0 to the dearest variant's."""
    distances = np.zeros(len(catalogue))
    if asked.latency_ms is not None:
        distances += np.maximum(live.latency_ms - asked.latency_ms, 0.0) / asked.latency_ms
    if asked.min_accuracy:
        distances += np.maximum(asked.min_accuracy - catalogue.accuracy, 0.0) / asked.min_accuracy
    if asked.max_cost_usd is not None:
        scale = asked.max_cost_usd or catalogue.rows[-1].usd or 1.0
        distances += np.maximum(catalogue.usd - asked.max_cost_usd, 0.0) / scale
    return distances


def _at(
    at: int, asked: Objectives, catalogue: Catalogue, live: Live, reason: SelectionReason, draw: float
) -> Selection:
    places = live.places[at]
    ranked = places.active or places.loaded or places.inactive
    missed = _missed(at, asked, catalogue, float(live.latency_ms[at]))
    return Selection(catalogue.rows[at].name, reason, missed, place=ranked.pick(draw) if ranked else "")


def _missed(at: int, asked: Objectives, catalogue: Catalogue, latency_ms: float) -> dict[str, float]:
    row = catalogue.rows[at]
    missed: dict[str, float] = {}
    if asked.latency_ms is not None and latency_ms > asked.latency_ms:
        missed["latency_ms"] = latency_ms - asked.latency_ms
    if asked.min_accuracy is not None and row.accuracy < asked.min_accuracy:
        missed["min_accuracy"] = asked.min_accuracy - row.accuracy
    if asked.max_cost_usd is not None and row.usd > asked.max_cost_usd:
        missed["max_cost_usd"] = row.usd - asked.max_cost_usd
    return missed


def _positions(mask: Mask) -> list[int]:
    positions: list[int] = mask.nonzero()[0].tolist()
    return positions


DEFAULT: Final = "infaas"
_MAX_PLACE: Final = 500  # characters


def make_selector(name: str) -> Selector:
    """Return a selector: built in, plugged in by the entry point group `serfer.selectors`, or MODULE:Class.

    Raises UsageError for an unknown name, and for what is not a class with `get_variant` that is made without
    arguments.
    """
    plug_in = load("selector", "serfer.selectors", name, ("get_variant",), {DEFAULT: InfaasSelector})
    selector: Selector = plug_in.make(checks={"get_variant": _fault_of})
    return selector


def _fault_of(selection: object, _asked: object, catalogue: Catalogue, *_: object) -> str | None:
    if not isinstance(selection, Selection):
        return f"{type(selection).__name__}, not a Selection"
    if selection.variant not in catalogue:
        return f"variant {selection.variant!r:.80}, which the catalogue has not"
    if not isinstance(selection.reason, SelectionReason):
        return f"the reason {selection.reason!r:.80}, not a SelectionReason"
    if not isinstance(selection.place, str) or len(selection.place) > _MAX_PLACE:
        return "a place that is not a short text"
    if not isinstance(selection.missed, dict):
        return f"what it misses as {type(selection.missed).__name__}, not a dictionary"
    return None


# Which inactive variants of functions are worth a warm-up, so that cheaper ones take over from those that are active.
#
# Case I never leaves an active variant that meets the objectives (INFaaS, 4.1), and the paper's case II moves the load
# to a cheaper one because instances cost by the hour. Functions cost by the query: one that is idle costs nothing, and
# a cheaper one is worth having as soon as the queries of a minute would have saved what its warm-up costs.


def worth_warming(asked: Mapping[Objectives, int], catalogue: Catalogue, states: States) -> list[str]:
    """Return the variants to warm up, for queries by their objectives and how many there lately were.

    A warm-up is taken to cost what a query does, and in proportion for the time that loading takes.
    """
    live, found = catalogue.live(states), []
    for objectives, queries in asked.items():
        if objectives.variant is not None:
            continue
        meeting = np.flatnonzero(catalogue.meeting(objectives))  # in the order of dollars
        active = meeting[live.active[meeting]]
        if not active.size or active[0] == meeting[0]:
            continue
        cheap, used = catalogue.rows[meeting[0]], catalogue.rows[active[0]]
        places = live.places[meeting[0]].inactive
        is_cold = places is not None and FUNCTIONS in places.names
        if is_cold and queries * (used.usd - cheap.usd) > cheap.usd * cheap.loaded_ms / max(cheap.latency_ms, 1.0):
            found.append(cheap.name)
    return list(dict.fromkeys(found))
