"""The state of a variant, and what was selected for a query (INFaaS, 4 and 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


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
