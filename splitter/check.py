"""Rule 1 by the shortest way: run every tile's graph on slices of whole maps and compare with the unsplit model.

This walks the plan's rectangles and graphs, not its cells and pieces: the store's path is checked by running the plan
through a driver (`serfer verify`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort

from serfer.core.errors import ModelError, WrongAnswerError
from serfer.core.plan import Plan
from splitter.exactness import TOLERANCE, difference
from splitter.load import Array


def run_tiles(plan: Plan, directory: Path, batch: Array) -> Array:
    """Run the plan on whole maps in one process; (N, C, H, W) float32 in, (N, K) float32 out."""
    current = batch
    for stage in plan.stages:
        result = np.empty(stage.output.of(stage.output.whole, len(batch)), dtype=np.float32)
        for tile in stage.tiles:
            session = ort.InferenceSession(directory / tile.graph, providers=["CPUExecutionProvider"])
            view = current if stage.input.flat else current[:, :, *tile.input.slices]
            output = session.run(None, {"input": np.ascontiguousarray(view)})[0]
            result[(...,) if stage.output.flat else (slice(None), slice(None), *tile.output.slices)] = output
        current = result
    return current


def check_exact(plan: Plan, directory: Path, unsplit: Callable[[Array], Array], batch: Array) -> float:
    """Return the relative error of the plan on `batch`; raises WrongAnswerError where rule 1 does not hold.

    Raises ModelError where the model, or a part of it, cannot run on a batch at all.
    """
    try:
        expected, got = unsplit(batch), run_tiles(plan, directory, batch)
    except Exception as failure:  # the user's own code and ONNX Runtime may raise anything
        raise ModelError(
            f"the network does not run on a batch of {len(batch)} images: "
            f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"
        ) from failure
    if got.shape != expected.shape:
        raise WrongAnswerError(
            f"the split network answers with shape {got.shape}, the unsplit one with {expected.shape}"
        )
    found = difference(got, expected)
    if not found.exact:
        raise WrongAnswerError(
            f"the split network differs from the unsplit one by {found.error:.2g} of its range (at most "
            f"{TOLERANCE:g} is allowed), or in its first class: "
            "an operator depends on the batch, the size, or chance; nothing was written"
        )
    return found.error
