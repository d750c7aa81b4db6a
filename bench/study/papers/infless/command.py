"""`serfer study paper infless`: INFless' evaluation redone in simulations, beside its published figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.cost.loads.steps import Progress, silent
from serfer.local.process_pool import process_pool
from serfer.system import processors
from serfer_bench.core.options import RowsOption
from serfer_bench.core.results import publish_rows
from serfer_bench.core.seeds import SEEDS, SeedOption, SeedsOption, publish_seeds
from serfer_bench.study.papers.infless import scale, throughput
from serfer_bench.study.papers.infless.loads import outcomes, under_loads
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


_Part = Callable[[], Iterable[FigureRow]]
_Seeded = Callable[[int, Progress, float | None], Iterable[FigureRow]]
_NOTES: Final = (
    "profiles: authors, fitted to what they measured (LSTM-2365, DSSM-2389: constructed); flops, made from Table 1",
    "operators: combined from profiles of operators, for ResNet-18, MobileNet-v2 and ResNet-50; on GPUs as by flops",
    "beta by: FLOPS, as in the paper (a thread is 0.45% of a GPU); scarcity, ours: a server's cores are worth its GPUs",
    "constructed, too: loads, networks and SLOs of figure 18, cold starts of 3 s",
    "times are up to 10% from their profiles (constructed), of operators up to 20% (figure 8: 19% at most)",
    "under loads infless has the windows of LSTH, openfaas-plus and batch 300 s, unless a name says otherwise",
    "published: figures 11, 12b and 18 by the authors' plotting scripts; ratios are over INFless'",
)
_HoursOption = Annotated[float | None, typer.Option(min=0.1, help="The first hours of each load alone.")]


def _over_seeds(summary: str, parts: Sequence[_Part], seeded: Sequence[_Seeded]) -> Callable[..., None]:
    def redo(
        *,
        hours: _HoursOption = None,
        seed: SeedOption = 0,
        seeds: SeedsOption = SEEDS,
        directory: RowsOption = None,
        as_json: JsonOption = False,
    ) -> None:
        _publish(parts, seeded, range(seed, seed + seeds), hours, directory, as_json=as_json)

    redo.__doc__ = summary
    return redo


def figure_11(*, directory: RowsOption = None, as_json: JsonOption = False) -> None:
    """Redo figure 11: the highest constant load on 8 servers."""
    _publish((throughput.figure_11,), directory=directory, as_json=as_json)


def figure_12b(*, directory: RowsOption = None, as_json: JsonOption = False) -> None:
    """Redo figure 12b: throughput per resource by SLO."""
    _publish((throughput.figure_12b,), directory=directory, as_json=as_json)


def figure_17(*, directory: RowsOption = None, as_json: JsonOption = False) -> None:
    """Redo figure 17: decisions and fragments at scale."""
    _publish((scale.figure_17,), directory=directory, as_json=as_json)


def figure_18(
    *,
    seed: SeedOption = 0,
    seeds: SeedsOption = SEEDS,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Redo figure 18: throughput on 2,000 servers, by the number of functions and by SLO."""
    _publish((), (_figure_18,), range(seed, seed + seeds), directory=directory, as_json=as_json)


def _figure_18(seed: int, progress: Progress, hours: float | None) -> Iterable[FigureRow]:
    del hours
    progress(f"seed {seed}: figure 18")
    return throughput.figure_18(seed)


def _publish(
    parts: Iterable[_Part] = (),
    seeded: Iterable[_Seeded] = (),
    seeds: Sequence[int] = (),
    hours: float | None = None,
    directory: Path | None = None,
    *,
    as_json: bool,
) -> None:
    fixed = list[FigureRow]()
    with status_line() as progress:
        for part in parts:
            progress(part.__name__.replace("_", " "))
            fixed += part()
        found = _of_seeds(tuple(seeded), seeds, hours, progress)
    if found:
        publish_seeds(found, seeds, directory, as_json=as_json, notes=_NOTES, fixed=fixed)
    else:
        publish_rows(fixed, directory, as_json=as_json, notes=_NOTES)


def _of_seeds(
    seeded: Sequence[_Seeded], seeds: Sequence[int], hours: float | None, progress: Progress
) -> list[list[FigureRow]]:
    if len(seeds) <= 1:
        return [_of_seed(seeded, hours, progress, seed) for seed in seeds]
    found: list[list[FigureRow]] = []
    with process_pool(min(processors(), len(seeds))) as pool:
        for rows in pool.map(partial(_of_seed, seeded, hours, silent), seeds):
            found.append(rows)
            progress(f"{len(found)} of {len(seeds)} seeds")
    return found


def _of_seed(seeded: Sequence[_Seeded], hours: float | None, progress: Progress, seed: int) -> list[FigureRow]:
    return [replace(row, seed=seed) for run in seeded for row in run(seed, progress, hours)]


figure_12 = _over_seeds(
    "Redo figure 12: throughput per resource, under changing loads and by SLO.",
    (throughput.figure_12b,),
    (under_loads,),
)
figure_13 = _over_seeds(
    "Redo figures 13a and b, 14 and 15b and c: batches, what is occupied, and latency in parts, under bursts.",
    (),
    (provisioning,),
)
loads = _over_seeds("Redo what runs under changing loads: figures 12a and 15a and Table 4.", (), (under_loads,))
command = _over_seeds(
    "Redo INFless' figures 11 to 15, 17 and 18 and Table 4 in simulations, beside its published numbers.",
    (throughput.figure_11, throughput.figure_12b, scale.figure_17),
    (under_loads, provisioning, _figure_18),
)
