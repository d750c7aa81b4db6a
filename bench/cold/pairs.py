"""Split cold against whole cold: first answers of two plans of one network, in alternated pairs of fresh processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median

from serfer.cli.shared.tables import Table
from serfer.core.costs.cold_queries import ColdPrice, price_cold
from serfer.core.costs.cost_model import Platform
from serfer.core.errors import UsageError
from serfer.core.plan import Plan
from serfer.core.units import MS_PER_S
from serfer.plan_directory import COLD_DIRECTORY, load_cold_plan, load_plan
from serfer_bench.cold.functions import Bench
from serfer_bench.cold.query import FirstAnswer, measure_first_answer
from serfer_bench.core.quantiles import quantile_interval

_MILLION = 1_000_000


@dataclass(frozen=True)
class PlanAnswers:
    """First answers of a plan, one for each pair: medians with their 95% intervals, and what the model predicts.

    `usd` is a query's, priced by the times measured here, warm-up requests included.
    """

    plan: str
    what: str
    ms: float
    least_ms: float
    greatest_ms: float
    second_ms: float
    environments: int
    usd: float
    pairs: int
    predicted_ms: float
    predicted_usd: float

    @property
    def shown(self) -> dict[str, str]:
        """Its columns."""
        return {
            "plan": self.what,
            "first answer ms": f"{self.ms:,.0f} ({self.least_ms:,.0f} to {self.greatest_ms:,.0f})",
            "predicted ms": f"{self.predicted_ms:,.0f}",
            "second answer ms": f"{self.second_ms:,.0f}",
            "environments": f"{self.environments:,}",
            "$ a million": f"{_MILLION * self.usd:,.2f}",
            "predicted $": f"{_MILLION * self.predicted_usd:,.2f}",
        }


@dataclass(frozen=True)
class Pairs:
    """Both plans' first answers, and how many times earlier the second plan's come, with the median's interval."""

    whole: PlanAnswers
    split: PlanAnswers
    earlier: float
    least: float
    greatest: float
    predicted: float
    page_cache: str

    @property
    def rows(self) -> list[PlanAnswers]:
        """Both plans, the one for warm queries first."""
        return [self.whole, self.split]

    @property
    def table(self) -> Table:
        """Both plans, for people."""
        shown = [row.shown for row in self.rows]
        return Table([*shown[0]], [[*each.values()] for each in shown])

    @property
    def notes(self) -> list[str]:
        """The ratio, in words."""
        dollars = (
            "dollars: of a query on either plan alone, by the times here; warming the first plan beside a cold plan "
            "costs about as much as a cold query on the first one, and is not part of them"
        )
        ratio = (
            f"the cold plan answers {self.earlier:.2f} times earlier (median of {self.whole.pairs} pairs, 95% "
            f"interval {self.least:.2f} to {self.greatest:.2f}), predicted {self.predicted:.2f}"
        )
        return [ratio, dollars, f"page cache: {self.page_cache}"]


def other_plan(directory: Path, plan: Plan, against: Path | None) -> tuple[Plan, Path]:
    """Return the plan to compare with: that of `against`, or the directory's cold plan; raises UsageError without."""
    if against is not None:
        other = load_plan(against)
        if (other.model, other.input) != (plan.model, plan.input):
            raise UsageError(
                f"{against} is a plan of {other.model}, {directory} of {plan.model}: give two of one network"
            )
        return other, against
    cold = load_cold_plan(directory, plan)
    if cold is None:
        raise UsageError(f"{directory} has no cold plan: split with --cold-plan always, or give --against DIR")
    return cold, directory / COLD_DIRECTORY


def measure_pairs(whole: Bench, split: Bench, pairs: int, progress: Callable[[str], None] = lambda _: None) -> Pairs:
    """Measure first answers of two plans in turn, each pair in the other order than the one before."""
    answers: tuple[list[FirstAnswer], list[FirstAnswer]] = ([], [])
    benches = (alone(whole), alone(split))
    for number in range(pairs):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            progress(f"pair {number + 1} of {pairs}: the {('first', 'cold')[which]} plan")
            answers[which].append(asyncio.run(measure_first_answer(benches[which])))
    ratios = [one.seconds / other.seconds for one, other in zip(*answers, strict=True)]
    rows = [_summary(bench, each, what) for bench, each, what in zip(benches, answers, ("whole", "split"), strict=True)]
    least, greatest = quantile_interval(ratios)
    done = " and ".join(sorted({each.page_cache for each in chain(*answers)}))
    predicted = rows[0].predicted_ms / rows[1].predicted_ms
    return Pairs(rows[0], rows[1], median(ratios), least, greatest, predicted, done)


def alone(bench: Bench) -> Bench:
    """Return the bench of a plan whose queries have no second plan to choose."""
    return replace(bench, settings=bench.settings.model_copy(update={"cold_plan": "never"}))


def _summary(bench: Bench, answers: Sequence[FirstAnswer], what: str) -> PlanAnswers:
    ms = [MS_PER_S * answer.seconds for answer in answers]
    price = _predicted(bench)
    return PlanAnswers(
        bench.plan.digest,
        what,
        median(ms),
        *quantile_interval(ms),
        median(MS_PER_S * answer.second for answer in answers),
        max(answer.environments for answer in answers),
        median(answer.usd for answer in answers),
        len(ms),
        MS_PER_S * price.seconds,
        price.usd,
    )


def _predicted(bench: Bench) -> ColdPrice:
    return price_cold(bench.plan, Platform.over(bench.settings.facts(), bench.plan.store))
