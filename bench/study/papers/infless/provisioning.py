"""Figures 13 to 15: the batches of answers, what instances occupy, and latencies in parts, under a load with bursts.

Figure 13c, the configurations of instances, and 14's curve over time are left out: a run keeps totals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from serfer.cost.loads.steps import Progress
from serfer_bench.study.papers.infless.loads import outcomes
from serfer_bench.study.papers.infless.paper import OSVT, SHOWN, World
from serfer_bench.study.papers.infless.rows import FigureRow, rows_of
from serfer_bench.study.sim.cluster.outcome import ClusterOutcome

_LOAD: Final = "bursty"
_COMPARED: Final = ("batch", "infless")
_BATCHES: Final = (1, 2, 4, 8, 16, 32)
_RESIZED: Final = -1  # the last function of OSVT is ResNet-50, whose batches figure 13 has
_SLOS_MS: Final = {"15b": 150.0, "15c": 350.0}
_PUBLISHED_13: Final = {"batch": "mainly 4, 8", "infless": "1, 2, 4, 8"}
_PUBLISHED_14: Final = {"infless": "0.4"}
_PUBLISHED_15: Final = "about equal"


def provisioning(seed: int, progress: Progress, hours: float | None = None) -> Iterator[FigureRow]:
    for world in SHOWN:
        progress(f"seed {seed}: profiles {world.profiles}")
        yield from _batches(world, found := outcomes(world.application(OSVT), _LOAD, seed, hours, _COMPARED))
        hours_of = {system: one.unit_hours for system, one in found.items()}
        yield from rows_of("14", world, _LOAD, "unit-hours", hours_of, _PUBLISHED_14)
        for figure, slo_ms in _SLOS_MS.items():
            one = outcomes(world.application(OSVT, slo_ms), _LOAD, seed, hours, ("infless",))["infless"]
            yield from _parts(figure, world, f"SLO of {slo_ms:g} ms", one)


def _batches(world: World, found: dict[str, ClusterOutcome]) -> Iterator[FigureRow]:
    of = {system: one.functions[_RESIZED].batches for system, one in found.items()}
    for size in _BATCHES:
        shares = {system: batches.get(size, 0.0) for system, batches in of.items()}
        yield from rows_of("13", world, f"batches of {size}", "share of answers", shares, _PUBLISHED_13)


def _parts(figure: str, world: World, setting: str, one: ClusterOutcome) -> Iterator[FigureRow]:
    for what, value in (("mean wait, ms", one.wait_ms), ("mean execution, ms", one.exec_ms)):
        yield from rows_of(figure, world, setting, what, {"infless": value or 0.0}, {"infless": _PUBLISHED_15})
