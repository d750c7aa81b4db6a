"""INFaaS' greedy heuristic beside its integer programme: `serfer study paper infaas --section 4.2`.

Random applications of as many networks as are asked for, each with an SLO and a load of its own, which comes to rest.
A network has a variant of a CPU, of Inferentia and of a GPU, and some with larger batches; their figures are
constructed, from a seed, within the ranges of the paper's section 1, and hardware costs what it does there. Programme
and heuristic decide on all networks of an application together, as the paper's do.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.control.selection.scaling.greedy import GreedyScaler
from serfer.control.selection.scaling.records import InstanceCosts, LoadObservation, ScalingOptions, changed
from serfer_bench.core.options import RowsOption
from serfer_bench.core.quantiles import percentiles
from serfer_bench.core.results import publish_rows
from serfer_bench.core.tables import Column, Measurement
from serfer_bench.study.policies.integer_program import IntegerProgram

_HARDWARE: Final = (("cpu", 0.096, (50.0, 400.0)), ("inferentia", 0.362, (8.0, 60.0)), ("gpu", 3.06, (2.0, 30.0)))
"""Dollars an hour, and the range of a batch of one in ms."""
_S_PER_HOUR: Final = 3600.0
_MS_PER_S: Final = 1000.0
_MOST_SLOTS: Final = 200
_RESTED: Final = 15
"""Slots without a change, more than any variant loads."""
_PUBLISHED_S: Final = {50: 23.0, 100: 50.0}
"""Seconds of Gurobi by architectures (4.2.1)."""


@dataclass(frozen=True)
class ScalingComparison(Measurement):
    """Dollars of the heuristic over the programme's, and the milliseconds that decisions took."""

    networks: Annotated[int, Column("networks")]
    variants: Annotated[int, Column("variants")]
    loads: Annotated[int, Column("loads")]
    ratio_median: Annotated[float, Column("dollars, median", ".3f")]
    ratio_p90: Annotated[float, Column("p90", ".3f")]
    ratio_max: Annotated[float, Column("max", ".3f")]
    equal_share: Annotated[float, Column("equal", ".0%")]
    program_ms: Annotated[float, Column("programme, ms", ".1f")]
    program_max_ms: Annotated[float, Column("max, ms", ".1f")]
    greedy_ms: Annotated[float, Column("heuristic, ms", ".3f")]
    published_s: Annotated[float | None, Column("Gurobi, s", ".0f")]


def random_costs(chance: random.Random, networks: int = 1) -> list[InstanceCosts]:
    """Return the variants of networks: each kind of hardware once, and up to four with larger batches."""
    made = []
    for network in range(networks):
        count = chance.randint(3, 7)
        for nth in range(count):
            kind, usd_hour, (least, most) = _HARDWARE[nth] if nth < len(_HARDWARE) else chance.choice(_HARDWARE)
            batch = 1 if nth < len(_HARDWARE) else chance.choice((2, 4, 8, 16))
            one_ms = chance.uniform(least, most)
            latency_ms = one_ms * (1 + (batch - 1) * chance.uniform(0.2, 0.6))
            share = chance.uniform(0.1, 1.0)  # of the hardware that an instance takes
            made.append(
                InstanceCosts(
                    f"n{network}-{kind}-b{batch}-{nth}",
                    f"n{network}",
                    share * usd_hour / _S_PER_HOUR,
                    _MS_PER_S * batch / latency_ms,
                    latency_ms,
                    chance.uniform(0.59, 11.0),
                    {kind: share},
                )
            )
    return made


def settle(scaler: GreedyScaler, seen: LoadObservation) -> tuple[dict[str, int], bool]:
    """Follow a scaler's plans while the load stays: what runs in the end, and whether it came to rest."""
    running: dict[str, int] = dict(seen.running)
    quiet = 0
    for _ in range(_MOST_SLOTS):
        plan = scaler.observe(LoadObservation(seen.rate, seen.slo_ms, running, seen.available))
        quiet = 0 if plan.changes else quiet + 1
        if quiet == _RESTED:
            return running, True
        running = {name: count for name, count in changed(running, plan.changes).items() if count}
    return running, False


def compare(networks: int, loads: int, seed: int = 0) -> ScalingComparison:
    chance = random.Random(seed)  # noqa: S311 - figures, no secret
    options = ScalingOptions(unpredictability=0.0)
    ratios: list[float] = []
    program_ms: list[float] = []
    greedy_ms: list[float] = []
    counts: list[float] = []
    while len(ratios) < loads:
        variants = random_costs(chance, networks)
        seen = LoadObservation(10 ** chance.uniform(0.0, 3.5), chance.uniform(50.0, 500.0))
        started = time.perf_counter()
        plan = IntegerProgram(variants, options).observe(seen)
        program_ms.append((time.perf_counter() - started) * _MS_PER_S)
        if plan.short_qps:
            continue
        started = time.perf_counter()
        GreedyScaler(variants, options).observe(seen)
        greedy_ms.append((time.perf_counter() - started) * _MS_PER_S)
        running, _ = settle(GreedyScaler(variants, options), seen)
        ratios.append(_usd(variants, running) / _usd(variants, dict(plan.changes)))
        counts.append(len(variants))
    middle, high, most = percentiles(ratios, 50, 90, 100)
    equal = sum(ratio < 1 + 1e-9 for ratio in ratios) / len(ratios)
    middle_ms, most_ms = percentiles(program_ms, 50, 100)
    of_variants = round(percentiles(counts, 50)[0])
    heuristic_ms = percentiles(greedy_ms, 50)[0]
    published = _PUBLISHED_S.get(networks)
    return ScalingComparison(
        networks, of_variants, len(ratios), middle, high, most, equal, middle_ms, most_ms, heuristic_ms, published
    )


def _usd(variants: Sequence[InstanceCosts], running: dict[str, int]) -> float:
    return sum(each.usd_per_s * running.get(each.name, 0) for each in variants)


def command(
    *,
    networks: Annotated[
        list[int] | None, typer.Option("--networks", min=1, max=1000, help="Networks; may be repeated.")
    ] = None,
    loads: Annotated[int, typer.Option(min=1, help="Random loads for each.")] = 300,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare INFaaS' greedy scaling with its integer programme: dollars at rest, and time of a decision."""
    rows = []
    with status_line() as progress:
        for count in networks or [1, 22, 50, 100]:
            progress(f"{count} networks")
            rows.append(compare(count, loads))
    notes = ["dollars: of what runs at rest, the heuristic's over the programme's; figures constructed from a seed"]
    publish_rows(rows, directory, as_json=as_json, notes=notes)
