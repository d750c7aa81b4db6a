"""The plans of the chaos suite: every stage passes its output through the store, so that store faults reach it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from serfer.core.costs.aws import shipped_aws
from serfer.core.plan import sealed
from serfer.packaging.build_cache import assembled, in_use
from serfer.packaging.bundle import code_stamp
from serfer.plan_directory import load_plan, write_plan
from serfer.settings import Settings
from serfer.splitter.split import split
from serfer_bench.core.options import network

Progress = Callable[[str], None]
_MODEL, _SIZE, _GRIDS = "squeezenet", 96, ("2x2", "2x2", "1")
_STAMPED = ("serfer.splitter", "serfer.core")


def chaos_plan(model: str | None, plan: Path | None, settings: Settings, progress: Progress) -> Path:
    chosen = plan is not None or model is not None
    return through_store(network(model, plan, settings, progress) if chosen else _small(settings, progress), settings)


def through_store(directory: Path, settings: Settings) -> Path:
    plan = load_plan(directory)
    last = len(plan.stages) - 1
    paths = ("inline" if number == last else "cache" for number in range(last + 1))
    stages = tuple(replace(stage, path=path) for stage, path in zip(plan.stages, paths, strict=True))
    changed = sealed(replace(plan, stages=stages))
    target = settings.cache_dir / "plans" / f"stored-{changed.digest[:32]}"
    if not in_use(target):
        with assembled(target) as fresh:
            shutil.copytree(directory, fresh, dirs_exist_ok=True)  # no links: onnx reads no weights that have them
            write_plan(changed, fresh)
    return target


def _small(settings: Settings, progress: Progress) -> Path:
    target = settings.cache_dir / "plans" / f"chaos-{_MODEL}-{_SIZE}-{code_stamp(_STAMPED)}"
    if not in_use(target):
        progress(f"splitting {_MODEL} at {_SIZE} px, once: the plan stays in {target.parent}")
        with assembled(target) as fresh:
            example = np.zeros((1, 3, _SIZE, _SIZE), dtype=np.float32)
            split(
                _MODEL,
                example,
                fresh,
                grids=list(_GRIDS),
                memory_mb=shipped_aws().functions.memory_per_vcpu,
                precision="fp32",
                gap="never",
            )
    return target
