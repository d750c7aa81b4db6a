"""Figures 12a and 15a, and Table 4: requests per resource, missed SLOs and cost under three kinds of load.

How long idle instances stay decides much of it. The paper's INFless learns windows (LSTH), its baselines keep instances
for a time; so INFless and BATCH are both run with LSTH, 300 s and 60 s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from serfer.cost.loads.steps import PERIOD_S, Progress
from serfer_bench.study.papers.infless.paper import FIGURE_12A, OSVT, SHOWN, TABLE_4, VIOLATIONS, World
from serfer_bench.study.papers.infless.rows import FigureRow, rows_of
from serfer_bench.study.policies.infless.policy import RESERVE_S
from serfer_bench.study.policies.infless.scenario import ClusterScenario
from serfer_bench.study.sim.cluster.outcome import ClusterOutcome, outcome_of
from serfer_bench.study.sim.cluster.run import Detail, cluster_load, run_cluster
from serfer_bench.study.sim.simulate import LoadSpec

LOADS: Final = {
    "sporadic": "mmpp:low=0.02,high=40,low_s=600,high_s=60,hours=6,row_s=5",
    "periodic": "diurnal:mean=20,hours=24,row_s=5",
    "bursty": "flash:base=10,peak=120,crowds=20,fade_s=120,hours=6,row_s=5",
}
"""Constructed: each function has its own, from seeds of its own."""


@dataclass(frozen=True)
class _System:
    """A policy, and what of its facts is not as by default, where baselines keep instances for 300 s."""

    policy: str
    facts: Mapping[str, Any]


_LSTH: Final = {"windows": "lsth"}
"""Beside INFless' `reserve_s` of 60 s, which BATCH gets as its keep-alive."""
COMPARED: Final = {
    "openfaas-plus": _System("openfaas-plus", {}),
    "batch": _System("batch", {}),
    "batch, 60 s": _System("batch", {"keep_alive_s": 60.0}),
    "batch, LSTH": _System("batch", {**_LSTH, "keep_alive_s": RESERVE_S}),
    "infless": _System("infless", _LSTH),
    "infless, 300 s": _System("infless", {"reserve_s": 300.0}),
    "infless, 60 s": _System("infless", {"reserve_s": 60.0}),
    "infless-by-efficiency": _System("infless-by-efficiency", _LSTH),
}
_TABLE: Final = "periodic"


def under_loads(seed: int, progress: Progress, hours: float | None = None) -> Iterator[FigureRow]:
    for world in SHOWN:
        for name in LOADS:
            progress(f"seed {seed}: {name}, profiles {world.profiles}")
            found = outcomes(world.application(OSVT), name, seed, hours)
            yield from _resources(world, name, found)
            yield from _misses(world, name, found)
            if name == _TABLE:
                yield from _table_4(world, found)


def outcomes(
    scenario: ClusterScenario, name: str, seed: int, hours: float | None, systems: Iterable[str] = tuple(COMPARED)
) -> dict[str, ClusterOutcome]:
    until_s = math.inf if hours is None else hours * 3600
    first = seed * len(scenario.functions)
    spec = LoadSpec(LOADS[name], until_s=until_s)
    traces = [spec.read(first + number) for number in range(len(scenario.functions))]
    load, found = cluster_load(traces, PERIOD_S, seed, Detail()), {}
    for system in systems:
        one = COMPARED[system]
        kept = replace(scenario, policy=replace(scenario.policy, **one.facts))
        found[system] = outcome_of(kept, OSVT, run_cluster(kept, one.policy, load, seed), seed)
    return found


def _resources(world: World, name: str, found: dict[str, ClusterOutcome]) -> list[FigureRow]:
    openfaas, batch = FIGURE_12A[name]
    published = {"openfaas-plus": f"{1 / openfaas:.2f}", "batch": f"{1 / batch:.2f}", "infless": "1.00"}
    values = {policy: one.requests_per_unit_s for policy, one in found.items()}
    return rows_of("12a", world, name, "requests per unit and s", values, published)


def _misses(world: World, name: str, found: dict[str, ClusterOutcome]) -> Iterator[FigureRow]:
    texts = {policy: text for (load, policy), text in VIOLATIONS.items() if load == name}
    yield from rows_of("15a", world, name, "SLO missed", {each: one.violations for each, one in found.items()}, texts)
    cold = {policy: float(one.cold_starts) for policy, one in found.items()}
    yield from rows_of("-", world, name, "cold starts", cold, {})
    yield from rows_of("-", world, name, "idle share", {each: one.idle_share for each, one in found.items()}, {})


def _table_4(world: World, found: dict[str, ClusterOutcome]) -> Iterator[FigureRow]:
    cores = {policy: one.cores_per_100_rps for policy, one in found.items()}
    gpus = {policy: one.gpus_per_100_rps for policy, one in found.items()}
    usd = {policy: one.usd_per_request or 0.0 for policy, one in found.items()}
    published = {policy: [f"{value:g}" for value in values] for policy, values in TABLE_4.items()}
    for number, (what, values) in enumerate(
        (("CPUs per 100 requests/s", cores), ("GPUs per 100 requests/s", gpus), ("$ per request", usd))
    ):
        texts = {policy: each[number] for policy, each in published.items()}
        yield from rows_of("T4", world, OSVT, what, values, texts)
