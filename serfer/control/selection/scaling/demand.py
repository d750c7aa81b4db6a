"""What queries ask of instances: the load by network that case II is decided from (INFaaS, 4.2), from objectives.

A query counts where a variant on instances meets its objectives, whether an instance or functions answered it: the load
is what instances answer or should answer. It counts for the network of the cheapest such variant, since upgrades stay
within a network. One that names a variant on instances counts for that variant, too; one that names functions does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final

from serfer.core.dataclass_codec import Bounds
from serfer.core.variants import Objectives, Place, Variant

NO_SLO: Final = 1e9
"""Milliseconds that stand for no objective of latency."""
_FEW: Final = 0.05
_KEPT: Final = 1000
_Rate = Annotated[float, Bounds(0.0, 1e9)]


@dataclass(frozen=True, slots=True)
class NetworkDemand:
    """The queries a second that instances with a network answer or should answer; with `variant`, with that alone.

    `slo_ms`, `min_accuracy` and `max_cost_usd` are the strictest objectives that at least a twentieth of them have.
    Functions would answer them for `functions_usd` dollars a second, but for those that no variant on functions is good
    enough for: `stranded` queries a second.
    """

    network: str
    variant: str = ""
    rate: _Rate = 0.0
    slo_ms: Annotated[float, Bounds(0.0, NO_SLO, above=True)] = NO_SLO
    min_accuracy: Annotated[float, Bounds(0.0, 1.0)] = 0.0
    max_cost_usd: Annotated[float, Bounds(0.0)] | None = None
    functions_usd: _Rate = 0.0
    stranded: _Rate = 0.0

    @property
    def key(self) -> tuple[str, str]:
        return self.network, self.variant


class Demanding:
    """Says what queries ask of instances, by the variants that may answer them; it remembers some objectives."""

    def __init__(self, variants: Mapping[str, Variant]) -> None:
        self._variants = variants
        self._cheapest_first = sorted(
            variants.values(), key=lambda variant: (variant.usd.value, variant.latency_ms.value, variant.name)
        )
        self._known: dict[Objectives, tuple[NetworkDemand, ...]] = {}

    def demands(self, asked: Mapping[Objectives, float]) -> list[NetworkDemand]:
        """Return the demand by network, and by variant where queries name one, of queries a second by objectives."""
        parts: dict[tuple[str, str], list[NetworkDemand]] = {}
        for objectives, rate in asked.items():
            for demand in self._of_one(objectives):
                parts.setdefault(demand.key, []).append(_times(demand, rate))
        return [_joined(of, sum(part.rate for part in of) * _FEW) for of in parts.values()]

    def _of_one(self, objectives: Objectives) -> tuple[NetworkDemand, ...]:
        found = self._known.get(objectives)
        if found is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            found = self._known[objectives] = self._looked_up(objectives)
        return found

    def _looked_up(self, asked: Objectives) -> tuple[NetworkDemand, ...]:
        """Return what queries of the same objectives are the demand of: nothing where no instance is good enough."""
        if asked.variant is not None:
            named = self._variants.get(asked.variant)
            if named is None or named.place is not Place.INSTANCE:
                return ()
            stranded = NetworkDemand(named.network, rate=1.0, stranded=1.0)
            return stranded, replace(stranded, variant=named.name)
        on_instances, functions = (
            next(
                (variant for variant in self._cheapest_first if variant.place is place and _meets(variant, asked)), None
            )
            for place in (Place.INSTANCE, Place.FUNCTIONS)
        )
        if on_instances is None:
            return ()
        part = NetworkDemand(
            on_instances.network,
            rate=1.0,
            slo_ms=min(NO_SLO, asked.latency_ms or NO_SLO),
            min_accuracy=asked.min_accuracy or 0.0,
            max_cost_usd=asked.max_cost_usd,
            functions_usd=functions.usd.value if functions else 0.0,
            stranded=0.0 if functions else 1.0,
        )
        return (part,)


def total(drivers: Iterable[Iterable[NetworkDemand]]) -> dict[tuple[str, str], NetworkDemand]:
    parts: dict[tuple[str, str], list[NetworkDemand]] = {}
    for own in drivers:
        for demand in own:
            parts.setdefault(demand.key, []).append(demand)
    return {key: _joined(of, 0.0) for key, of in parts.items()}


def _times(demand: NetworkDemand, rate: float) -> NetworkDemand:
    return replace(demand, rate=rate, functions_usd=demand.functions_usd * rate, stranded=demand.stranded * rate)


def _meets(variant: Variant, asked: Objectives) -> bool:
    return (
        (asked.network is None or variant.network == asked.network)
        and (asked.latency_ms is None or variant.latency_ms.value <= asked.latency_ms)
        and (asked.min_accuracy is None or variant.least_accuracy >= asked.min_accuracy)
        and (asked.max_cost_usd is None or variant.usd.value <= asked.max_cost_usd)
    )


def _joined(parts: list[NetworkDemand], least: float) -> NetworkDemand:
    usual = [part for part in parts if part.rate >= least]
    bounds = [part.max_cost_usd for part in usual if part.max_cost_usd is not None]
    return replace(
        parts[0],
        rate=sum(part.rate for part in parts),
        slo_ms=min((part.slo_ms for part in usual), default=NO_SLO),
        min_accuracy=max((part.min_accuracy for part in usual), default=0.0),
        max_cost_usd=min(bounds, default=None),
        functions_usd=sum(part.functions_usd for part in parts),
        stranded=sum(part.stranded for part in parts),
    )
