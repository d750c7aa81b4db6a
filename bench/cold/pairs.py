"""Split cold against whole cold: first answers of two plans of one network, in alternated pairs of fresh processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from serfer.core.costs.cold_queries import ColdPrice, price_cold
from serfer.core.costs.cost_model import Platform
from serfer.core.errors import UsageError
from serfer.core.plan import Plan
from serfer.core.units import MS_PER_S
from serfer.packaging.bundle import code_stamp
from serfer.plan_directory import COLD_DIRECTORY, load_cold_plan, load_plan
from serfer.settings import Settings
from serfer.splitter.split import split
from serfer.wiring.plan_cache import cached_plan
from serfer_bench.cold.functions import Bench
from serfer_bench.cold.query import FirstAnswer, measure_first_answer
from serfer_bench.core.quantiles import quantile_interval

_MILLION = 1_000_000
_OPTIONS: dict[str, Any] = {
    "account": "default",
    "weights": "fetched",
    "cold_plan": "always",
    "cold_environments": 4,
}


@dataclass(frozen=True)
class Earlier:
    """How many times earlier a plan answers than another one: the median pair, its 95% interval, and as predicted."""

    times: float
    least: float
    greatest: float
    predicted: float


@dataclass(frozen=True)
class PlanAnswers:
    """First answers of a plan, one for each pair: medians with their 95% intervals, and what the model predicts.

    `usd` is a query's, priced by the times measured here, warm-up requests included. `earlier` is how many times
    earlier a second plan's answers came than the first one's.
    """

    network: str
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
    earlier: Earlier | None = None

    @property
    def shown(self) -> dict[str, str]:
        earlier = self.earlier
        return {
            "network": self.network,
            "plan": self.what,
            "pairs": f"{self.pairs}",
            "first answer ms": f"{self.ms:,.0f} ({self.least_ms:,.0f} to {self.greatest_ms:,.0f})",
            "predicted ms": f"{self.predicted_ms:,.0f}",
            "times earlier": f"{earlier.times:.2f} ({earlier.least:.2f} to {earlier.greatest:.2f})" if earlier else "",
            "predicted times": f"{earlier.predicted:.2f}" if earlier else "",
            "second answer ms": f"{self.second_ms:,.0f}",
            "environments": f"{self.environments:,}",
            "$ a million": f"{_MILLION * self.usd:,.2f}",
            "predicted $": f"{_MILLION * self.predicted_usd:,.2f}",
        }


@dataclass(frozen=True)
class Pairs:
    """Both plans' first answers, the one for warm queries first, and what was dropped from the page cache."""

    whole: PlanAnswers
    split: PlanAnswers
    page_cache: str

    @property
    def rows(self) -> list[PlanAnswers]:
        return [self.whole, self.split]

    @property
    def notes(self) -> list[str]:
        dollars = (
            "dollars: of a query on either plan alone, by the times here; warming the first plan beside a cold plan "
            "costs about as much as a cold query on the first one, and is not part of them"
        )
        return [dollars, f"page cache: {self.page_cache}"]


def paired_plan(name: str, settings: Settings, progress: Callable[[str], None] = lambda _: None) -> Path:
    def make(directory: Path) -> None:
        progress(f"splitting {name}, once: the plan stays in {directory.parent}")
        split(name, out=directory, progress=progress, **_OPTIONS)

    return cached_plan(settings.cache_dir, f"cold-pairs-{name}-{code_stamp(('serfer.splitter', 'serfer.core'))}", make)


def other_plan(directory: Path, plan: Plan, against: Path | None) -> tuple[Plan, Path]:
    if against is not None:
        other = load_plan(against)
        if (other.model, other.input) != (plan.model, plan.input):
            raise UsageError(
                f"{against} is a plan of {other.model}, {directory} of {plan.model}: give two of one network"
            )
        return other, against
    cold = load_cold_plan(directory, plan)
    if cold is None:
        raise UsageError(f"{directory} has no cold plan: split with --set cold_plan=always, or give --against DIR")
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
    first, second = (
        _summary(bench, each, what) for bench, each, what in zip(benches, answers, ("whole", "split"), strict=True)
    )
    earlier = Earlier(median(ratios), *quantile_interval(ratios), first.predicted_ms / second.predicted_ms)
    done = " and ".join(sorted({each.page_cache for each in chain(*answers)}))
    return Pairs(first, replace(second, earlier=earlier), done)


def alone(bench: Bench) -> Bench:
    return replace(bench, settings=bench.settings.model_copy(update={"cold_plan": "never"}))


def _summary(bench: Bench, answers: Sequence[FirstAnswer], what: str) -> PlanAnswers:
    ms = [MS_PER_S * answer.seconds for answer in answers]
    price = _predicted(bench)
    return PlanAnswers(
        bench.plan.model,
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
