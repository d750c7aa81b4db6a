"""Figures 11, 12b and 18: the highest load on a cluster, and requests per resource by SLO and functions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from serfer_bench.study.papers.infless.capacity import SYSTEMS, highest, placed
from serfer_bench.study.papers.infless.paper import (
    COLD_MS,
    FIGURE_11,
    FIGURE_12B,
    FIGURE_18A,
    FIGURE_18B,
    OSVT,
    SHOWN,
    WORLDS,
    World,
)
from serfer_bench.study.papers.infless.rows import FigureRow, rows_of
from serfer_bench.study.policies.infless.scenario import ClusterScenario, FunctionSpec

LARGE: Final = 2000
"""Servers of the paper's simulations."""
_COMPARED: Final = ("openfaas-plus", "batch", "infless", "infless-by-efficiency")
_EACH_RPS: Final = 500.0  # of a function, in figures 12b and 18: constructed
_MAX_SLO_MS: Final = 400.0


def figure_11() -> Iterator[FigureRow]:
    """Yield the highest load of each system, and of INFless without its parts, in every world."""
    for world in WORLDS:
        for name in world.networks:
            published = FIGURE_11[name]
            found = {system: highest(world.application(name), make).rps for system, make in SYSTEMS.items()}
            base = published["infless"]
            texts = {system: f"{rps:,} ({rps / base:.2f})" for system, rps in published.items()}
            yield from rows_of("11", world, name, "requests/s", found, texts)


def figure_12b() -> Iterator[FigureRow]:
    for world in SHOWN:
        for slo_ms, (batch, infless) in FIGURE_12B.items():
            scenario = world.application(OSVT, float(slo_ms))
            texts = {"batch": f"{batch / infless:.2f}", "infless": "1.00"}
            yield from _per_resource("12b", world, f"{slo_ms} ms", scenario, texts)


def figure_18(seed: int = 0) -> Iterator[FigureRow]:
    """Yield requests per resource on 2,000 servers, by the number of functions and by their SLO, drawn from a seed."""
    for world in SHOWN:
        for count, values in FIGURE_18A.items():
            scenario = functions_of(world, count, seed=seed)
            yield from _per_resource("18a", world, f"{count} functions", scenario, _normalized(values))
        for slo_ms, values in FIGURE_18B.items():
            scenario = functions_of(world, 20, float(slo_ms), seed)
            yield from _per_resource("18b", world, f"{slo_ms} ms", scenario, _normalized(values))


def functions_of(world: World, count: int, slo_ms: float | None = None, seed: int = 0) -> ClusterScenario:
    """Return functions with networks and, where no SLO is given, SLOs drawn from a seed (170 to 400, 50 to 150 ms)."""
    chance = random.Random(seed)  # noqa: S311 - figures, no secret
    specs = []
    for number in range(count):
        application = chance.choice(list(world.networks))
        network = chance.choice(world.networks[application])
        drawn = chance.uniform(170.0, _MAX_SLO_MS) if application == OSVT else chance.uniform(50.0, 150.0)
        specs.append(FunctionSpec(f"{network} {number}", network, slo_ms or drawn, COLD_MS))
    return world.cluster(tuple(specs), LARGE)


def _per_resource(
    figure: str, world: World, setting: str, scenario: ClusterScenario, published: dict[str, str]
) -> list[FigureRow]:
    found = {}
    for system in _COMPARED:
        rps = _EACH_RPS * len(scenario.functions)
        while (state := placed(scenario, SYSTEMS[system], rps)) is None and rps > 1:
            rps /= 2
        found[system] = state.per_unit if state is not None else 0.0
    return rows_of(figure, world, setting, "requests/s per unit", found, published)


def _normalized(values: tuple[float, float, float]) -> dict[str, str]:
    names = ("openfaas-plus", "batch", "infless")
    return {name: f"{value / values[2]:.2f}" for name, value in zip(names, values, strict=True)}
