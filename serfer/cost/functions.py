"""Functions that serve a load: what a query takes and costs, by the cost model; SageMaker's endpoint is one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from serfer.control.scenario import S_PER_HOUR
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cold_queries import price_cold, starting_ways
from serfer.core.costs.cost_model import (
    HOURS_A_MONTH,
    GangPrice,
    Latency,
    Platform,
    billed_usd,
    price_plan,
    standing_usd,
)
from serfer.core.costs.pricing import uses_store
from serfer.core.plan import CONTAINER, Plan
from serfer.cost.service_times import Quantiles, ServiceTimes

_MB_PER_GB: Final = 1024
_SECONDS_A_MONTH: Final = S_PER_HOUR * HOURS_A_MONTH
_POINTS: Final = 1000  # of a latency's distribution
_LAST: Final = 0.9999  # the largest quantile that is drawn


@dataclass(frozen=True, eq=False)
class Functions:
    """Functions that serve a load: what a query takes and costs, warm and where it finds nothing warm.

    `memory_mb` is that of all environments of a query, `environments` how many its largest step has at once,
    `month_usd` what is paid for without queries. Of `provisioned` environments, a warm query costs `provisioned_usd`.
    """

    name: str
    memory_mb: int
    warm: Latency
    cold_s: float
    warm_usd: float
    cold_usd: float
    environments: int
    concurrency: int
    month_usd: float = 0.0
    provisioned: int = 0
    provisioned_usd: float = 0.0

    def usd(self, cold_share: float) -> float:
        return self.warm_usd + cold_share * (self.cold_usd - self.warm_usd)

    @property
    def times(self) -> ServiceTimes:
        shares = np.minimum(np.linspace(0, 1, _POINTS + 1), _LAST)
        known = np.cumsum(self.warm.probability)
        values = self.warm.least + self.warm.step * np.searchsorted(known, shares)
        adds = max(self.cold_s - self.warm.mean, 0.0)
        return ServiceTimes(
            Quantiles(np.asarray(values, dtype=np.float64)), Quantiles.always(adds), "predicted", one_task=True
        )


def one_function(whole: Plan, facts: AwsFacts) -> Functions:
    [stage] = whole.stages
    return replace(_functions(whole, facts), name=f"one function of {stage.memory_mb:,} MB")


def _functions(plan: Plan, facts: AwsFacts) -> Functions:
    platform = Platform.over(facts, plan.store)
    warm, cold = price_plan(plan, platform), price_cold(plan, platform)
    most = max(stage.tasks for stage in warm.stages)
    return Functions(
        name=plan.model,
        memory_mb=sum(stage.tasks * stage.memory_mb for stage in cold.stages),
        warm=warm.latency,
        cold_s=cold.seconds,
        warm_usd=warm.usd,
        cold_usd=cold.usd,
        environments=most,
        concurrency=max(facts.functions.concurrency // most, 1),
        month_usd=standing_usd(platform) if uses_store(plan, facts) else 0.0,
    )


def with_snapstart(whole: Plan, plain: Functions, facts: AwsFacts) -> Functions:
    place = whole.stages[0].weights_in
    ways = starting_ways(whole, Platform.over(facts, whole.store))
    way = next(way for way in ways if way.snapstart and way.weights_in == place)
    return replace(
        plain, name="  and SnapStart", cold_s=way.cold_seconds, cold_usd=way.cold_usd, month_usd=way.month_usd
    )


def with_provisioned(whole: Plan, plain: Functions, count: int, facts: AwsFacts) -> Functions:
    functions, memory = facts.functions, whole.stages[0].memory_mb
    billed_s = price_plan(whole, Platform.over(facts, whole.store)).stages[0].billed_s
    cheaper = replace(functions, price_gb_second=functions.price_provisioned_second)
    saved = float(billed_usd(memory, billed_s, functions) - billed_usd(memory, billed_s, cheaper))
    standing = count * memory / _MB_PER_GB * _SECONDS_A_MONTH * functions.price_provisioned
    return replace(
        plain,
        name=f"  and {count:,} provisioned",
        provisioned=count,
        provisioned_usd=plain.warm_usd - saved,
        month_usd=standing,
    )


def split_functions(plan: Plan, facts: AwsFacts, driver_mb: int) -> Functions:
    """Return a plan's functions, and a driver function of `driver_mb` that waits for them in every query."""
    plain = _functions(plan, facts)
    priced = price_plan(plan, Platform.over(facts, plan.store))
    kind = "gangs" if any(isinstance(stage, GangPrice) for stage in priced.stages) else "stages"
    tasks = sum(stage.tasks for stage in priced.stages)
    driver, services = facts.functions, facts.services

    def waits(seconds: float) -> float:
        return driver.price_request + float(billed_usd(driver_mb, seconds + services.driver_seconds, driver))

    return replace(
        plain,
        name=f"split: {len(priced.stages)} {kind}, {tasks} tasks" + (f", {plan.store}" if plain.month_usd else ""),
        warm_usd=plain.warm_usd + waits(plain.warm.mean),
        cold_usd=plain.cold_usd + waits(plain.cold_s + services.driver_init),
    )


def sagemaker_serverless(whole: Plan, facts: AwsFacts) -> Functions | None:
    """Return SageMaker Serverless Inference with the function's memory in whole GB; None where it has too little.

    It is taken to compute and to answer as fast as a function of that memory does, and to start as one from a container
    image; starts are not billed.
    """
    services, gigabytes = facts.services, math.ceil(whole.stages[0].memory_mb / _MB_PER_GB)
    memory_mb = gigabytes * _MB_PER_GB
    if memory_mb > services.sagemaker_memory_max:
        return None
    platform = Platform.over(facts, whole.store)
    image = replace(whole, stages=tuple(replace(stage, weights_in=CONTAINER) for stage in whole.stages))
    warm = price_plan(whole, platform, memory_mb)
    endpoint = replace(facts.functions, price_gb_second=services.price_sagemaker_gb_second)
    moved = (services.upload_bytes + services.answer_bytes) * services.price_sagemaker_byte
    usd = float(billed_usd(memory_mb, warm.stages[0].billed_s, endpoint)) + moved
    return Functions(
        name=f"SageMaker Serverless, {gigabytes} GB",
        memory_mb=memory_mb,
        warm=warm.latency,
        cold_s=price_cold(image, platform, memory_mb).seconds,
        warm_usd=usd,
        cold_usd=usd,
        environments=1,
        concurrency=services.sagemaker_concurrency,
    )
