"""Shared invocations of a memory-bound stage, simulated: gathering while no slot is free, against INFless' windows.

    tasks, a Poisson process ──┬──> at once while a slot is free, else with what waits when one is (drivers/batching.py)
                               └──> a batch leaves when it is full, or its oldest task has waited so long (INFless, 3.2)

What a batch of a fully connected stage takes is that of AlexNet's fc6 in ADR 11, as multiples of one image's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Annotated, Final

import numpy as np
import typer

from serfer.cli.shared.options import JsonOption
from serfer.core.units import MS_PER_S
from serfer_bench.core.options import RowsOption
from serfer_bench.core.quantiles import percentiles
from serfer_bench.core.results import publish_rows
from serfer_bench.core.tables import Column, Measurement
from serfer_bench.study.policies.infless.rates import exact_range

MULTIPLES: Final = ((1, 1.0), (2, 1.05), (4, 1.16), (8, 1.38), (16, 1.62))
"""A batch's time over one image's: AlexNet's fc6 (ADR 11)."""
_SIZES = tuple(size for size, _ in MULTIPLES)
_TIMES = tuple(time for _, time in MULTIPLES)


@dataclass(frozen=True)
class Row(Measurement):
    """A rule at a rate: the time that a task spends at the stage, and what is billed for it."""

    rate: Annotated[float, Column("tasks/s", "g")]
    slots: Annotated[int, Column("slots", ",")]
    rule: Annotated[str, Column("rule")]
    range: Annotated[str, Column("r_low to r_up")]
    p50_ms: Annotated[float, Column("p50 ms", ",.0f")]
    p99_ms: Annotated[float, Column("p99 ms", ",.0f")]
    billed_ms: Annotated[float, Column("billed ms a task", ",.1f")]
    mean_batch: Annotated[float, Column("mean batch", ".1f")]


@dataclass(frozen=True)
class Stage:
    """A stage's seconds for one image, its slots, and the time in which a task should have passed it."""

    alone_s: float
    slots: int
    slo_s: float

    def batch_s(self, images: int) -> float:
        return self.alone_s * float(np.interp(images, _SIZES, _TIMES))


def simulate(stage: Stage, times: Sequence[float], batch: int, window_s: float) -> tuple[list[float], list[int], float]:
    """Return the seconds at the stage of tasks that come at `times`, the sizes of batches, and the seconds billed.

    A window of 0 is the present rule: what comes starts at once while a slot is free.
    """
    free = [0.0] * stage.slots
    passed: list[float] = []
    sizes: list[int] = []
    billed = 0.0
    first = 0
    while first < len(times):
        full = times[first + batch - 1] if first + batch <= len(times) else float("inf")
        due = min(full, times[first] + window_s)
        begin = max(due, heappop(free))
        count = 1
        while count < batch and first + count < len(times) and times[first + count] <= begin:
            count += 1
        took = stage.batch_s(count)
        heappush(free, begin + took)
        passed += [begin + took - came for came in times[first : first + count]]
        sizes.append(count)
        billed += took
        first += count
    return passed, sizes, billed


def measure(stage: Stage, rates: Sequence[float], seconds: float, seed: int = 0) -> list[Row]:
    rows = []
    for rate in rates:
        rng = np.random.default_rng(seed)
        times = np.cumsum(rng.exponential(1 / rate, int(rate * seconds))).tolist()
        rules = [("at once, gather meanwhile", "", _SIZES[-1], 0.0)]
        for batch in _SIZES[1:]:
            took = stage.batch_s(batch)
            if 2 * took <= stage.slo_s:
                known = exact_range(took, stage.slo_s, batch)
                rules.append((f"windows, {batch}", f"{known.low:.0f} to {known.up:.0f}", batch, stage.slo_s - took))
        for name, bounds, batch, window_s in rules:
            passed, sizes, billed = simulate(stage, times, batch, window_s)
            p50, p99 = (each * MS_PER_S for each in percentiles(passed, 50, 99))
            task_ms = billed * MS_PER_S / len(times)
            rows.append(Row(rate, stage.slots, name, bounds, p50, p99, task_ms, len(times) / len(sizes)))
    return rows


def command(
    alone_ms: Annotated[float, typer.Option(min=0.1, help="What one image takes.")] = 50.0,
    slo_ms: Annotated[float, typer.Option(min=1, help="The time for a task to pass the stage in.")] = 300.0,
    slots: Annotated[int, typer.Option(min=1, max=10_000, help="Invocations at once.")] = 1000,
    rate: Annotated[list[float] | None, typer.Option(help="Tasks a second; may be repeated.")] = None,
    seconds: Annotated[float, typer.Option(min=1, max=86_400)] = 600.0,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate shared invocations of a fully connected stage: at once, or in windows for full batches."""
    stage = Stage(alone_ms / MS_PER_S, slots, slo_ms / MS_PER_S)
    publish_rows(measure(stage, rate or (2.0, 10.0, 50.0, 200.0), seconds), directory, as_json=as_json)
