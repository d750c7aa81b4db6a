"""Figure 6 of INFaaS redone: ResNet50 on one worker under three loads: `serfer study paper infaas --figure 6`.

From the paper: Table 2's three variants (latency, saturation, four of eight vCPUs, one of four Inferentia cores), the
batch of 8 on the GPU, which takes the peak; prices of $0.031, $0.190 and $0.498 for a GB and second of CPU, Inferentia
and GPU; the loads' ranges, and the spikes' times; what each baseline runs. Constructed: memory footprints (of the GPU's
such that they repeat the flat load's factors, 21.6 and 21.3), 290 queries/s of a GPU variant of batch 1 (two of them
served 15% less than 650 to 700), loading times, and the form of the spikes (a ramp up and down).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Final

import numpy as np
import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.control.selection.scaling.records import InstanceCosts
from serfer.core.units import MS_PER_S
from serfer.core.variants import Accuracy, Figure, Place, Variant
from serfer_bench.core.options import RowsOption
from serfer_bench.core.seeds import SEEDS, SeedOption, SeedsOption, publish_seeds
from serfer_bench.core.tables import Column, Measurement
from serfer_bench.study.papers.infaas.cluster import HEEDING, INFAAS, Cluster, Measured, Network, System, Worker

_SLO_MS: Final = 500.0
"""Constructed: the paper has none for this figure; 6.3.2 has 500 ms for the same CPU variant."""
_NETWORK: Final = "ResNet50"
WITHOUT: Final = "INFaaS without Inferentia"
_STEP_S: Final = 0.1
_GB_S_USD: Final = {"cpu": 0.031, "inferentia": 0.190, "gpu": 0.498}
_SPIKES_S: Final = ((60.0, 90.0), (150.0, 180.0))
_LOW, _HIGH = 4.0, 80.0
FLAT, STEADY, FLUCTUATING = "flat, 4 QPS", "steady, 650-700 QPS", "fluctuating, 4-80 QPS"


def _variant(name: str, kind: str, latency_ms: float, qps: float, load_s: float, gb: float, batch: int) -> Variant:
    """Return a variant whose dollars are those of its memory on its hardware."""
    usd_s = gb * _GB_S_USD[kind]
    return Variant(
        name=name,
        network=_NETWORK,
        version=1,
        place=Place.INSTANCE,
        precision="fp16" if kind == "gpu" else "fp32",
        artefact=name,
        plan=name,
        accuracy=Accuracy(37_450, 50_000),
        latency_ms=Figure.predicted(latency_ms),
        load_ms=Figure.predicted(load_s * MS_PER_S),
        peak_mb=Figure.predicted(gb * 1000),
        qps=Figure.predicted(qps),
        usd=Figure.predicted(usd_s / qps),
        kind=kind,
        batch=batch,
    )


CPU: Final = _variant("cpu", "cpu", 200.0, 5.0, 3.0, 1.0, 1)
INFERENTIA: Final = _variant("inferentia", "inferentia", 20.0, 100.0, 5.0, 1.0, 1)
GPU_1: Final = _variant("gpu-batch-1", "gpu", 3.5, 290.0, 8.0, 1.326, 1)
GPU_8: Final = _variant("gpu-batch-8", "gpu", 15.0, 800.0, 8.0, 1.345, 8)
_SHARES: Final = {"cpu": 0.5, "inferentia": 0.25, "gpu-batch-1": 0.5, "gpu-batch-8": 0.5}
_WORKER: Final = tuple(Worker(kind, kind) for kind in ("cpu", "inferentia", "gpu"))
"""The parts of the one worker."""


def _system(
    name: str, variants: tuple[Variant, ...], first: dict[str, int], *, scales: bool, heeds: bool = False
) -> System:
    costs = tuple(replace(InstanceCosts.of(each), resources={each.kind: _SHARES[each.name]}) for each in variants)
    network = Network(_NETWORK, variants, costs, _SLO_MS, first)
    return System(name, (network,), _WORKER, scales, heeds=heeds)


def systems() -> tuple[System, ...]:
    every = (CPU, INFERENTIA, GPU_1, GPU_8)
    return (
        _system(INFAAS, every, {"cpu": 1}, scales=True),
        _system(HEEDING, every, {"cpu": 1}, scales=True, heeds=True),
        _system(WITHOUT, (CPU, GPU_1, GPU_8), {"cpu": 1}, scales=True),
        _system("Clipper+ CPU", (CPU,), {"cpu": 2}, scales=False),
        _system("Clipper+ GPU", (GPU_8,), {"gpu-batch-8": 1}, scales=False),
        _system("Clipper+ Inferentia", (INFERENTIA,), {"inferentia": 1}, scales=False),
        _system("SM+ CPU", (CPU,), {"cpu": 1}, scales=True),
        _system("SM+ GPU", (GPU_1,), {"gpu-batch-1": 1}, scales=True),
    )


def _flat(now_s: float) -> float:
    del now_s
    return _LOW


def _fluctuating(now_s: float) -> float:
    for begins, ends in _SPIKES_S:
        if begins <= now_s < ends:
            return _LOW + (_HIGH - _LOW) * (1 - abs(2 * (now_s - begins) / (ends - begins) - 1))
    return _LOW


LOADS: Final[dict[str, tuple[float, Callable[[float], float]]]] = {
    FLAT: (240.0, _flat),
    STEADY: (120.0, lambda now_s: 650.0 + 50.0 * now_s / 120.0),
    FLUCTUATING: (240.0, _fluctuating),
}
"""Seconds, and queries/s by time; how long they last is constructed."""


PUBLISHED: Final = {
    (FLAT, "Clipper+ GPU"): "21.6 times INFaaS' dollars",
    (FLAT, "SM+ GPU"): "21.3 times INFaaS' dollars",
    (STEADY, INFAAS): "meets the load by the batch-8 GPU variant",
    (STEADY, "Clipper+ CPU"): "about 10 QPS",
    (STEADY, "SM+ CPU"): "about 10 QPS",
    (STEADY, "Clipper+ GPU"): "meets the load",
    (STEADY, "SM+ GPU"): "1.05 times the dollars, 15% fewer QPS",
    (FLUCTUATING, "Clipper+ GPU"): "3 times INFaaS' dollars",
    (FLUCTUATING, "SM+ GPU"): "3 times INFaaS' dollars",
    (FLUCTUATING, "Clipper+ CPU"): "10 QPS at most",
    (FLUCTUATING, "SM+ CPU"): "10 QPS at most",
    (FLUCTUATING, WITHOUT): "the GPU baselines cost 1.7 times this",
    (FLUCTUATING, "Clipper+ Inferentia"): "1.9 times INFaaS' dollars",
}
"""What section 6.2 says."""


def arrivals(rate: Callable[[float], float], seconds: float, seed: int) -> Iterator[tuple[float, int]]:
    rng = np.random.default_rng(seed)
    for step in range(round(seconds / _STEP_S)):
        count = rng.poisson(rate(step * _STEP_S) * _STEP_S)
        for offset in sorted(rng.uniform(0.0, _STEP_S, count)):
            yield step * _STEP_S + float(offset), 0


@dataclass(frozen=True)
class LoadResult(Measurement):
    """What a system did under a load; `cost_ratio` is its dollars over INFaaS', `published` what the paper says."""

    seed: int
    load: Annotated[str, Column("load")]
    system: Annotated[str, Column("system")]
    qps: Annotated[float, Column("QPS", ".1f")]
    late_share: Annotated[float, Column("late or unanswered", ".1%")]
    usd: Annotated[float, Column("dollars", ".2f")]
    cost_ratio: Annotated[float, Column("over INFaaS", ".2f")]
    published: Annotated[str, Column("published")]


def run(load: str, seconds: float | None = None, seed: int = 0) -> list[LoadResult]:
    lasts, rate = LOADS[load]
    until = min(lasts, seconds or lasts)
    found = {each.name: Cluster(each).run(arrivals(rate, until, seed), until) for each in systems()}
    usd = found[INFAAS].usd
    return [_result(seed, load, name, measured, usd) for name, measured in found.items()]


def _result(seed: int, load: str, name: str, measured: Measured, usd: float) -> LoadResult:
    published = PUBLISHED.get((load, name), "")
    return LoadResult(seed, load, name, measured.qps, measured.late_share, measured.usd, measured.usd / usd, published)


def command(
    *,
    seconds: Annotated[float | None, typer.Option(min=1.0, help="The first seconds of each load alone.")] = None,
    seed: SeedOption = 0,
    seeds: SeedsOption = SEEDS,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Redo INFaaS' figure 6 in a simulation: dollars and throughput beside its published factors."""
    numbers, found = range(seed, seed + seeds), list[list[LoadResult]]()
    with status_line() as progress:
        for number in numbers:
            progress(f"seed {number}")
            found.append([row for load in LOADS for row in run(load, seconds, number)])
    notes = [
        "constructed: memory of variants (repeats the flat load's factors), batch 1 of the GPU, loading times, spikes",
    ]
    publish_seeds(found, numbers, directory, as_json=as_json, notes=notes)
