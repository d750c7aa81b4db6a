"""The check of rule 1: every tile's graph on slices of whole maps, compared with the unsplit model.

This walks the plan's rectangles and graphs, not its cells and pieces: the store's path is checked by running the plan
through a driver (`serfer verify`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from serfer.core.errors import ModelError, WrongAnswerError
from serfer.core.exactness import TOLERANCE, Difference, difference, finite_share, runtime_noise
from serfer.core.plan import IMAGE, OutputTensor, Plan
from serfer.core.plan.answers import Answer, as_answer, joined, shaped
from serfer.plug_ins import in_one_line
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.onnx_models import plain_options, session_of
from serfer.splitter.network.reductions import of_probabilities
from serfer.splitter.network.source import Array, Run, Source
from serfer.splitter.network.unsupported import CannotSplitError
from serfer.splitter.plan_dir.emit import in_one_piece, input_name, output_name

_Tensors = dict[tuple[int, int], Array]
_NOT_FINITE = (
    "{values} values of the network's answers to the example and to random images are NaN or infinite, and so are the "
    "plan's: queries with such answers fail (look at its weights, or at what its images should hold)"
)
_NEARLY_CONSTANT = (
    "the network answers the example and random images nearly alike: the check allowed what ONNX Runtime's own "
    "rounding makes of them, which says little; look at `serfer verify` on your images"
)


def run_tiles(plan: Plan, directory: Path, batch: Array) -> Answer:
    """Run the plan on whole maps in one process; (N, C, H, W) float32 in, out what `Pipeline.run` returns."""
    tensors: _Tensors = {(IMAGE, IMAGE): batch}
    for number, stage in enumerate(plan.stages):
        whole = [np.empty(shape.of(shape.whole, len(batch)), dtype=np.float32) for shape in stage.outputs]
        for tile in stage.tiles:
            session = session_of(directory / tile.graph)
            given = {
                input_name(index): np.ascontiguousarray(tensors[read.stage, read.output][read.shape.slices(rect)])
                for index, (read, rect) in enumerate(zip(stage.inputs, tile.inputs, strict=True))
            }
            names = [output_name(index) for index in range(len(whole))]
            results = zip(whole, stage.outputs, tile.outputs, session.run(names, given), strict=True)
            for result, shape, rect, part in results:
                result[shape.slices(rect)] = part
        tensors |= {(number, index): result for index, result in enumerate(whole)}
    last = len(plan.stages) - 1
    values = [tensors[last, index] for index in range(len(plan.output_tensors))]
    return as_answer(shaped(plan.output_tensors, values))


def whole_runner(model: Graph | Path, tensors: Sequence[OutputTensor] = (), *, optimized: bool = True) -> Run:
    """Return the whole network as a function of a batch: a graph, or a plan's unsplit.onnx with outputs `tensors`.

    They may be left out for a network that classifies. Where it is not `optimized`, other kernels compute it.
    """
    options = plain_options(optimized=optimized)
    if isinstance(model, Path):
        session = session_of(model, options)
    else:
        session, tensors = session_of(in_one_piece(model).model({}), options), model.output_tensors

    def run(batch: Array) -> Answer:
        results: list[Array] = session.run(None, {input_name(0): batch})
        return as_answer(shaped(tensors, results)) if tensors else results[0]

    return run


def noise_of(runner: Callable[..., Run], graph: Graph, batch: Array) -> tuple[float, ...]:
    """Return what rounding may alter in each output of a graph, which a `whole_runner` runs.

    Of a network that itself rounds nothing is said: its steps are larger.
    """
    if graph.rounding:
        return ()
    whole, again = (runner(optimized=way)(batch) for way in (True, False))
    return runtime_noise(whole, again, batch, of_sigmoids=of_probabilities(graph))


def check_exact(plan: Plan, directory: Path, source: Source, batch: Array, graph: Graph) -> str:
    """Compare the plan with the model on `batch`; raises WrongAnswerError where rule 1 does not hold.

    A plan that changes the network is compared with what it computes, and so is one of a model that rounds: what it
    computes may be its `graph`'s rounding away from the model's own answer. Where answers to `batch` are NaN or
    infinite, images without negative values are taken if they have more finite ones. Returns what to warn of: that
    values are not finite, or nearly constant; empty otherwise. Raises ModelError where the model, or a part of it,
    cannot run on a batch at all, or was read or exported as another network.
    """
    batch, expected, finite = _most_finite(source, batch)
    got, noise = _run_parts(plan, directory, batch), tuple[float, ...]()
    unsplit = given = partial(whole_runner, directory / plan.unsplit.path, plan.outputs)
    if plan.original:
        given = partial(whole_runner, directory / plan.original[0].path, plan.outputs)
    if plan.original or graph.rounding:
        _check_reading(given, graph, source, expected, batch)
        expected = unsplit()(batch)
    deviation = difference(got, expected)
    if not deviation.exact:
        noise = noise_of(unsplit, graph, batch)
        deviation = difference(got, expected, noise)
    if not deviation.exact:
        if not plan.original and not graph.rounding:
            _check_reading(unsplit, graph, source, expected, batch)
        if finite < 1:
            raise CannotSplitError("its answers to random images are NaN or infinite, elsewhere when it is split")
        raise WrongAnswerError(
            f"the split network differs from the unsplit one by {deviation.error:.2g} of its range (at most "
            f"{TOLERANCE:g} is allowed), or in its first class; nothing was written: split --whole runs it as it is"
        )
    if finite < 1:
        return _NOT_FINITE.format(values="some" if finite else "all")
    return _NEARLY_CONSTANT if noise else ""


def _most_finite(source: Source, batch: Array) -> tuple[Array, Answer, float]:
    """A network may take a logarithm or a root of what is negative in noise and in no image."""
    expected = _run_model(source, batch)
    finite = finite_share(expected)
    if finite == 1:
        return batch, expected, finite
    other = source.like_images(np.abs(batch))
    answer = _run_model(source, other)
    share = finite_share(answer)
    return (other, answer, share) if share > finite else (batch, expected, finite)


def _run_model(source: Source, batch: Array) -> Answer:
    try:
        return source.run(batch)
    except ModelError:
        raise  # names the reason itself
    except Exception as failure:  # the user's own code may raise anything; on one image it ran
        raise CannotSplitError(
            f"the model does not run on a batch of {len(batch)} images: {in_one_line(failure)}"
        ) from failure


def _run_parts(plan: Plan, directory: Path, batch: Array) -> Answer:
    try:
        return run_tiles(plan, directory, batch)
    except Exception as failure:  # ONNX Runtime has a class for each status
        try:
            run_tiles(plan, directory, batch[:1])
        except Exception as other:
            raise CannotSplitError(
                f"a part of the split network does not run in ONNX Runtime: {in_one_line(other)}"
            ) from other
        raise CannotSplitError(
            f"the network does not run on a batch of {len(batch)} images, though on one: {in_one_line(failure)}"
        ) from failure


def _check_reading(runner: Callable[..., Run], graph: Graph, source: Source, expected: Answer, batch: Array) -> None:
    run, rounding = runner(), graph.rounding
    answer = run(batch)
    deviation = difference(answer, expected)
    if _agrees(deviation, rounding) or difference(answer, expected, noise_of(runner, graph, batch)).exact:
        return
    if not difference(source.run(batch), expected).exact:
        raise ModelError("the model answers the same images differently each time: an operator is random")
    how = f"by {deviation.error:.2g} of its range, or in its first class, before anything is split"
    if _agrees(difference(_one_by_one(run, batch), _one_by_one(source.run, batch)), rounding):
        raise CannotSplitError(
            f"the model answers a batch of {len(batch)} images differently from single images, {how}: an operator "
            "mixes the images of a batch or depends on their number"
        )
    if source.exported:
        raise ModelError(
            f"as exported to ONNX, the network differs from the model itself {how}: torch's exporter writes an "
            "operator wrongly"
        )
    raise CannotSplitError(
        f"the network as read from the ONNX file differs from what ONNX Runtime computes of the file {how}: it has an "
        "operator that is read wrongly here or that ONNX Runtime does not compute as ONNX defines it, or rounding "
        "errors grow in it"
    )


def _agrees(deviation: Difference, rounding: float) -> bool:
    return deviation.error <= rounding if rounding else deviation.exact


def _one_by_one(run: Run, batch: Array) -> Answer:
    return joined([run(image[None]) for image in batch])
