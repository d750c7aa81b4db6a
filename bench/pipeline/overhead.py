"""Processor time of the whole warm pipeline against the unsplit forward pass, in turn, in one run.

The pipeline's time is that of this process (client, driver, Lambda service) and of every process below it (Redis,
workers), read before and after a block of queries, one at a time; the other processes' is known in steps of 10 ms. The
image is decoded beforehand: the unsplit pass gets the same pixels and normalises them too. Processor time, unlike
elapsed time, hardly notices what else the machine does; ratios of measurements made in turn notice least.
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from bench.core.processes import descendants, used_s
from bench.core.stamp import processor_name
from serfer.pipeline.pipeline import Pipeline

_WARM_UP = 30
_MS_PER_S = 1e3


@dataclass(frozen=True)
class Overhead:
    """What was measured; times are processor milliseconds a query, medians over rounds."""

    model: str
    rounds: int
    queries: int
    ratio: float
    ratios: tuple[float, ...]
    pipeline_ms: float
    unsplit_ms: float
    shares_ms: dict[str, float]
    polls: int
    bytes_per_query: int
    weight_loads: int
    machine: str


def measure(
    pipeline: Pipeline,
    unsplit: Callable[[NDArray[Any]], Any],
    rounds: int,
    queries: int,
    progress: Callable[[str], None] = lambda _: None,
) -> Overhead:
    """Run blocks of the two in turn, after a warm-up that gives every environment its sessions."""
    shape = pipeline.plan.input
    pixels = np.random.default_rng(0).integers(0, 256, (1, shape.height, shape.width, shape.channels), dtype=np.uint8)
    progress("warming up")
    for _ in range(_WARM_UP):
        pipeline.run(pixels)
        unsplit(pixels)
    blocks: list[dict[str, float]] = []
    whole: list[float] = []
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        before = _processor_s()
        for _ in range(queries):
            pipeline.run(pixels)
        after = _processor_s()
        blocks.append({name: (after[name] - before[name]) * _MS_PER_S / queries for name in after})
        whole.append(_unsplit_ms(unsplit, pixels, queries))
    store = pipeline.last_report.store
    ratios = tuple(sum(block.values()) / alone for block, alone in zip(blocks, whole, strict=True))
    return Overhead(
        model=pipeline.plan.model,
        rounds=rounds,
        queries=queries,
        ratio=median(ratios),
        ratios=ratios,
        pipeline_ms=median(sum(block.values()) for block in blocks),
        unsplit_ms=median(whole),
        shares_ms={name: median(block[name] for block in blocks) for name in blocks[0]},
        polls=store.exists,
        bytes_per_query=store.bytes_put + store.bytes_get,
        weight_loads=pipeline.last.weight_loads,
        machine=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {processor_name()}",
    )


def _unsplit_ms(unsplit: Callable[[NDArray[Any]], Any], pixels: NDArray[Any], queries: int) -> float:
    started = time.thread_time()
    for _ in range(queries):
        unsplit(pixels)
    return (time.thread_time() - started) * _MS_PER_S / queries


def _processor_s() -> dict[str, float]:
    """Return the processor seconds so far of this process and of those below it, by what they are."""
    spent: dict[str, float] = defaultdict(float)
    spent["client, driver, Lambda service"] = time.process_time()
    for process in descendants():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            spent["Redis" if process.name().startswith("redis") else "workers"] += used_s([process])
    return spent
