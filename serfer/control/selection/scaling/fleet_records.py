"""What the scaling of instances that hold variants is decided from, once a slot, and what is decided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from serfer.control.selection.scaling.demand import NetworkDemand
from serfer.core.http_messages import ModelStatus
from serfer.core.variants import Variant, VariantState

Key = tuple[str, str]
"""An application and a variant of it."""


@dataclass(frozen=True, slots=True)
class CopySeen:
    """A variant at an instance that has it, in memory or not: `size_mb` is what it takes there when it is.

    `loading` also counts what was asked for a moment ago. `idle_s` is the time since its last query, None for never.
    """

    status: ModelStatus
    size_mb: float
    state: VariantState = VariantState.INACTIVE
    idle_s: float | None = None
    waiting: int = 0

    @property
    def there(self) -> bool:
        return self.status != "unloaded"


@dataclass(frozen=True, slots=True)
class InstanceSeen:
    """An instance of a pool: one that does not serve yet `boots`, one that is to end `leaves`.

    A `memory_mb` of None is no bound. `copies` are its variants; those in `blocked` could not be loaded lately.
    """

    name: str
    pool: str
    copies: Mapping[Key, CopySeen] = field(default_factory=dict)
    memory_mb: float | None = None
    utilisation: float = 0.0
    boots: bool = False
    leaves: bool = False
    blocked: frozenset[Key] = frozenset()

    @property
    def serves(self) -> bool:
        return not self.boots and not self.leaves


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """A pool: `most` instances of a type, each of which takes about `boot_s` seconds to start.

    One that is `fixed` is managed elsewhere: none is started or stopped, and no variant goes for lack of load. The pool
    whose name is empty takes variants for any type that has no pool of its own.
    """

    most: int
    boot_s: float
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class FleetObservation:
    """What is seen once a slot: instances in the order of their age, applications' variants and demand, and prices.

    `prices` are dollars an hour of an instance by pool, `max_usd_per_hour` what all of them may cost.
    """

    now_s: float
    elapsed_s: float
    instances: tuple[InstanceSeen, ...]
    variants: Mapping[Key, Variant]
    demand: Mapping[str, Mapping[tuple[str, str], NetworkDemand]]
    prices: Mapping[str, float]
    max_usd_per_hour: float = math.inf


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What to do: variants to load and unload at instances, by name, and how many instances each pool shall have.

    `spare` are those of which nothing was needed for a while: they go first. `desired` counts the copies of each
    variant that are to be, `reasons` says why, by application.
    """

    load: tuple[tuple[str, Key], ...] = ()
    unload: tuple[tuple[str, Key], ...] = ()
    wanted: Mapping[str, int] = field(default_factory=dict)
    spare: frozenset[str] = frozenset()
    desired: Mapping[Key, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
