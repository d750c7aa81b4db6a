"""Whole networks, run here: what every split answer is measured against (rule 1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.sessions import keep_padding
from serfer.core.errors import PlanError
from serfer.core.plan import Plan
from serfer.core.plan.answers import Answer, as_answer, shaped
from serfer.core.plan.pixels import normalise
from serfer.pipeline.query import plan_for, preprocess_of

Array = NDArray[np.float32]
Run = Callable[[NDArray[Any]], Answer]


def unsplit(plan: Plan, directory: Path) -> Run:
    """Return what a plan's stages compute, in one piece, as a function of a batch, on one thread of this process.

    It takes (N, C, H, W) float32 or (N, H, W, C) uint8 pixels and returns what `Pipeline.run` does.
    """
    return _runner(plan, directory / plan.unsplit.path)


def original(plan: Plan, directory: Path) -> Run:
    """Return the model as it was given: `unsplit`, but for plans that store weights in fp16 or have another head."""
    return _runner(plan, directory / plan.original[0].path) if plan.original else unsplit(plan, directory)


def _runner(plan: Plan, path: Path) -> Run:
    import onnxruntime as ort  # noqa: PLC0415 - only comparing needs it

    if not path.is_file():
        raise PlanError(f"{path} is missing: comparing needs the whole plan directory")
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    keep_padding(options)
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(batch: NDArray[Any]) -> Answer:
        tensors = plan_for(plan, batch).output_tensors if plan.sizes else plan.output_tensors
        values = normalised(plan, batch) if batch.dtype == np.uint8 else batch
        results = session.run(None, {"input0": np.ascontiguousarray(values)})
        return as_answer(shaped(tensors, results))

    return run


def normalised(plan: Plan, pixels: NDArray[np.uint8]) -> Array:
    """Return pixels, (N, H, W, C) uint8, as the network's input, (N, C, H, W) float32: (x * scale - mean) / std."""
    return normalise(pixels, preprocess_of(plan))
