"""Case I, a query arrives: the variant and the place that answer it (INFaaS, 4.1: getVariant)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from serfer.control.selection.catalogue import Catalogue, Row, Rows
from serfer.control.selection.places import Ranked, States, VariantPlaces
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
    that keeps its load at the target, the next one its share of the rest, and so on; what nobody admits is divided
    alike. With a draw of 0, or where all have room, that is the paper's rule to the letter: the cheapest active
    variant, at its least loaded place.
    """

    def get_variant(self, asked: Objectives, catalogue: Catalogue, states: States, draw: float) -> Selection:
        """Return the variant for a query (INFaaS, 4.1); raises UsageError for a variant or network that is unknown."""
        if asked.variant is not None:
            row = catalogue.named(asked.variant)
            return _at(row, asked, states.by_variant.get(row.name, row.unseen), SelectionReason.NAMED, draw)
        rows = catalogue.among(asked)
        mask = rows.mask(asked)
        meeting = [(row, states.by_variant.get(row.name, row.unseen)) for row in rows.cheapest(mask)]
        if (chosen := _active(meeting, draw)) is not None:
            return chosen
        for row in rows.soonest(mask):
            if asked.latency_ms is not None and row.loaded_ms > asked.latency_ms:
                break
            if (places := states.by_variant.get(row.name, row.unseen).inactive) is not None:
                return Selection(row.name, SelectionReason.INACTIVE, place=places.pick(draw))
        return _busy(meeting, draw) or _nearest(rows, asked, states, draw)


def draw_of(query: str) -> float:
    """Return a query's draw in [0, 1), by the FNV-1a hash of its id with a final mix: the same at every driver."""
    hashed = 0xCBF29CE484222325
    for byte in query.encode():
        hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
    hashed ^= hashed >> 32
    hashed = hashed * 0xD6E8FEB86659FD93 % 2**64
    return (hashed >> 11) / 2**53


def _active(meeting: Iterable[tuple[Row, VariantPlaces]], draw: float) -> Selection | None:
    """Return the active variant that a draw falls on, the cheapest first; None where none is active."""
    offered: list[tuple[Row, Ranked, float]] = []
    left = 1.0
    for row, places in meeting:
        if places.active is not None:
            offered.append((row, places.active, left * places.admitted))
            left *= 1.0 - places.admitted
            if left <= 0.0:
                break
    if not offered:
        return None
    row, ranked, rest = _draw(offered, draw, 1.0 - left)
    return Selection(row.name, SelectionReason.ACTIVE, place=ranked.pick(rest))


def _busy(meeting: Iterable[tuple[Row, VariantPlaces]], draw: float) -> Selection | None:
    """Return a busy variant, the least loaded first, weighted by throughput over load; None where none is."""
    busy = [(row, places.busy) for row, places in meeting if places.busy is not None]
    if not busy:
        return None
    busy.sort(key=lambda each: each[1].least_load)
    offered = [(row, ranked, max(row.qps, 1e-9) * ranked.weight) for row, ranked in busy]
    row, ranked, rest = _draw(offered, draw, sum(weight for _, _, weight in offered))
    return Selection(row.name, SelectionReason.BUSY, place=ranked.pick(rest))


def _draw(offered: list[tuple[Row, Ranked, float]], draw: float, total: float) -> tuple[Row, Ranked, float]:
    """Return what a draw falls on by weight, with the draw within it, in [0, 1) again."""
    at = draw * total
    for row, ranked, weight in offered:
        if at < weight:
            return row, ranked, at / weight
        at -= weight
    row, ranked, _ = offered[-1]  # rounding
    return row, ranked, _BELOW_ONE


def _nearest(rows: Rows, asked: Objectives, states: States, draw: float) -> Selection:
    """Return the variant that misses the objectives by least, of those that a place could answer if there are any.

    Ties: one that is not busy, then dollars, latency, name.
    """
    scale = asked.max_cost_usd or rows.rows[-1].usd or 1.0
    best: tuple[bool, float, bool, int] | None = None
    nearest, where = rows.rows[0], rows.rows[0].unseen
    for at, row in enumerate(rows.rows):
        places = states.by_variant.get(row.name, row.unseen)
        rank = (_is_nowhere(places), _distance(row, asked, _latency_ms(row, places), scale), _is_busy(places), at)
        if best is None or rank < best:
            best, nearest, where = rank, row, places
    return _at(nearest, asked, where, SelectionReason.NEAREST, draw)


def _at(row: Row, asked: Objectives, places: VariantPlaces, reason: SelectionReason, draw: float) -> Selection:
    """Return a selection of a variant at the best of its places, with what it misses there."""
    ranked = places.active or places.busy or places.inactive
    missed = _missed(row, asked, _latency_ms(row, places))
    return Selection(row.name, reason, missed, place=ranked.pick(draw) if ranked else "")


def _latency_ms(row: Row, places: VariantPlaces) -> float:
    """Return a query's time where the variant is: with loading where it is not loaded anywhere."""
    return row.latency_ms if places.active or places.busy else row.loaded_ms


def _is_busy(places: VariantPlaces) -> bool:
    return places.active is None and places.busy is not None


def _is_nowhere(places: VariantPlaces) -> bool:
    return not (places.active or places.busy or places.inactive)


def _missed(row: Row, asked: Objectives, latency_ms: float) -> dict[str, float]:
    """Return by how much a variant misses each objective, in its unit; without those that it meets."""
    missed: dict[str, float] = {}
    if asked.latency_ms is not None and latency_ms > asked.latency_ms:
        missed["latency_ms"] = latency_ms - asked.latency_ms
    if asked.min_accuracy is not None and row.accuracy < asked.min_accuracy:
        missed["min_accuracy"] = asked.min_accuracy - row.accuracy
    if asked.max_cost_usd is not None and row.usd > asked.max_cost_usd:
        missed["max_cost_usd"] = row.usd - asked.max_cost_usd
    return missed


def _distance(row: Row, asked: Objectives, latency_ms: float, usd: float) -> float:
    """Return the sum of the misses, each relative to what was asked for: a tenth too late is a tenth too dear.

    `usd` is the objective, or the dearest variant's dollars where it is 0.
    """
    distance = 0.0
    if asked.latency_ms is not None and latency_ms > asked.latency_ms:
        distance += (latency_ms - asked.latency_ms) / asked.latency_ms
    if asked.min_accuracy is not None and row.accuracy < asked.min_accuracy:
        distance += (asked.min_accuracy - row.accuracy) / asked.min_accuracy
    if asked.max_cost_usd is not None and row.usd > asked.max_cost_usd:
        distance += (row.usd - asked.max_cost_usd) / usd
    return distance
