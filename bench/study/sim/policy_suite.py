"""Policies on fixed loads at fixed prices, each over the clairvoyant optimum: what two papers can compare.

loads from seeds x price files x policies ──> dollars over the optimum's, the mean and the range of the seeds
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from serfer.control.policies import buys_several_types, find_policy, serves_alone
from serfer.control.scenario import SHIPPED, read_scenario
from serfer.core.errors import UsageError
from serfer.cost.loads.steps import Progress, silent
from serfer.local.process_pool import process_pool
from serfer_bench.study.policies import NAMES
from serfer_bench.study.sim.recommend import WORTH_PROCESSES, Comparison, Evaluation, LambdaChoice, Spread, evaluate
from serfer_bench.study.sim.simulate import LoadSpec, RunOptions, policy_names

LOADS: Final = (
    "diurnal:hours=48",
    "bursty-days:hours=48",
    "mmpp:hours=24,row_s=10",
    "flash:hours=24,row_s=10",
    "poisson:hours=6,row_s=10",
)
QUICK_LOADS: Final = ("diurnal:hours=4", "mmpp:hours=2,row_s=10")
"""Too short to learn anything from: to see that a policy runs."""
SEEDS: Final = 5
PERIOD_S: Final = 10.0
PRICES: Final = tuple(SHIPPED[name] for name in ("aws", "google-cloud", "azure"))
PUBLISHED: Final = tuple(
    name for name in NAMES if not serves_alone(find_policy(name).kind) and not buys_several_types(name)
)
"""The policies that can be held against the optimum: of the first instance type, all load served."""


@dataclass(frozen=True)
class Suite:
    """What to run; loads that name no seed are made for each of `seeds` seeds from 0 on."""

    policies: Sequence[str]
    loads: Sequence[str] = LOADS
    prices: Sequence[Path] = PRICES
    scale: str = "M"
    seeds: int = SEEDS
    period_s: float = PERIOD_S

    def comparisons(self) -> list[Comparison]:
        names = [path.stem for path in self.prices]
        if len({*names}) != len(names):
            raise UsageError(f"two price files have the same name: {', '.join(names)}")
        worlds = {path.stem: read_scenario(path) for path in self.prices}
        policies = [name for world in worlds.values() for name in policy_names(self.policies, world)]
        return [
            Comparison(
                LoadSpec(load),
                name,
                world,
                self.scale,
                list(dict.fromkeys(policies)),
                every_type=False,
                options=RunOptions(self.period_s),
                lambdas=[LambdaChoice(world.serverless, None)],
                seeds=self.seeds,
            )
            for load in self.loads
            for name, world in worlds.items()
        ]


@dataclass(frozen=True)
class SuiteRow:
    """A load at prices: dollars of the optimum, and of each policy over them; None where some load was not served."""

    load: str
    prices: str
    seeds: int
    optimum_usd: Spread | None
    ratios: dict[str, Spread | None]


def run(suite: Suite, workers: int, progress: Progress = silent) -> list[SuiteRow]:
    comparisons = suite.comparisons()
    if workers == 1 or sum(one.decisions() for one in comparisons) < WORTH_PROCESSES:
        return [*_run(map(_evaluated, comparisons), comparisons, progress)]
    # One pool for all: a process takes as long to start as many of the runs.
    with process_pool(min(workers, len(comparisons))) as pool:
        return [*_run(pool.map(_evaluated, comparisons), comparisons, progress)]


def _evaluated(one: Comparison) -> list[Evaluation]:
    return evaluate(one, workers=1)


def _run(
    found: Iterable[list[Evaluation]], comparisons: Sequence[Comparison], progress: Progress
) -> Iterator[SuiteRow]:
    every = iter(found)
    for number, one in enumerate(comparisons, 1):
        progress(f"{number} of {len(comparisons)}: {one.load.name} at the prices of {one.scenario_name}")
        yield _row(one, next(every))


def _row(one: Comparison, evaluations: Sequence[Evaluation]) -> SuiteRow:
    by_policy = {each.policy: each for each in evaluations}
    found = [by_policy[policy] for policy in one.policies]
    ratios = {each.policy: each.ratio if each.comparable else None for each in found}
    optimum = next((each.optimum_usd for each in found if each.optimum_usd), None)
    return SuiteRow(one.load.name, one.scenario_name, one.seeds, optimum, ratios)


def over_all(rows: Sequence[SuiteRow]) -> dict[str, Spread | None]:
    return {
        policy: Spread.of([ratio.mean if (ratio := row.ratios[policy]) else None for row in rows])
        for policy in rows[0].ratios
    }
