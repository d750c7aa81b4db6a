"""Prices of queries that find nothing warm: the first answer by parts, its dollars, and a burst of them.

The environments of all steps start as the query starts (critical_path in cold_starts.py), each by the query's own task
or by a warm-up request, and all of them are billed from their start. So a burst of n such queries at once needs n times
the environments of all steps together, where a warm one uses those of its largest stage again.

A plan directory may have a second plan for such queries (its cold plan). A query then runs on that one's environments,
and those of the first plan are warmed beside it, so that later queries find them: both are paid for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from serfer.core.costs.cost_model import PlanPrice, Platform, billed_usd, price_plan

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
        """Expected seconds until the first answer."""
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
        stage.tasks * (float(billed_usd(stage.memory_mb, start.seconds, facts)) + facts.price_request)
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
        """Whether the account's concurrency is too small."""
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
