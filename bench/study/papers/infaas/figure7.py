"""Figure 7 of INFaaS redone: two networks on shared GPUs (`serfer study paper infaas --figure 7`).

From the paper (6.3.1): 80% of 75,000 queries between 50 and 500 a second for Inception-ResNetV2, the rest for
MobileNetV1, variants of batch 1; Clipper+ has two GPUs with one network each, INFaaS begins with both on one and may
add a second, which takes 30 s to start. Assumed: copies on a GPU share it by time. Constructed: 250 and 1,000
queries/s alone on a V100, loading in 8 and 2 s, and an SLO of 50 ms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Final

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.control.selection.scaling.records import InstanceCosts
from serfer.core.units import MS_PER_S
from serfer.core.variants import Accuracy, Figure, Place, Variant
from serfer_bench.core.options import RowsOption
from serfer_bench.core.seeds import SEEDS, SeedOption, SeedsOption, publish_seeds
from serfer_bench.core.tables import Column, Measurement
from serfer_bench.study.papers.infaas.cluster import (
    HEEDING,
    INFAAS,
    PACKING,
    Cluster,
    Measured,
    Network,
    System,
    Worker,
)
from serfer_bench.study.papers.infaas.day import (
    FORMS,
    GENERATED,
    DayLoadOption,
    DayOption,
    Rates,
    arrivals,
    pressed,
    read_day,
)

LARGE, SMALL = "Inception-ResNetV2", "MobileNetV1"
CLIPPER = "Clipper+"
_WEIGHTS: Final = (0.8, 0.2)
_LOW, _HIGH, _QUERIES = 50.0, 500.0, 75_000
_SLO_MS: Final = 50.0
_USD_S: Final = 3.06 / 3600
"""Of a p3.2xlarge."""
_WINDOW_S: Final = 30.0
_PUBLISHED: Final = {INFAAS: "10% fewer dollars", CLIPPER: f"{LARGE}'s latency rises, its throughput falls"}


def _variant(network: str, latency_ms: float, qps: float, load_s: float, top1: float) -> Variant:
    return Variant(
        name=f"{network}-gpu",
        network=network,
        version=1,
        place=Place.INSTANCE,
        precision="fp16",
        artefact=network,
        plan=network,
        accuracy=Accuracy(round(500 * top1), 50_000),
        latency_ms=Figure.predicted(latency_ms),
        load_ms=Figure.predicted(load_s * MS_PER_S),
        peak_mb=Figure.predicted(1000.0),
        qps=Figure.predicted(qps),
        usd=Figure.predicted(_USD_S / qps),
        kind="gpu",
        batch=1,
    )


VARIANTS: Final = (_variant(LARGE, 4.0, 250.0, 8.0, 80.3), _variant(SMALL, 1.0, 1000.0, 2.0, 70.4))


def _networks() -> tuple[Network, ...]:
    costs = {each.name: InstanceCosts.of(each) for each in VARIANTS}
    halves = {name: _half(cost) for name, cost in costs.items()}
    return tuple(Network(each.network, (each,), (halves[each.name],), _SLO_MS, {each.name: 1}) for each in VARIANTS)


def _half(cost: InstanceCosts) -> InstanceCosts:
    return InstanceCosts(cost.name, cost.network, cost.usd_per_s, cost.qps, cost.latency_ms, cost.load_s, {"gpu": 0.5})


def systems(sharing: float = 1.0) -> tuple[System, ...]:
    one, two = Worker("gpu 1", "gpu", _USD_S), Worker("gpu 2", "gpu", _USD_S)
    by_kind = {"gpu": sharing}
    infaas = System(INFAAS, _networks(), (one,), scales=True, most={"gpu": 2}, boot_s=30.0, sharing=by_kind)
    return (
        infaas,
        replace(infaas, name=HEEDING, heeds=True),
        replace(infaas, name=PACKING, packs=True),
        System(CLIPPER, _networks(), (one, two), scales=False, sharing=by_kind),
    )


@dataclass(frozen=True)
class SharingResult(Measurement):
    """What became of a network's queries: answers a second, the median of each 30 s' 99th percentile, what was late.

    `p99_ms` is None where more than a hundredth gave up in half of them. `late_share` is of the SLO. `usd_ratio` is of
    the system's workers over INFaaS'.
    """

    seed: int
    load: Annotated[str, Column("load")]
    system: Annotated[str, Column("system")]
    network: Annotated[str, Column("network")]
    asked_qps: Annotated[float, Column("asked, QPS", ".1f")]
    qps: Annotated[float, Column("QPS", ".1f")]
    p99_ms: Annotated[float | None, Column("p99 of 30 s, median, ms", ",.1f", empty="-")]
    late_share: Annotated[float, Column("late or unanswered", ".1%")]
    usd_ratio: Annotated[float, Column("dollars over INFaaS", ".2f")]
    published: Annotated[str, Column("published")]


def run(load: str, day: Rates, seed: int = 0, sharing: float = 1.0, queries: int = _QUERIES) -> list[SharingResult]:
    rates = pressed(day, _LOW, _HIGH, queries)
    found = [Cluster(each).run(arrivals(rates, _WEIGHTS, seed), float(len(rates))) for each in systems(sharing)]
    return [
        _result(seed, load, measured, network, measured.workers_usd / found[0].workers_usd)
        for measured in found
        for network in (LARGE, SMALL)
    ]


def _result(seed: int, load: str, measured: Measured, network: str, usd_ratio: float) -> SharingResult:
    mine = [each for each in measured.outcomes if each.network == network]
    windows: dict[int, list[float]] = {}
    for each in mine:
        windows.setdefault(int(each.came_s // _WINDOW_S), []).append((each.answered_s - each.came_s) * MS_PER_S)
    p99_ms = median(_p99(each) for each in windows.values())
    return SharingResult(
        seed,
        load,
        measured.system,
        network,
        len(mine) / measured.seconds,
        sum(each.answered_s < measured.seconds for each in mine) / measured.seconds,
        p99_ms if math.isfinite(p99_ms) else None,
        sum(each.late for each in mine) / len(mine),
        usd_ratio,
        _PUBLISHED.get(measured.system, "") if network == LARGE else "",
    )


def _p99(ms: Sequence[float]) -> float:
    return sorted(ms)[min(len(ms) - 1, math.ceil(0.99 * len(ms)) - 1)]


def command(
    *,
    trace: DayLoadOption = GENERATED,
    day: DayOption = 0,
    sharing: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="How much longer a query takes beside a busy copy (assumed).")
    ] = 1.0,
    seed: SeedOption = 0,
    seeds: SeedsOption = SEEDS,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Redo INFaaS' figure 7 in a simulation: two networks on shared GPUs, by an assumed model of interference."""
    numbers, found = range(seed, seed + seeds), list[list[SharingResult]]()
    with status_line() as progress:
        for number in numbers:
            minutes = read_day(trace, day, number, progress)
            progress(f"seed {number}")
            found.append([row for load, form in FORMS.items() for row in run(load, form(minutes), number, sharing)])
    notes = [
        f"day {day} of {trace}",
        "assumed: copies on a GPU share it by time; constructed: speeds, loading, the SLO",
    ]
    publish_seeds(found, numbers, directory, as_json=as_json, notes=notes)
