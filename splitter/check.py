"""Rule 1 by the shortest way: run every tile's graph on slices of whole maps and compare with the unsplit model.

This walks the plan's rectangles and graphs, not its cells and pieces: the store's path is checked by running the plan
through a driver (`serfer verify`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort

from serfer.core.errors import ModelError, WrongAnswerError
from serfer.core.plan import IMAGE, Plan
from splitter.emit import in_one_piece, input_name, output_name
from splitter.exactness import TOLERANCE, check_finite, difference
from splitter.graph import Graph
from splitter.load import Array, Run

_Tensors = dict[tuple[int, int], Array]


def run_tiles(plan: Plan, directory: Path, batch: Array) -> Array:
    """Run the plan on whole maps in one process; (N, C, H, W) float32 in, (N, K) float32 out."""
    tensors: _Tensors = {(IMAGE, IMAGE): batch}
    for number, stage in enumerate(plan.stages):
        whole = [np.empty(shape.of(shape.whole, len(batch)), dtype=np.float32) for shape in stage.outputs]
        for tile in stage.tiles:
            session = _session(directory / tile.graph)
            given = {
                input_name(index): np.ascontiguousarray(tensors[read.stage, read.output][read.shape.slices(rect)])
                for index, (read, rect) in enumerate(zip(stage.inputs, tile.inputs, strict=True))
            }
            names = [output_name(index) for index in range(len(whole))]
            results = zip(whole, stage.outputs, tile.outputs, session.run(names, given), strict=True)
            for result, shape, rect, part in results:
                result[shape.slices(rect)] = part
        tensors |= {(number, index): result for index, result in enumerate(whole)}
    return tensors[len(plan.stages) - 1, 0]


def _session(model: Path | bytes) -> ort.InferenceSession:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])


def whole_runner(model: Graph | Path) -> Run:
    """Return the whole network (a graph, or a plan's unsplit.onnx) as a function of a batch."""
    path = model if isinstance(model, Path) else in_one_piece(model).model({}).SerializeToString()
    session = _session(path)

    def run(batch: Array) -> Array:
        result: Array = session.run(None, {input_name(0): batch})[0]
        return result

    return run


def check_exact(plan: Plan, directory: Path, model: Run, batch: Array) -> float:
    """Return the relative error of the plan on `batch`; raises WrongAnswerError where rule 1 does not hold.

    A plan that changes the network is compared with what it computes. Raises ModelError where the model, or a part of
    it, cannot run on a batch at all, has no finite answer, or has another one as exported to ONNX.
    """
    try:
        expected, got = model(batch), run_tiles(plan, directory, batch)
    except ModelError:
        raise  # says why by itself
    except Exception as failure:  # the user's own code and ONNX Runtime may raise anything
        raise ModelError(
            f"the network does not run on a batch of {len(batch)} images: "
            f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"
        ) from failure
    check_finite(expected, "the model's own answer to the example, or to a random image,")
    if plan.original:
        _check_export(directory / plan.original[0].path, model, expected, batch)
        expected = whole_runner(directory / plan.unsplit.path)(batch)
    if got.shape != expected.shape:
        raise WrongAnswerError(
            f"the split network answers with shape {got.shape}, the unsplit one with {expected.shape}"
        )
    found = difference(got, expected)
    if not found.exact:
        if not plan.original:
            _check_export(directory / plan.unsplit.path, model, expected, batch)
        raise WrongAnswerError(
            f"the split network differs from the unsplit one by {found.error:.2g} of its range (at most "
            f"{TOLERANCE:g} is allowed), or in its first class; nothing was written"
        )
    return found.error


def _check_export(path: Path, model: Run, expected: Array, batch: Array) -> None:
    """Raise ModelError where the network at `path`, which is not split, answers otherwise than the model itself."""
    found = difference(whole_runner(path)(batch), expected)
    if found.exact:
        return
    if not difference(model(batch), expected).exact:
        raise ModelError("the model answers the same images otherwise each time: an operator depends on chance")
    raise ModelError(
        f"as exported to ONNX, the network differs from the model itself by {found.error:.2g} of its range, or in its "
        "first class, before anything is split: an operator is exported wrongly, or depends on the number of images"
    )
