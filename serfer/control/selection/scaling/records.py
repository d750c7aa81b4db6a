"""What the scaling of variants is decided from, and its plans (INFaaS, 4.2): symbols of the paper in parentheses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from serfer.core.dataclass_codec import Bounds
from serfer.core.units import MS_PER_S
from serfer.core.variants import Variant

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class InstanceCosts:
    """An instance of a variant: dollars a second (C), saturation queries a second (Q), latency and loading (T).

    `resources` are what it takes by type (R), such as cores, and megabytes of a kind of memory.
    """

    name: str
    network: str
    usd_per_s: Annotated[float, Bounds(0.0)]
    qps: Annotated[float, Bounds(0.0, above=True)]
    latency_ms: Annotated[float, Bounds(0.0)]
    load_s: Annotated[float, Bounds(0.0)]
    resources: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, variant: Variant) -> InstanceCosts:
        """Return what a registered variant's figures say: its memory is of its instance type."""
        return cls(
            variant.name,
            variant.network,
            variant.usd.value * variant.qps.value,
            variant.qps.value,
            variant.latency_ms.value,
            variant.load_ms.value / MS_PER_S,
            {f"{variant.kind or variant.place} memory_mb": variant.peak_mb.value},
        )


@dataclass(frozen=True, slots=True)
class ScalingOptions:
    """The tunable parameters of the paper.

    `slack_threshold` is the least ratio of capacity to load (section 5: 1.05 of 1.01 to 1.1 that were tried).
    `unpredictability` (lambda, 1/s) weighs loading; the paper gives no value, 0.1 counts ten seconds of loading like
    the instance itself (ours). A slot is the Model-Autoscaler's polling interval (section 5: 1 s).
    """

    slack_threshold: Annotated[float, Bounds(1.0, 10.0)] = 1.05
    unpredictability: Annotated[float, Bounds(0.0, 1000.0)] = 0.1
    slot_s: Annotated[float, Bounds(0.0, 3600.0, above=True)] = 1.0


OPTIONS: Final = ScalingOptions()


@dataclass(frozen=True, slots=True)
class LoadObservation:
    """What a scaler sees once a slot: the application's queries a second (L), its SLO (S), what runs and what there is.

    `running` counts instances by variant (N). `available` is the total of each resource type (R_total), in use or not;
    a type that it lacks is unlimited. `overloaded` are running variants that are overloaded wherever they run (4.1).
    """

    rate: Annotated[float, Bounds(0.0)]
    slo_ms: Annotated[float, Bounds(0.0, above=True)]
    running: Mapping[str, int] = field(default_factory=dict)
    available: Mapping[str, float] = field(default_factory=dict)
    overloaded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """Instances of variants to load (positive) and unload (negative), by name, and why.

    `elsewhere` are those for which the worker has no room: the controller is asked for a capable worker. `short_qps` is
    the part of the load, slack included, that is not supported by what runs then.
    """

    changes: Mapping[str, int]
    reason: str
    elsewhere: Mapping[str, int] = field(default_factory=dict)
    short_qps: float = 0.0


def action_cost(variant: InstanceCosts, change: int, options: ScalingOptions) -> float:
    """Return the cost of a scaling action, C (delta + lambda T_load max(delta, 0)) (4.2.1)."""
    return variant.usd_per_s * (change + options.unpredictability * variant.load_s * max(change, 0))


def capacity(variants: Sequence[InstanceCosts], running: Mapping[str, int]) -> float:
    return sum(variant.qps * running.get(variant.name, 0) for variant in variants)


def has_room(variants: Sequence[InstanceCosts], running: Mapping[str, int], available: Mapping[str, float]) -> bool:
    """Return whether what runs fits what there is (constraint 3)."""
    used: dict[str, float] = {}
    for variant in variants:
        for kind, amount in variant.resources.items():
            used[kind] = used.get(kind, 0.0) + amount * running.get(variant.name, 0)
    return all(used.get(kind, 0.0) <= total * (1 + _ROUNDING) for kind, total in available.items())


def changed(running: Mapping[str, int], changes: Mapping[str, int]) -> dict[str, int]:
    return {name: running.get(name, 0) + changes.get(name, 0) for name in {**running, **changes}}
