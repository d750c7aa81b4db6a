"""The ways in which a plan's functions may start: each place of weights, with a snapshot (SnapStart) and without.

A snapshot has the process and its sessions, wherever the weights were when it was made. Restoring it is not billed by
time but by the function's memory, keeping it costs money all the time (`price_snapstart_restored`, `_cached`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from serfer.core.costs.cold_queries import price_cold
from serfer.core.costs.cost_model import HOURS_A_MONTH, Platform, price_plan
from serfer.core.plan import CONTAINER, WEIGHT_PLACES, explained

if TYPE_CHECKING:
    from serfer.core.plan import Plan

_SECONDS_AN_HOUR = 3600
_MB_PER_GB = 1024


@dataclass(frozen=True)
class StartingWay:
    """A way to start: seconds and dollars of a query that finds nothing warm, and of one on average.

    Average is with the platform's share of cold queries. `month_usd` is what snapshots cost a month, whether queries
    come or not. `fits` says that packages hold the weights, `chosen` that all stages of the plan have theirs there.
    """

    weights_in: str
    snapstart: bool
    cold_seconds: float
    cold_usd: float
    seconds: float
    usd: float
    month_usd: float
    fits: bool
    chosen: bool


def starting_ways(plan: Plan, platform: Platform, memory_mb: int | None = None) -> tuple[StartingWay, ...]:
    """Price a plan in every way to start, its own places of weights first replaced by one for all stages."""
    return tuple(
        _way(plan, place, replace(platform, snapstart=snapstart), memory_mb)
        for place, snapstart in product(WEIGHT_PLACES, (False, True))
    )


def _way(plan: Plan, place: str, platform: Platform, memory_mb: int | None) -> StartingWay:
    moved = replace(plan, stages=tuple(replace(stage, weights_in=place) for stage in plan.stages))
    cold, mixed = price_cold(moved, platform, memory_mb), price_plan(moved, platform, memory_mb)
    chosen = not platform.snapstart and all(stage.weights_in == place for stage in plan.stages)
    return StartingWay(
        place,
        platform.snapstart,
        cold.seconds,
        cold.usd,
        sum(stage.seconds for stage in mixed.stages),
        mixed.usd,
        _snapshots_usd(plan, platform, memory_mb) if platform.snapstart else 0.0,
        _fits(moved, place, platform),
        chosen,
    )


def _snapshots_usd(plan: Plan, platform: Platform, memory_mb: int | None) -> float:
    gigabytes = sum((memory_mb or plan.stages[stage].memory_mb) / _MB_PER_GB for stage, _ in plan.functions)
    return gigabytes * _SECONDS_AN_HOUR * HOURS_A_MONTH * platform.functions.price_snapstart_cached


def _fits(plan: Plan, place: str, platform: Platform) -> bool:
    limit = explained(plan.limit)
    most = platform.functions.image_limit if place == CONTAINER else limit.package
    return all(plan.function_bytes(*function) + limit.dependencies <= most for function in plan.functions)
