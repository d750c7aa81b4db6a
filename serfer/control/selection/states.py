"""The state machine of a variant at a place, kept from signals (INFaaS, section 4, figure 4).

    INACTIVE ──► ACTIVE           loaded, or environments are warm
    ACTIVE ──► OVERLOADED         at its peak: utilisation, a queue, or throttles
    ACTIVE ──► INTERFERED         not overloaded, but slower than profiled
    OVERLOADED, INTERFERED ──► ACTIVE, and to one another, as signals say
    any ──► INACTIVE              unloaded, most queries met a cold start, or not seen for `lost_s`

A threshold to leave a state is below the one to enter it, so that a signal beside a threshold does not flap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from serfer.control.selection.places import PlaceState, States
from serfer.core.dataclass_codec import Bounds
from serfer.core.variants import Place, VariantState

_LEAST_LOAD: Final = 1e-3
"""Loads below are taken for this one where they divide."""


@dataclass(frozen=True, slots=True)
class VariantSignals:
    """What is seen of a variant at a place.

    `warm` counts loaded copies (instances: 0 or 1) or warm environments of a whole query (functions). `share` is the
    utilisation of the instance by the variant and its neighbours, or the share of the functions' concurrency in use.
    `waiting` are queries in a queue, in units of what the place answers at once (a full batch, or the concurrency).
    `throttles` are refusals in the last period. `latency_ratio` is the observed time of warm queries over the profiled
    one of instances, or the predicted one of functions; None where none was answered. `cold_share` is the share of the
    last period's queries that met a cold start. `age_s` are the seconds since all of that was seen.
    """

    place: Place
    warm: Annotated[int, Bounds(0)]
    share: Annotated[float, Bounds(0.0)] = 0.0
    waiting: Annotated[float, Bounds(0.0)] = 0.0
    throttles: Annotated[int, Bounds(0)] = 0
    latency_ratio: Annotated[float, Bounds(0.0)] | None = None
    cold_share: Annotated[float, Bounds(0.0, 1.0)] = 0.0
    age_s: Annotated[float, Bounds(0.0)] = 0.0

    @property
    def load(self) -> float:
        """The load as a share of capacity, above 1 where queries wait; at least 1 where some were throttled."""
        load = self.share + self.waiting
        return max(load, 1.0) if self.throttles else load


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a variant changes its state, and how fast the queries that a place takes follow its load.

    `period_s`: the paper's interval of the monitoring daemon (section 5). Older signals are stale: states stay as they
    are. `lost_s`: five periods (ours); from then on the place counts as inactive.

    `overloaded`: headroom below the paper's slack-threshold of 1.05 (section 5), `recovered`: the utilisation at which
    the paper adds workers (4.2.3). `waiting`: a full batch more than what runs, and half of it (ours). One throttle
    is peak throughput by Lambda's own word.

    `interfered`: the paper says "higher inference latencies than the profiled values" (section 4), without a figure;
    1.2 is above the spread of the profiler's 95th percentile, 1.5 that of predicted plans (ours); undisturbed at 1.1
    and 1.25. `cold`: where half of the queries meet a cold start, a query has to count it; a quarter to return (ours).

    `target` is the load that a place is filled to before the next dearer variant shares: the paper's 80% (4.2.3). The
    admitted share moves by (target / load) ** gain: a quarter is the largest gain that does not swing where states are
    a period old (docs/explanation/selection.md). In a period it falls to `cut` at least, and to that where the variant
    is interfered; it grows by `growth` at most, stays above `least`, and is `first` when a place becomes active.
    """

    period_s: Annotated[float, Bounds(0.1, 60.0)] = 2.0
    lost_s: Annotated[float, Bounds(0.1, 3600.0)] = 10.0
    overloaded: Annotated[float, Bounds(0.0, above=True)] = 1 / 1.05
    recovered: Annotated[float, Bounds(0.0, above=True)] = 0.8
    waiting: Annotated[float, Bounds(0.0, above=True)] = 1.0
    waited: Annotated[float, Bounds(0.0, above=True)] = 0.5
    interfered_instance: Annotated[float, Bounds(1.0)] = 1.2
    undisturbed_instance: Annotated[float, Bounds(1.0)] = 1.1
    interfered_functions: Annotated[float, Bounds(1.0)] = 1.5
    undisturbed_functions: Annotated[float, Bounds(1.0)] = 1.25
    cold: Annotated[float, Bounds(0.0, 1.0, above=True)] = 0.5
    warmed: Annotated[float, Bounds(0.0, 1.0, above=True)] = 0.25
    target: Annotated[float, Bounds(0.0, above=True)] = 0.8
    gain: Annotated[float, Bounds(0.0, 1.0, above=True)] = 0.25
    growth: Annotated[float, Bounds(1.0, 10.0)] = 1.5
    cut: Annotated[float, Bounds(0.0, 1.0, above=True)] = 0.5
    least: Annotated[float, Bounds(0.0, 1.0, above=True)] = 0.02
    first: Annotated[float, Bounds(0.0, 1.0, above=True)] = 0.25


THRESHOLDS: Final = Thresholds()


def next_state(before: VariantState, seen: VariantSignals) -> VariantState:
    """Return the state that follows from signals and the state before; stale signals leave it as it is."""
    if seen.age_s > THRESHOLDS.lost_s or not seen.warm:
        return VariantState.INACTIVE
    if seen.age_s > THRESHOLDS.period_s:
        return before
    if _is_overloaded(before, seen):
        return VariantState.OVERLOADED
    if seen.cold_share >= (THRESHOLDS.warmed if before == VariantState.INACTIVE else THRESHOLDS.cold):
        return VariantState.INACTIVE
    return VariantState.INTERFERED if _is_interfered(before, seen) else VariantState.ACTIVE


def _is_overloaded(before: VariantState, seen: VariantSignals) -> bool:
    is_already = before == VariantState.OVERLOADED
    share = THRESHOLDS.recovered if is_already else THRESHOLDS.overloaded
    waiting = THRESHOLDS.waited if is_already else THRESHOLDS.waiting
    return seen.throttles > 0 or seen.share >= share or seen.waiting >= waiting


def _is_interfered(before: VariantState, seen: VariantSignals) -> bool:
    is_already = before == VariantState.INTERFERED
    if seen.latency_ratio is None:  # avoided, it would never be seen to be fast again: few queries try it
        return False
    if seen.place == Place.INSTANCE:
        return seen.latency_ratio >= (THRESHOLDS.undisturbed_instance if is_already else THRESHOLDS.interfered_instance)
    return seen.latency_ratio >= (THRESHOLDS.undisturbed_functions if is_already else THRESHOLDS.interfered_functions)


class StateTracker:
    """The states of all variants at all places, from one set of signals to the next, and the share that each admits."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], PlaceState] = {}

    @property
    def places(self) -> Mapping[tuple[str, str], PlaceState]:
        return self._kept

    def observe(self, signals: Mapping[tuple[str, str], VariantSignals]) -> States:
        """Return the states that follow from signals by (variant, place); what is missing in them is forgotten."""
        self._kept = {key: self._next(key, seen) for key, seen in signals.items()}
        by_variant: dict[str, list[PlaceState]] = {}
        for (variant, _), state in self._kept.items():
            by_variant.setdefault(variant, []).append(state)
        return States(by_variant)

    def state(self, variant: str, place: str) -> VariantState:
        kept = self._kept.get((variant, place))
        return kept.state if kept else VariantState.INACTIVE

    def _next(self, key: tuple[str, str], seen: VariantSignals) -> PlaceState:
        before = self._kept.get(key) or PlaceState(key[1], VariantState.INACTIVE, 0.0, THRESHOLDS.first)
        state = next_state(before.state, seen)
        return PlaceState(key[1], state, seen.load, self._admitted(before, state, seen))

    def _admitted(self, before: PlaceState, state: VariantState, seen: VariantSignals) -> float:
        """A place that takes no queries, because it is busy, learns nothing from being idle."""
        if state == VariantState.INACTIVE:
            return THRESHOLDS.first
        if seen.age_s > THRESHOLDS.period_s or before.state == VariantState.INACTIVE:
            return before.admitted
        factor: float = (THRESHOLDS.target / max(seen.load, _LEAST_LOAD)) ** THRESHOLDS.gain
        is_busy = state != VariantState.ACTIVE or before.state != VariantState.ACTIVE
        most = 1.0 if is_busy else THRESHOLDS.growth
        if state == VariantState.INTERFERED:
            most = THRESHOLDS.cut
        return min(1.0, max(THRESHOLDS.least, before.admitted * min(most, max(THRESHOLDS.cut, factor))))
