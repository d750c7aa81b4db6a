"""Figure 17: how long a scaling step takes on 2,000 servers, and how much of active servers is left over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from serfer.core.units import MS_PER_S
from serfer_bench.study.papers.infless.capacity import SYSTEMS, placed
from serfer_bench.study.papers.infless.paper import FRAGMENTS, SHOWN, World
from serfer_bench.study.papers.infless.rows import FigureRow, rows_of
from serfer_bench.study.papers.infless.throughput import functions_of
from serfer_bench.study.policies.infless.policies import make_cluster_policy
from serfer_bench.study.policies.infless.scenario import ClusterScenario

_COUNTS: Final = (100, 500, 1000, 2000, 5000, 10_000)
_FUNCTIONS: Final = 40
_RISE: Final = 1.05
_SYSTEMS: Final = ("infless", "batch", "openfaas-plus", "batch-rs")


def figure_17() -> Iterator[FigureRow]:
    for world in SHOWN:
        scenario = functions_of(world, _FUNCTIONS)
        for count in _COUNTS:
            rps = _rate_for(scenario, count)
            yield from _overhead(world, scenario, count, rps)
            yield from _fragments(world, scenario, count)


def _rate_for(scenario: ClusterScenario, count: int, system: str = "infless") -> float:
    """Return the load for which about so many instances are launched, or the highest one that has room."""
    low, high = 0.0, float(_FUNCTIONS)
    while (found := placed(scenario, SYSTEMS[system], high)) is not None and found.instances < count:
        low, high = high, 2 * high
    for _ in range(8):
        middle = (low + high) / 2
        found = placed(scenario, SYSTEMS[system], middle)
        if found is None or found.instances > count:
            high = middle
        else:
            low = middle
    return low


def _overhead(world: World, scenario: ClusterScenario, count: int, rps: float) -> Iterator[FigureRow]:
    """Time the step that launches all instances, and one with a load that has risen by 5%, on one core."""
    policy = make_cluster_policy("infless", scenario)
    each = [rps / _FUNCTIONS] * _FUNCTIONS
    started = time.process_time()
    launched = len(policy.step(0.0, each).launched)
    all_s = time.process_time() - started
    started = time.process_time()
    policy.step(5.0, [_RISE * one for one in each])
    rise_s = time.process_time() - started
    for what, value, published in (
        ("ms, all at once", all_s * MS_PER_S, "below 1,000 for 10,000"),
        ("ms for each of them", all_s * MS_PER_S / max(launched, 1), "0.5"),
        ("ms, 5% more load", rise_s * MS_PER_S, ""),
    ):
        yield from rows_of("17a", world, f"{count:,} instances", what, {"infless": value}, {"infless": published})


def _fragments(world: World, scenario: ClusterScenario, count: int) -> list[FigureRow]:
    found = {}
    for system in _SYSTEMS:
        state = placed(scenario, SYSTEMS[system], _rate_for(scenario, count, system))
        if state is not None:
            found[system] = state.fragments
    texts = {system: f"{share:.0%}" for system, share in FRAGMENTS.items()}
    return rows_of("17b", world, f"{count:,} instances", "share of active servers", found, texts)
