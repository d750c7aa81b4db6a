"""Prices of a plan, by the one cost model (cost_model.py): a query, a burst, and a month without queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from serfer.core.costs.aws import AwsFacts, LambdaFacts
from serfer.core.costs.cold_queries import ColdBurst, ColdChoice, ColdPrice, StartingWay, price_cold, starting_ways
from serfer.core.costs.cold_starts import COLD_SHARE
from serfer.core.costs.cost_model import (
    HOURS_A_MONTH,
    Burst,
    Latency,
    PlanPrice,
    Platform,
    StagePrice,
    price_burst,
    price_plan,
    standing_usd,
)
from serfer.core.errors import UsageError
from serfer.core.plan import Plan
from serfer.core.plan.window_plan import priced_query
from serfer.core.units import MS_PER_S

_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class Circumstances:
    """The circumstances of a plan's runs: None means as the plan says.

    `cold_share` is the share of queries that find nothing warm, `burst` a number of queries.
    """

    store: str | None = None
    memory_mb: int | None = None
    cold_share: float | None = None
    burst: int = 1000


@dataclass(frozen=True)
class Prices:
    """The prices of a plan over one kind of store or two.

    `query` is as circumstances are, `warm` where everything is warm, `cold` where nothing is.

    `standing_usd` is what a month costs in which no query comes, `stored` whether any goes through the store. `choice`
    are the two ways to answer where nothing is warm, for a plan directory with a cold plan; `ways` are those to start.
    """

    plan: Plan
    store: str
    cold_share: float
    query: PlanPrice
    warm: PlanPrice
    cold: ColdPrice
    burst: Burst
    cold_burst_usd: float
    standing_usd: float
    stored: bool
    cold_plan: Plan | None = None
    choice: ColdChoice | None = None
    ways: tuple[StartingWay, ...] = ()

    def month_usd(self, queries: int) -> float:
        """Return the dollars of a month of so many queries: what the store costs idle, and what they use."""
        return self.standing_usd + queries * self.query.usd

    def months(self, loads: Sequence[int]) -> dict[str, Any]:
        """Return what --json says of months of so many queries; nothing where none was asked about."""
        months = [{"queries": queries, "cost_usd": self.month_usd(queries)} for queries in loads]
        return {"months": months} if months else {}

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.plan.model,
            "plan": self.plan.digest,
            "store": self.store,
            "cold_share": self.cold_share,
            "times": self.plan.times,
            "query": _query(self.plan, self.query),
            "warm_query": _query(self.plan, self.warm),
            "cold_query": _query(self.plan, self.cold) | _first_answer(self.cold),
            "burst": {
                "queries": self.burst.queries,
                "cost_usd": self.burst.usd,
                "cold_cost_usd": self.cold_burst_usd,
                "environments": self.burst.environments,
                "concurrency": self.burst.concurrency,
                "least_s": self.burst.least_seconds,
            },
            "idle_month": {"hours": HOURS_A_MONTH, "functions_usd": 0.0, "store_usd": self.standing_usd},
            "cold_plan": self._cold_plan(),
            "starts": [_way(way) for way in self.ways],
        }

    def _cold_plan(self) -> dict[str, Any] | None:
        if self.choice is None or self.cold_plan is None:
            return None
        whole, split = self.choice.burst(self.burst.queries)
        return {
            "plan": self.cold_plan.digest,
            "query": _query(self.cold_plan, self.choice.split) | _first_answer(self.choice.split),
            "warm_up_usd": self.choice.warm_up_usd,
            "cost_usd": self.choice.usd,
            "times_earlier": self.choice.times_earlier,
            "burst": {"whole": burst_dict(whole), "split": burst_dict(split)},
        }


def _way(way: StartingWay) -> dict[str, Any]:
    return {
        "weights_in": way.weights_in,
        "snapstart": way.snapstart,
        "fits": way.fits,
        "chosen": way.chosen,
        "first_answer_ms": MS_PER_S * way.cold_seconds,
        "cold_cost_usd": way.cold_usd,
        "ms": MS_PER_S * way.seconds,
        "cost_usd": way.usd,
        "month_usd": way.month_usd,
    }


def burst_dict(burst: ColdBurst) -> dict[str, Any]:
    return {
        "queries": burst.queries,
        "environments": burst.environments,
        "cost_usd": burst.usd,
        "first_answer_ms": MS_PER_S * burst.seconds,
        "concurrency": burst.concurrency,
        "most_queries": burst.most_queries,
        "refused": burst.refused,
    }


def _first_answer(price: ColdPrice) -> dict[str, Any]:
    return {"first_answer_ms": MS_PER_S * price.seconds, "environments": price.environments}


def _query(plan: Plan, price: PlanPrice) -> dict[str, Any]:
    return {
        "latency_ms": latency_ms(price.latency),
        "cost_usd": price.usd,
        "stages": [
            {
                "name": price.name(step),
                "grid": str(plan.stages[numbers.start].grid),
                "path": plan.stages[numbers[-1]].path,
                "weights_in": plan.stages[numbers.start].weights_in,
                "cold_start": {
                    "package_ms": MS_PER_S * start.package,
                    "process_ms": MS_PER_S * start.process,
                    "fetching_ms": MS_PER_S * start.fetching,
                    "sessions_ms": MS_PER_S * start.sessions,
                },
                **_stage(stage),
            }
            for step, (numbers, stage, start) in enumerate(
                zip(price.numbers, price.stages, price.cold_starts, strict=True)
            )
        ],
    }


def latency_ms(latency: Latency) -> dict[str, float]:
    quantiles = {name: MS_PER_S * latency.quantile(share) for name, share in _SHARES.items()}
    return {"mean": MS_PER_S * latency.mean, **quantiles}


def _stage(price: StagePrice) -> dict[str, Any]:
    fields = asdict(price)
    seconds, usd, billed = (fields.pop(name) for name in ("seconds", "usd", "billed_s"))
    return {**fields, "ms": MS_PER_S * seconds, "cost_usd": usd, "billed_ms": MS_PER_S * billed}


def price(plan: Plan, facts: AwsFacts, given: Circumstances, cold_plan: Plan | None = None) -> Prices:
    """Price a plan, and a cold plan beside it.

    Raises UsageError for circumstances that cannot be, PlanError for a plan without explanation.json.
    """
    plan.check_explained()
    store = given.store or plan.store
    cold_share = cold_share_of(plan) if given.cold_share is None else given.cold_share
    _check(given, cold_share, facts.functions)
    platform = Platform.over(facts, store, cold_share)
    query = price_plan(plan, platform, given.memory_mb)
    cold = price_cold(plan, platform, given.memory_mb)
    stored = uses_store(plan, facts)
    return Prices(
        plan,
        store,
        cold_share,
        query,
        price_plan(plan, replace(platform, cold_share=0.0), given.memory_mb),
        cold,
        price_burst(query, given.burst, facts.functions),
        given.burst * cold.usd,
        standing_usd(platform) if stored else 0.0,
        stored,
        cold_plan,
        ColdChoice.of(plan, cold_plan, platform, given.memory_mb) if cold_plan else None,
        starting_ways(plan, platform, given.memory_mb),
    )


def uses_store(plan: Plan, facts: AwsFacts) -> bool:
    """Return whether stages hand anything of an image's query on through a store; crops of the image need none."""
    return price_plan(priced_query(plan), Platform.over(facts, "s3")).stored


def store_of(plan: Plan, facts: AwsFacts, cold_plan: Plan | None = None) -> str:
    """Return the store that a plan is deployed with by default: its own, or S3, which costs nothing idle, if unused."""
    used = any(uses_store(candidate, facts) for candidate in (plan, *([cold_plan] if cold_plan else [])))
    return plan.store.partition("+")[0] if used else "s3"


def cold_share_of(plan: Plan) -> float:
    """Return the share of cold queries that a plan was chosen for; the assumed one where it does not say."""
    return COLD_SHARE if plan.cold_share is None else plan.cold_share


def _check(given: Circumstances, cold_share: float, facts: LambdaFacts) -> None:
    if not 0 <= cold_share <= 1:
        raise UsageError(f"the share of cold queries is from 0 to 1, not {cold_share:g}")
    if given.burst < 1:
        raise UsageError(f"a burst has at least 1 query, not {given.burst}")
    if given.memory_mb is not None and not facts.memory_min <= given.memory_mb <= facts.memory_max:
        raise UsageError(f"memory must be {facts.memory_min} to {facts.memory_max} MB, not {given.memory_mb}")
