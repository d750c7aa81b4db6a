"""Maps of random networks, sizes and windows: those of the network on the whole image, or refused by their reason.

The oracle is ONNX Runtime (torch, of modules) on the whole image, which knows nothing of windows; which of the networks
have a map at all says a judge that knows nothing of the splitter (`has_a_map`). `check_cases([draw(SEED, NUMBER)])`
repeats a case; pytest prints the seed, which `make weekly` takes from the day.
"""

import os
import re
import tempfile
import warnings
from collections import Counter
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from torch import nn

import serfer
from serfer.core.errors import InputError, SerferError
from serfer.core.exactness import TOLERANCE, relative_error
from serfer.core.passes import StatisticsSum, packed, unpacked, window_statistics
from serfer.core.plan import IMAGE_READ
from serfer.plan_directory import load_plan
from tests.exports import run_module
from tests.splitter.models import saved
from tests.splitter.windows.random_maps import draw

FEW, DAILY, WEEKLY = 5, 120, 3000
FIXED_SEED = 34
FEW_LANES, LANES = 3, 10  # of 40 networks and more each, since a share of few is chance
MAPPED = 0.75
"""Of the networks that the judge says have a map."""
NOT_A_REASON = re.compile(
    r"Traceback|\b\w*(Index|Key|Type|Value|Attribute|Assertion)Error\b|object has no|__\w+__|Symbolic"
)
FLIPS = 2e-3  # of classes, where the two best scores are as good as equal


def seed():
    return int(os.environ["TEST_SEED"])


def by_windows(directory, batch):
    """Return the map of an image (1, C, H, W) that the graphs of a plan make, window by window: no driver, no store."""
    [result] = all_by_windows(directory, batch)
    return result


def all_by_windows(directory, batch):
    return maps_and_statistics(directory, batch)[0]


def maps_and_statistics(directory, batch, given=None):
    """Return the maps of all outputs, and the statistics of the image: those `given`, or what passes make of it."""
    plan, sessions = load_plan(directory), {}
    statistics = np.zeros((1, plan.windows.statistics), np.float32)
    kept = {IMAGE_READ: batch[0]}

    def compute(window, known, reads):
        graph = plan.stages[0].tiles[window.tile].graph
        if graph not in sessions:
            sessions[graph] = session(Path(directory) / graph)
        inputs = {"input0": np.ascontiguousarray(batch[:, :, *window.read.slices])}
        if reads:
            parts = [kept[number][:, *rect.slices] for number, rect in zip(reads, window.reads, strict=True)]
            inputs = {"input0": packed(parts, batch.shape[1])}
        vector = np.frombuffer(plan.windows.vector(known.tobytes(), window), np.float32)[None]
        return sessions[graph].run(None, inputs | ({"input1": vector} if vector.size else {}))

    windows = plan.windows.of(*batch.shape[2:])
    for number, one in enumerate(plan.windows.passes):
        total, cut = StatisticsSum(one.maps), one.of(*batch.shape[2:])
        kept |= empty_maps(one, cut, plan.windows.kept_by(number))
        for window in cut:
            known = np.frombuffer(window_statistics(statistics.tobytes(), window), np.float32)[None]
            found = compute(window, known, one.reads)[0].reshape(-1)
            total.add(found)
            shapes = [form.shape(rect) for form, rect in zip(one.keeps, window.keeps, strict=True)]
            parts = unpacked(found[one.partial_size :], shapes)
            for place, rect, part in zip(plan.windows.kept_by(number), window.keeps, parts, strict=True):
                kept[place][:, *rect.slices] = part
        values, start = total.values(), one.maps[0].start
        statistics[0, start : start + values.size] = values
    statistics = statistics if given is None else given[None]
    views = [windows.of_output(number) for number in range(len(plan.output_tensors))]
    results = [None] * len(views)
    for number, window in enumerate(windows):
        made = compute(window, statistics, plan.windows.reads)
        for place, (view, values) in enumerate(zip(views, made, strict=True)):
            part = view[number]
            if results[place] is None:
                results[place] = np.full((*values.shape[:-2], view.height, view.width), np.nan, values.dtype)
            results[place][..., *part.written.slices] = values[..., *part.kept]
    return results, statistics[0]


def empty_maps(one, windows, numbers):
    """Return the maps that a pass keeps of an image, by their numbers, with nothing in them yet."""
    ends = windows[len(windows) - 1].keeps
    return {
        number: np.full((form.channels, end.rows.stop, end.cols.stop), np.nan, np.float32)
        for number, form, end in zip(numbers, one.keeps, ends, strict=True)
    }


def session(model):
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return ort.InferenceSession(model if isinstance(model, bytes) else str(model), options)


def answers_of(case):
    """Return what computes all outputs of a case's network on a whole image."""
    if isinstance(case.model, nn.Module):
        return lambda image: [run_module(case.model, image)]
    oracle = session(case.model.SerializeToString())
    return lambda image: oracle.run(None, {"x": image})


def planned(case, model, directory):
    """Make the plan of a case; windows that are not a multiple of the stride become the next multiple."""
    try:
        kept = "never" if case.sizes == "any" else ("never", "always")[sum(case.sizes[0]) % 2]
        options = {"channels": case.channels, "reduce": case.reduce, "statistics": "exact", "kept_maps": kept}
        serfer.map_plan(model, case.sizes, directory, window=case.window, **options)
    except serfer.UsageError as error:
        nearest = re.search(r"nearest ones are \d+ and (\d+)", str(error))
        if not nearest:
            raise
        serfer.map_plan(model, case.sizes, directory, window=int(nearest[1]), **options)


def outcome(case, sizes_of=None):
    """Return "exact", "refused" or "infinite", the reason of the refusal, and what is wrong with it, if anything.

    Images are of the sizes that a plan is for; where it is for any, of those that `sizes_of(case, directory)` gives.
    """
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(action="ignore"):
        directory = Path(place, "plan")
        try:
            planned(
                case, case.model if isinstance(case.model, nn.Module) else saved(Path(place), case.model), directory
            )
        except SerferError as error:
            return "refused", str(error), "a reason that is none" * bool(NOT_A_REASON.search(str(error)))
        answers = answers_of(case)
        for size in sizes_of(case, directory) if sizes_of else {*product(*zip(*case.sizes, strict=True))}:
            image = case.image(*size)
            expected = answers(image)
            if not all(np.isfinite(values).all() for values in expected):
                return "infinite", "", ""
            if case.reduce:
                expected = [expected[0].argmax(1)]
            found = [*map(compared, all_by_windows(directory, image), expected)]
            if any(found):
                return "exact", "", f"{size}: {found}"
        return "exact", "", "" if sizes_of else not_planned(case, directory)


def compared(result, expected):
    result = result.reshape(expected.shape) if result.size == expected.size else result
    if result.shape != expected.shape:
        return f"its shape is {result.shape} and not {expected.shape}"
    if expected.dtype.kind == "i":
        share = (result != expected).mean()
        return f"{share:.2%} of classes differ" if share > FLIPS else ""
    error = relative_error(result, expected)
    return "" if error <= TOLERANCE else f"differs by {error:.2g} of the range"


def not_planned(case, directory):
    """An image of a size that no plan was made for is refused."""
    height, _ = case.sizes[0]
    try:
        by_windows(directory, case.image(height + 1, max(each for _, each in case.sizes) + 5))
    except InputError as error:
        return "" if "this plan is for" in str(error) else str(error)
    return "an image of another size was mapped"


def check_cases(cases, sizes_of=None):
    """Check that nothing is wrong with any case; return how they end, and those that are refused with the reasons."""
    ends, wrong, refused = Counter(), [], []
    for case in cases:
        end, reason, trouble = outcome(case, sizes_of)
        ends[end] += 1
        if trouble:
            wrong.append(f"{case}: {trouble} {reason}")
        if end == "refused":
            refused.append((case, reason))
    print(dict(ends), f"seed {cases[0].seed}")  # noqa: T201 - `make weekly` shows them
    assert not wrong, "\n".join(wrong)
    return ends, refused


def check(numbers, of_seed):
    """Check the cases of these numbers, of which most that have a map by the judge are mapped."""
    cases = [draw(of_seed, number, several=True) for number in numbers]
    _, refused = check_cases(cases)
    judged = {case.number for case in cases if has_a_map(case)}
    needless = [f"{case}: {reason}" for case, reason in refused if case.number in judged]
    assert len(judged) >= len(numbers) // 4
    assert len(needless) <= (1 - MAPPED) * len(judged), "\n".join(needless)


@pytest.mark.exact
def test_a_few_random_networks_have_the_map_of_the_whole_image():
    check(range(FEW), FIXED_SEED)


@pytest.mark.exact
@pytest.mark.parametrize(
    ("count", "lanes", "lane"),
    [
        *(pytest.param(DAILY, FEW_LANES, lane, marks=pytest.mark.slow) for lane in range(FEW_LANES)),
        *(pytest.param(WEEKLY, LANES, lane, marks=pytest.mark.weekly) for lane in range(LANES)),
    ],
)
def test_random_networks_have_the_map_of_the_whole_image_or_are_refused(count, lanes, lane):
    check(range(lane, count, lanes), seed())


ELSEWHERE = ("global", "flipped", "placed")
"""Steps whose values depend on where in the image they are, or which look at all of a row or column."""
_MOST = 8
"""Of a resizing's factor: the numerator and the denominator of those after so many rows of which it begins again."""
_LEAST = 4
"""Rows and columns of a result that has windows."""


def has_a_map(case):
    """Return whether a case's network is an ONNX file and looks at neighbourhoods and at statistics, at all sizes."""
    elsewhere = any(step.startswith(ELSEWHERE) or " replaced at " in step for step in case.story)
    if isinstance(case.model, nn.Module) or elsewhere:
        return False
    return all(_is_local(case, size) for size in product(*zip(*case.sizes, strict=True)))


def _is_local(case, size):
    """Return whether a network runs on an image, and each of its resizings begins again after a few rows."""
    resizings = [node for node in case.model.graph.node if node.op_type == "Resize"]
    names = [name for node in resizings for name in (node.input[0], node.output[0])]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    made = {value.name for value in model.graph.output} | {"x"}
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in dict.fromkeys(names)
        if name not in made
    )
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options)
        image = case.image(*size)
        found = dict(zip([each.name for each in session.get_outputs()], session.run(None, {"x": image}), strict=True))
    except Exception:  # noqa: BLE001 - of ONNX Runtime, which raises several for one that does not fit
        return False
    sizes = {name: values.shape[2:] for name, values in found.items()} | {"x": size}
    if min(min(sizes[value.name]) for value in case.model.graph.output) < _LEAST:
        return False
    return all(_begins_again(case, node, sizes) for node in resizings)


def _begins_again(case, node, sizes):
    before, after = sizes[node.input[0]], sizes[node.output[0]]
    factors = [Fraction(new, old) for new, old in zip(after, before, strict=True)]
    if len(node.input) > 2 and node.input[2]:
        [scales] = [numpy_helper.to_array(each) for each in case.model.graph.initializer if each.name == node.input[2]]
        factors = [Fraction(float(scale)).limit_denominator(100) for scale in np.asarray(scales)[2:]]
    aligned = any(each.s == b"align_corners" for each in node.attribute if each.type == onnx.AttributeProto.STRING)
    if aligned and before != after:
        return False
    return all(max(factor.numerator, factor.denominator) <= _MOST for factor in factors)
