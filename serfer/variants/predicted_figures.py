"""What the cost model predicts of a plan's functions, as a variant's figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cold_queries import price_cold
from serfer.core.costs.cost_model import Platform, price_plan
from serfer.core.costs.pricing import cold_share_of
from serfer.core.dataclass_codec import Bounds
from serfer.core.plan import Plan
from serfer.core.units import MS_PER_S

P95: Final = 0.95


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """Predictions for queries of one image: milliseconds of a warm one, `load_ms` what a cold one waits in addition.

    `usd` are expected, with the share of cold queries that the plan was chosen for.
    `memory_mb` is the largest function's, `qps` what an account's concurrency answers, `tasks` those of a query.
    """

    latency_ms: Annotated[float, Bounds(0.0)]
    load_ms: Annotated[float, Bounds(0.0)]
    usd: Annotated[float, Bounds(0.0)]
    qps: Annotated[float, Bounds(0.0)]
    memory_mb: Annotated[int, Bounds(1)]
    tasks: Annotated[int, Bounds(1)]


def predicted(plan: Plan, facts: AwsFacts) -> PlanFigures:
    """Predict a plan's figures by the cost model, over the store that it was made for."""
    platform = Platform.over(facts, plan.store)
    warm, mixed = (price_plan(plan, replace(platform, cold_share=share)) for share in (0.0, cold_share_of(plan)))
    seconds = sum(stage.tasks * stage.seconds for stage in warm.stages)  # of all environments that a query holds
    return PlanFigures(
        latency_ms=warm.latency.quantile(P95) * MS_PER_S,
        load_ms=max(0.0, price_cold(plan, platform).seconds - warm.latency.mean) * MS_PER_S,
        usd=mixed.usd,
        qps=facts.functions.concurrency / seconds,
        memory_mb=max(stage.memory_mb for stage in plan.stages),
        tasks=plan.tasks,
    )
