"""Lambda as a plan has it, or with other memory: its price and times, as the cost model predicts them."""

from __future__ import annotations

from dataclasses import replace

from serfer.control.scenario import LambdaTarget
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.pricing import Circumstances, price
from serfer.core.plan import Plan
from serfer.core.units import MB_PER_GB, MS_PER_S


def with_memory(plan: Plan, memory_mb: int) -> Plan:
    return replace(plan, stages=tuple(replace(stage, memory_mb=memory_mb) for stage in plan.stages))


def priced_target(target: LambdaTarget, plan: Plan, facts: AwsFacts, memory_mb: int | None = None) -> LambdaTarget:
    """Return a scenario's Lambda with the plan's price and times, at a memory of all functions or at their own.

    Dollars are expected ones, with the share of cold queries that the plan was chosen for; times are warm, cold starts
    are simulated. Its concurrency stays, and how long its environments are kept. Raises UsageError for a memory out of
    bounds.
    """
    prices, warm = (price(plan, facts, Circumstances(memory_mb=memory_mb, cold_share=share)) for share in (None, 0.0))
    latency_s = warm.query.latency.mean
    return replace(
        target,
        usd_per_query=prices.query.usd,
        latency_ms=latency_s * MS_PER_S,
        cold_ms=max(prices.cold.seconds - latency_s, 0.0) * MS_PER_S,
        memory_gb=sum(stage.tasks * stage.memory_mb for stage in prices.cold.stages) / MB_PER_GB,
    )
