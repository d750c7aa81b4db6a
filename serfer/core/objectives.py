"""What a query asks for in place of a model, and what was selected for it (INFaaS, 3.1 and 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from serfer.core.structure import Bounds


class VariantState(StrEnum):
    """The state of a variant at a place (INFaaS, section 4, figure 4)."""

    INACTIVE = "inactive"
    """Not loaded: its functions are cold, or no instance has it."""
    ACTIVE = "active"
    """Loaded, and serving less than its peak throughput."""
    OVERLOADED = "overloaded"
    """Serving at its peak throughput."""
    INTERFERED = "interfered"
    """Not overloaded, but slower than profiled."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a query asks for; None for what it does not say.

    `latency_ms` is the longest time of an answer, `min_accuracy` a share of correct answers, `max_cost_usd` the dollars
    of the query. `variant` names a variant, and `network` a registered network whose variants alone may answer. Where
    they are `strict`, a query that no variant can satisfy is refused rather than answered by the nearest variant.
    """

    latency_ms: Annotated[float, Bounds(0.0, above=True)] | None = None
    min_accuracy: Annotated[float, Bounds(0.0, 1.0)] | None = None
    max_cost_usd: Annotated[float, Bounds(0.0)] | None = None
    variant: str | None = None
    network: str | None = None
    strict: bool = False


NO_OBJECTIVES: Final = Objectives()
OBJECTIVES: Final = ("latency_ms", "min_accuracy", "max_cost_usd", "variant", "network")
"""Names of what a query may ask for, as parameters of requests."""


class SelectionReason(StrEnum):
    """Why a variant was selected; the values are labels of metrics."""

    ACTIVE = "the cheapest active variant that meets the objectives"
    INACTIVE = "the inactive variant that meets them soonest, loading included"
    NEAREST = "no variant meets the objectives: the nearest one"
    BUSY = "the variants that meet the objectives are overloaded, interfered or full: the least loaded first"
    NAMED = "named by the query"


@dataclass(frozen=True, slots=True)
class Selection:
    """The variant that answers a query, and why.

    `missed` says by how much it misses each objective, by the objective's name and in its unit; empty where it meets
    all of them. `place` is where it runs or is to be loaded: an instance, or "functions"; empty for a variant of
    instances where none is on that could load it.
    """

    variant: str
    reason: SelectionReason
    missed: dict[str, float] = field(default_factory=dict)
    place: str = ""

    @property
    def meets(self) -> bool:
        """Whether the variant meets every objective."""
        return not self.missed
