"""The fixed plans of the figures: cuts and grids written down, so that a figure does not move when the planner does.

Convolutions run on 2x2 tiles, fully connected layers whole, or by columns where their weights exceed a package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from serfer.build_cache import forget_unused, in_use
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import UsageError
from serfer.packaging.bundle import code_stamp
from serfer.settings import Settings
from serfer.splitter.network.zoo import find
from serfer.splitter.split import split
from serfer.wiring.plan_cache import cached_plan

if TYPE_CHECKING:
    from torch import nn


def write_onnx(model: nn.Module | str, side: int, file: Path) -> None:
    from serfer.splitter.network.source import load  # noqa: PLC0415 - imports torch
    from serfer.splitter.plan_dir.emit import in_one_piece  # noqa: PLC0415 - same
    from serfer.splitter.tiling.from_onnx import from_onnx  # noqa: PLC0415 - same

    source, _ = load(model, np.zeros((1, 3, side, side), np.float32))
    graph = from_onnx(source.onnx, side, side, source.outputs)
    file.write_bytes(in_one_piece(graph).model({}).SerializeToString())


Progress = Callable[[str], None]


@dataclass(frozen=True)
class BenchPlan:
    """A network of the zoo at one height and width, cut after these operators, on these grids; all on one vCPU."""

    model: str
    size: int
    grids: tuple[str, ...]
    cuts: tuple[str, ...]


_ALEXNET_CUTS = ("node_max_pool2d_1", "node_max_pool2d_2", "node_relu_5")
_VGG16_CUTS = ("node_max_pool2d_2", "node_max_pool2d_4", "node_relu_13")
_VGG16_448_CUTS = ("node_max_pool2d_2", "node__adaptive_avg_pool2d", "node_relu_13")
_RESNET50_CUTS = ("node_relu_12", "node_mean.tiles")
PLANS = {
    "alexnet": BenchPlan("alexnet", 224, ("2x2", "2x2", "1", "1"), _ALEXNET_CUTS),
    "vgg16": BenchPlan("vgg16", 224, ("2x2", "2x2", "col4", "1"), _VGG16_CUTS),
    "vgg16-448": BenchPlan("vgg16", 448, ("2x2", "2x2", "col4", "1"), _VGG16_448_CUTS),
    "resnet50": BenchPlan("resnet50", 224, ("2x2", "2x2", "1"), _RESNET50_CUTS),
}
_CHANNELS = 3


def tiled_plan(name: str, settings: Settings, progress: Progress = lambda _: None) -> Path:
    """Return the directory of a plan of a network of the zoo in its tiles, with weights in zips; one in the cache.

    Without tiles of its own, the planner chooses. Raises ModelError for an unknown name.
    """
    grids = list(find(name).grids) or "auto"

    def make(directory: Path) -> None:
        progress(f"splitting {name}, once: the plan stays in {directory.parent}")
        split(name, out=directory, grids=grids, weights="zip", progress=progress)

    return cached_plan(settings.cache_dir, f"tiled-{name}-{code_stamp(('serfer.splitter', 'serfer.core'))}", make)


def bench_plan(name: str, settings: Settings, progress: Progress = lambda _: None) -> Path:
    if name not in PLANS:
        raise UsageError(f"there is no fixed plan {name!r}; there are {', '.join(PLANS)}")
    wanted = PLANS[name]
    kind = hashlib.sha256(repr(wanted).encode()).hexdigest()[:8]
    target = settings.cache_dir / "plans" / f"bench-{name}-{kind}-{code_stamp(('serfer.splitter', 'serfer.core'))}"
    if not in_use(target):
        progress(f"splitting {name} as bench/core/plans.py says, once: the plan stays in {target.parent}")
        target.parent.mkdir(parents=True, exist_ok=True)
        example = np.zeros((1, _CHANNELS, wanted.size, wanted.size), dtype=np.float32)
        split(
            wanted.model,
            example,
            target,
            grids=list(wanted.grids),
            cuts=wanted.cuts,
            memory_mb=shipped_aws().functions.memory_per_vcpu,
            precision="fp32",
            gap="never",
            progress=progress,
        )
        forget_unused(target.parent)
    return target
