"""Figure 5 of INFaaS redone: 22 networks under a pressed day of Twitter's: `serfer study paper infaas --figure 5`.

From the paper (6.1): the architectures, the load (113,420 queries, 10 to 1,000 a second), the four popular networks
with 80% of it and 50 ms, Zipf's law, 1.5 times the fastest CPU variant for the others; 5 CPU and 7 GPU workers for the
baselines, with GPU variants of popular networks and CPU variants of the rest; 5, 5 and 2 of Inferentia for INFaaS,
which may add some; ResNet50 on CPU and Inferentia (Table 2: 200 and 20 ms, four of eight vCPUs, one of four cores).
Constructed: every other variant from its multiply-accumulates, in proportion to ResNet50's, batches of 1, 4 and 8 on
a GPU, loading times by parameters within the paper's range, 30 s of boot, and GPUs that copies share by time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Annotated, Final

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
from serfer_bench.study.papers.infaas.table8 import ARCHITECTURES, IMAGES, Architecture

CLIPPER, SM = "Clipper+", "SM+"
_LOW, _HIGH, _QUERIES = 10.0, 1000.0, 113_420
_WINDOW_S: Final = 4.0
_POPULAR: Final = ("ResNet50", "VGG16", "InceptionV3", "DenseNet121")
_POPULAR_MS, _POPULAR_SHARE = 50.0, 0.8
_SLACK: Final = 1.5
"""The SLO of the others over the latency of their fastest CPU variant."""
_USD_HOUR: Final = {"cpu": 0.384, "inferentia": 0.584, "gpu": 3.06}
"""Of m5.2xlarge, inf1.2xlarge and p3.2xlarge; the last two have eight vCPUs, too."""
_GIGA_MACS: Final = {
    "MobileNetV1": 0.57, "MobileNetV2": 0.30, "AlexNet": 0.71, "DenseNet121": 2.9, "DenseNet169": 3.4,
    "DenseNet201": 4.3, "ResNet50": 4.1, "ResNet50V2": 4.1, "ResNext50": 4.3, "ResNet101": 7.8, "ResNet101V2": 7.8,
    "ResNext101": 8.0, "ResNet152": 11.6, "ResNet152V2": 11.6, "VGG16": 15.5, "VGG19": 19.6, "InceptionV3": 5.7,
    "Xception": 8.4, "Inception-ResNetV2": 13.2, "NasNetMobile": 0.56, "NasNetLarge": 23.8, "GNMT": 5.0,
}  # fmt: skip
"""Multiply-accumulates of an image, in thousands of millions; GNMT's constructed."""
_SHARES: Final = {"cpu": 0.5, "inferentia": 0.25, "gpu": 0.125}
"""What a copy takes of a worker: Table 2's vCPUs and cores, and 2 of 16 GB on a GPU, constructed."""
_BATCHES: Final = (1, 4, 8)


def _latency_ms(kind: str, macs: float, batch: int) -> float:
    """Return the time of a batch: Table 2's ResNet50 to scale, and on a GPU 3.5 ms for one and 12.5 ms for eight."""
    relative = macs / _GIGA_MACS["ResNet50"]
    if kind == "cpu":
        return 200.0 * relative
    if kind == "inferentia":
        return 2.0 + 18.0 * relative
    return 2.2 + 1.3 * relative * batch


def _qps(kind: str, latency_ms: float, batch: int) -> float:
    """Return the saturation: Table 2 has 5 and 100 queries/s on CPU and Inferentia, twice what one at a time would."""
    return (2.0 if kind == "inferentia" else 1.0) * batch * MS_PER_S / latency_ms


def _variant(network: Architecture, kind: str, batch: int) -> Variant:
    latency_ms = _latency_ms(kind, _GIGA_MACS[network.name], batch)
    qps = _qps(kind, latency_ms, batch)
    name = f"{network.name}-{kind}-{batch}"
    return Variant(
        name=name,
        network=network.name,
        version=1,
        place=Place.INSTANCE,
        precision="fp32" if kind == "cpu" else "fp16",
        artefact=name,
        plan=name,
        accuracy=Accuracy(round(IMAGES * network.accuracy / 100), IMAGES),
        latency_ms=Figure.predicted(latency_ms),
        load_ms=Figure.predicted(590.0 + 10_410.0 * min(1.0, network.parameters / 210.0)),
        peak_mb=Figure.predicted(2000.0),
        qps=Figure.predicted(qps),
        usd=Figure.predicted(_USD_HOUR[kind] * _SHARES[kind] / 3600 / qps),
        kind=kind,
        batch=batch,
    )


def _zipf() -> dict[str, float]:
    """Return the share of the load of each network: the popular ones' by Zipf's law, and the others'."""
    others = [each.name for each in ARCHITECTURES if each.name not in _POPULAR]
    return _law(_POPULAR, _POPULAR_SHARE) | _law(others, 1 - _POPULAR_SHARE)


def _law(names: Sequence[str], share: float) -> dict[str, float]:
    total = sum(1 / (rank + 1) for rank in range(len(names)))
    return {name: share / (rank + 1) / total for rank, name in enumerate(names)}


def _networks(kinds: tuple[str, ...], first: dict[str, Counter[str]], *, fixed: bool) -> tuple[Network, ...]:
    return tuple(_network(each, kinds, first.get(each.name, Counter()), fixed=fixed) for each in ARCHITECTURES)


def _network(network: Architecture, kinds: tuple[str, ...], first: Counter[str], *, fixed: bool) -> Network:
    slo_ms = _POPULAR_MS
    if network.name not in _POPULAR:
        slo_ms = _SLACK * _latency_ms("cpu", _GIGA_MACS[network.name], 1)
    batches = {"cpu": (1,), "inferentia": (1,), "gpu": _BATCHES}
    every = [_variant(network, kind, batch) for kind in kinds for batch in batches[kind]]
    variants = (_static(network, slo_ms),) if fixed else tuple(every)
    costs = tuple(replace(InstanceCosts.of(each), resources={each.kind: _SHARES[each.kind]}) for each in variants)
    return Network(network.name, variants, costs, slo_ms, first)


def _static(network: Architecture, slo_ms: float) -> Variant:
    if network.name not in _POPULAR:
        return _variant(network, "cpu", 1)
    within = [each for batch in _BATCHES if (each := _variant(network, "gpu", batch)).latency_ms.value <= slo_ms]
    return max(within, key=lambda each: each.qps.value)


def _workers(cpu: int, gpu: int, inferentia: int) -> tuple[Worker, ...]:
    """Return workers; the processors of those with an accelerator are workers of their own, which cost nothing more."""
    counts = {"cpu": cpu, "gpu": gpu, "inferentia": inferentia}
    made = [
        Worker(f"{kind} {nth}", kind, _USD_HOUR[kind] / 3600) for kind, count in counts.items() for nth in range(count)
    ]
    beside = [Worker(f"cpu of {each.name}", "cpu") for each in made if each.kind != "cpu"]
    return (*made, *beside)


def _copies(gpus: int) -> dict[str, Counter[str]]:
    """Return how many copies Clipper+ has: GPUs for the popular networks by their work, and CPU copies of the rest.

    The CPUs have room for 24 copies; each of the others has one, and the busiest have those that are left.
    """
    first = {each.name: Counter({_static(each, _POPULAR_MS).name: 1}) for each in ARCHITECTURES}
    zipf = _zipf()
    statics = {each.name: _static(each, _POPULAR_MS) for each in ARCHITECTURES}

    def busiest(names: Sequence[str]) -> str:
        return max(names, key=lambda name: zipf[name] / statics[name].qps.value / first[name].total())

    for _ in range(gpus - len(_POPULAR)):
        name = busiest(_POPULAR)
        first[name][statics[name].name] += 1
    others = [each.name for each in ARCHITECTURES if each.name not in _POPULAR]
    for _ in range(24 - len(others)):
        name = busiest(others)
        first[name][statics[name].name] += 1
    return first


def systems() -> tuple[System, ...]:
    every, shared = ("cpu", "inferentia", "gpu"), {"gpu": 1.0}
    one = {each.name: Counter({_static(each, _POPULAR_MS).name: 1}) for each in ARCHITECTURES}
    most = {"cpu": 5, "gpu": 5, "inferentia": 4}
    ours, theirs = _workers(5, 5, 2), _workers(5, 7, 0)
    free = _networks(every, one, fixed=False)
    infaas = System(INFAAS, free, ours, scales=True, most=most, sharing=shared)
    return (
        infaas,
        replace(infaas, name=HEEDING, heeds=True),
        replace(infaas, name=PACKING, packs=True),
        System(CLIPPER, _networks(every, _copies(7), fixed=True), theirs, scales=False, sharing=shared),
        System(SM, _networks(every, one, fixed=True), theirs, scales=True, sharing=shared),
    )


@dataclass(frozen=True)
class ProductionResult(Measurement):
    """What a system answered: queries/s, the share of late ones by windows of 4 s, and dollars of workers.

    Ratios are over INFaaS'.
    """

    seed: int
    load: Annotated[str, Column("load")]
    system: Annotated[str, Column("system")]
    qps: Annotated[float, Column("QPS", ".1f")]
    late_share: Annotated[float, Column("late or unanswered", ".1%")]
    late_windows: Annotated[float, Column("median of 4 s", ".1%")]
    qps_ratio: Annotated[float, Column("QPS of INFaaS over its", ".2f")]
    late_ratio: Annotated[float, Column("late over INFaaS'", ".2f")]
    usd_ratio: Annotated[float, Column("dollars over INFaaS'", ".2f")]
    published: Annotated[str, Column("published")]


_PUBLISHED: Final = {INFAAS: "under 4% late", CLIPPER: "1.1; 1.63; 1.23", SM: "1.3; 2.54; 1.23"}


def run(load: str, day: Rates, seed: int = 0, queries: int = _QUERIES) -> list[ProductionResult]:
    rates = pressed(day, _LOW, _HIGH, queries)
    zipf = _zipf()
    weights = [zipf[each.name] for each in ARCHITECTURES]
    found = [Cluster(each).run(arrivals(rates, weights, seed), float(len(rates))) for each in systems()]
    return [_result(seed, load, measured, found[0]) for measured in found]


def _result(seed: int, load: str, measured: Measured, ours: Measured) -> ProductionResult:
    windows: dict[int, list[bool]] = {}
    for each in measured.outcomes:
        windows.setdefault(int(each.came_s // _WINDOW_S), []).append(each.late)
    return ProductionResult(
        seed,
        load,
        measured.system,
        measured.qps,
        measured.late_share,
        median(mean(each) for each in windows.values()),
        ours.qps / measured.qps,
        measured.late_share / ours.late_share if ours.late_share else math.inf,
        measured.workers_usd / ours.workers_usd,
        _PUBLISHED.get(measured.system, ""),
    )


def command(
    *,
    trace: DayLoadOption = GENERATED,
    day: DayOption = 0,
    seed: SeedOption = 0,
    seeds: SeedsOption = SEEDS,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Redo INFaaS' figure 5 in a simulation: 22 networks under a day of a trace, pressed into minutes."""
    numbers, found = range(seed, seed + seeds), list[list[ProductionResult]]()
    with status_line() as progress:
        for number in numbers:
            minutes = read_day(trace, day, number, progress)
            progress(f"seed {number}")
            found.append([row for load, form in FORMS.items() for row in run(load, form(minutes), number)])
    notes = [
        f"day {day} of {trace}",
        "published: INFaaS' throughput over the baseline's; the baseline's violations and dollars over INFaaS'",
        "constructed: speeds from multiply-accumulates, loading times, boots, GPUs shared by time",
    ]
    publish_seeds(found, numbers, directory, as_json=as_json, notes=notes)
