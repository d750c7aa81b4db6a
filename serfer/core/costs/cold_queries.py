"""Prices of queries that find nothing warm: the first answer by parts, its dollars, and a burst of them.

The environments of all steps start as the query starts (critical_path in cold_starts.py), each by the query's own task
or by a warm-up request, and all of them are billed from their start. So a burst of n such queries at once needs n times
the environments of all steps together, where a warm one uses those of its largest stage again.

A plan directory may have a second plan for such queries (its cold plan). A query then runs on that one's environments,
and those of the first plan are warmed beside it, so that later queries find them: both are paid for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from serfer.core.costs.cost_model import HOURS_A_MONTH, PlanPrice, Platform, price_plan, start_usd
from serfer.core.plan import CONTAINER, WEIGHT_PLACES, explained
from serfer.core.units import MB_PER_GB, S_PER_HOUR

if TYPE_CHECKING:
    from serfer.core.costs.aws import LambdaFacts
    from serfer.core.plan import Plan


@dataclass(frozen=True)
class ColdPrice(PlanPrice):
    """The cost of a query that finds nothing warm, with warm-up requests for all steps but the first.

    The seconds of its stages are those that they add to the first answer, `times` says when each of them ends.
    """

    @property
    def seconds(self) -> float:
        return self.times[-1].ended

    @property
    def environments(self) -> int:
        return sum(stage.tasks for stage in self.stages)


def price_cold(plan: Plan, platform: Platform, memory_mb: int | None = None) -> ColdPrice:
    """Price one query of one image that finds nothing warm, whatever share of such queries the platform has."""
    price = price_plan(plan, replace(platform, cold_share=1.0), memory_mb)
    return ColdPrice(price.stages, price.numbers, price.cold_starts, price.times, price.latency)


def warm_up_usd(price: PlanPrice, facts: LambdaFacts) -> float:
    """Price warming every environment that a query of a plan uses, each by a request of its own."""
    return sum(
        start_usd(stage.tasks, stage.memory_mb, start, facts, first=False)
        for stage, start in zip(price.stages, price.cold_starts, strict=True)
    )


@dataclass(frozen=True)
class ColdBurst:
    """Queries that come at once and find nothing warm: `environments` is how many they start, at the same time.

    `most_queries` is how many an account's `concurrency` has environments for; a burst of more is refused.
    """

    queries: int
    environments: int
    usd: float
    seconds: float
    concurrency: int
    most_queries: int

    @property
    def refused(self) -> bool:
        return self.queries > self.most_queries


@dataclass(frozen=True)
class ColdChoice:
    """Two ways to answer a query that finds nothing warm: on the first plan (`whole`), or on the cold plan (`split`).

    `warm_up_usd` is what warming the first plan's environments costs beside a query on the cold plan.
    """

    whole: ColdPrice
    split: ColdPrice
    warm_up_usd: float
    concurrency: int

    @classmethod
    def of(cls, plan: Plan, cold: Plan, platform: Platform, memory_mb: int | None = None) -> ColdChoice:
        whole, split = (price_cold(made, platform, memory_mb) for made in (plan, cold))
        facts = platform.functions
        return cls(whole, split, warm_up_usd(whole, facts), facts.concurrency)

    @property
    def usd(self) -> float:
        """Dollars of a query on the cold plan, with the warm-up of the first plan beside it."""
        return self.split.usd + self.warm_up_usd

    @property
    def times_earlier(self) -> float:
        return self.whole.seconds / self.split.seconds

    def burst(self, queries: int) -> tuple[ColdBurst, ColdBurst]:
        """Price a burst of so many queries: all on the first plan, and all on the cold plan with the first one warmed.

        Each query has environments of its own, so first answers are those of one query.
        """
        both = self.whole.environments + self.split.environments
        return (
            self._burst(queries, self.whole.environments, self.whole.usd, self.whole.seconds),
            self._burst(queries, both, self.usd, self.split.seconds),
        )

    def _burst(self, queries: int, environments: int, usd: float, seconds: float) -> ColdBurst:
        most = self.concurrency // environments
        return ColdBurst(queries, queries * environments, queries * usd, seconds, self.concurrency, most)


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
    gigabytes = sum((memory_mb or plan.stages[stage].memory_mb) / MB_PER_GB for stage, _ in plan.functions)
    return gigabytes * S_PER_HOUR * HOURS_A_MONTH * platform.functions.price_snapstart_cached


def _fits(plan: Plan, place: str, platform: Platform) -> bool:
    limit = explained(plan.limit)
    most = platform.functions.image_limit if place == CONTAINER else limit.package
    return all(plan.function_bytes(*function) + limit.dependencies <= most for function in plan.functions)
