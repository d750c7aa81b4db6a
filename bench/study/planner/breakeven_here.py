"""The break-even as far as one machine can measure it: one function against a split over two, orchestration included.

Three plans of a network are run in turn through the same driver, local Lambda service and Redis: one function with one
vCPU, one function with two, and tiles 1x2 (columns of fully connected layers where they are large) on functions with
one vCPU each. Two processors are enough. The local service answers an invocation in a fraction of a
millisecond, where AWS's takes some 30 (docs/explanation/cost.md), so a network that does not gain here gains nowhere.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from serfer.pipeline.blocking import Pipeline
from serfer.settings import Settings
from serfer.splitter.split import split
from serfer.wiring.open_pipeline import open_pipeline
from serfer_bench.core.container_settings import IMAGE_MB, ContainerSettings
from serfer_bench.core.tables import Results, Table
from serfer_bench.study.planner.planner import Progress

NETWORKS = ("squeezenet", "mobilenet-v2", "resnet18", "resnet50", "vgg16")
SIZES = (224, 448)
_MS_PER_S = 1000


@dataclass(frozen=True)
class Measured:
    """Median wall milliseconds of a warm query, and how far the slowest and fastest of them lie apart, as a share."""

    model: str
    size: int
    one_vcpu_ms: float
    two_vcpus_ms: float
    split_ms: float
    stages: str
    spread: float

    @property
    def speedup(self) -> float:
        return self.one_vcpu_ms / self.split_ms

    @property
    def against_large(self) -> float:
        """The speedup of the split over one function with two vCPUs, the same processors."""
        return self.two_vcpus_ms / self.split_ms

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "speedup": self.speedup, "against_large": self.against_large}


def measure(
    settings: Settings,
    networks: Sequence[str] = NETWORKS,
    sizes: Sequence[int] = SIZES,
    rounds: int = 15,
    progress: Progress = lambda _: None,
) -> list[Measured]:
    settings = ContainerSettings(**dict(settings))
    return [_measured(settings, name, size, rounds, progress) for name in networks for size in sizes]


def _measured(settings: Settings, name: str, size: int, rounds: int, progress: Progress) -> Measured:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        one_vcpu_mb = settings.facts().functions.memory_per_vcpu

        def opened(what: str, memory_mb: int, **how: object) -> Pipeline:
            progress(f"splitting {name} at {size} px: {what}")
            example = np.zeros((1, 3, size, size), dtype=np.float32)
            split(name, example, root / what, limit_mb=IMAGE_MB, memory_mb=memory_mb, facts=settings.facts(), **how)  # type: ignore[arg-type]
            return stack.enter_context(open_pipeline(root / what, workers="local", settings=settings))

        pipelines = [
            opened("one vCPU", one_vcpu_mb, grids="1", stages=1),
            opened("two vCPUs", 2 * one_vcpu_mb, grids="1", stages=1),
            opened("split", one_vcpu_mb, grids=(1, 2), objective="latency"),
        ]
        progress(f"running {name} at {size} px")
        pixels = np.random.default_rng(0).integers(0, 256, (1, size, size, 3), dtype=np.uint8)
        for pipeline in pipelines:
            _query(pipeline, pixels)
        times = np.array([[_query(pipeline, pixels) for pipeline in pipelines] for _ in range(rounds)])
        grids = ", ".join(str(stage.grid) for stage in pipelines[-1].plan.stages)
        one, two, halves = (median(column) * _MS_PER_S for column in times.T)
        spread = float((times.max(axis=0) / times.min(axis=0) - 1).max())
        return Measured(name, size, one, two, halves, grids, spread)


def _query(pipeline: Pipeline, pixels: np.ndarray) -> float:
    started = time.perf_counter()
    pipeline.run(pixels)
    return time.perf_counter() - started


_HEAD = ("network", "px", "one vCPU ms", "two vCPUs ms", "split over two ms", "against one", "against two", "stages")


def rows(measured: Sequence[Measured]) -> list[tuple[str, ...]]:
    return [
        (
            *(one.model, str(one.size), f"{one.one_vcpu_ms:.1f}", f"{one.two_vcpus_ms:.1f}", f"{one.split_ms:.1f}"),
            *(f"{one.speedup:.2f}x", f"{one.against_large:.2f}x", one.stages),
        )
        for one in measured
    ]


def results(measured: Sequence[Measured]) -> Results:
    spread = max(one.spread for one in measured)
    note = f"measured; slowest over fastest run at most {spread:+.0%}"
    return Results((one.as_dict() for one in measured), [Table(_HEAD, rows(measured))], [note])
