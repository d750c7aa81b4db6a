"""Processor time of the whole warm pipeline against the unsplit forward pass, in turn, in one run.

The pipeline's time is that of this process (client, driver, Lambda service) and of every process below it (Redis,
workers), read from the kernel before and after a block of queries, one at a time. The image is decoded beforehand: the
unsplit pass gets the same pixels and normalises them too. Processor time, unlike elapsed time, hardly notices what else
the machine does; ratios of neighbours in time notice least.
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.core.processes import descendants
from bench.core.stamp import processor_name
from serfer.pipeline.pipeline import Pipeline

_WARM_UP = 30
_NS_PER_MS = 1e6


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
        before = _processor_ns()
        for _ in range(queries):
            pipeline.run(pixels)
        after = _processor_ns()
        blocks.append({name: (after[name] - before[name]) / _NS_PER_MS / queries for name in after})
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
    started = time.thread_time_ns()
    for _ in range(queries):
        unsplit(pixels)
    return (time.thread_time_ns() - started) / _NS_PER_MS / queries


def _processor_ns() -> dict[str, float]:
    """Return the processor time so far, in ns, of this process and of those below it, by what they are."""
    spent: dict[str, float] = defaultdict(float)
    spent["client, driver, Lambda service"] = float(time.process_time_ns())
    for process in descendants():
        try:
            name = Path(f"/proc/{process}/comm").read_text(encoding="ascii").strip()
            threads = list(Path(f"/proc/{process}/task").iterdir())
            used = sum(int((thread / "schedstat").read_text(encoding="ascii").split()[0]) for thread in threads)
        except FileNotFoundError:
            continue  # it has just ended
        spent["Redis" if name.startswith("redis") else "workers"] += used
    return spent
