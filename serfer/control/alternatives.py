"""Alternatives of a plan, and which of them are beaten in both latency and dollars."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from serfer.core.errors import PlanError
from serfer.core.plan import Alternative, Plan

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Choice:
    """An alternative with its number, the fastest first; `best` says that none that fits is faster and cheaper."""

    number: int
    plan: Alternative
    best: bool

    @property
    def usd(self) -> float:
        return self.plan.usd * _MILLION

    @property
    def verdict(self) -> str:
        if self.plan.chosen:
            return "chosen"
        return "does not fit" if not self.plan.fits else "best" if self.best else "beaten"


def choices(plan: Plan) -> tuple[Choice, ...]:
    """Return what a plan competed with, itself among it; raises PlanError where it does not say or says nonsense."""
    sorted_plans = sorted(plan.alternatives, key=lambda alternative: (alternative.ms, alternative.usd))
    if not sorted_plans:
        raise PlanError(
            "explanation.json says nothing of what the plan competed with, or is missing; split the model again"
        )
    if not all(0 <= value < math.inf for plan in sorted_plans for value in (plan.ms, plan.usd)):
        raise PlanError("explanation.json has alternatives with impossible figures; split the model again")
    return tuple(Choice(number, plan, _is_best(plan, sorted_plans)) for number, plan in enumerate(sorted_plans, 1))


def query_of(plan: Plan) -> str:
    return f"one query ({100 * plan.cold_share:.3g}% of them cold)" if plan.cold_share else "one warm query"


def _is_best(one: Alternative, others: Iterable[Alternative]) -> bool:
    mine = (one.ms, one.usd)
    return one.fits and not any(
        other.fits and other.ms <= one.ms and other.usd <= one.usd and (other.ms, other.usd) != mine for other in others
    )
