"""What cannot be split runs as it is: in one task, image by image, with the file's own answers bit for bit."""

import json
import warnings
from itertools import cycle

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

from serfer.core.errors import ModelError, NotFiniteError, PlanWarning, QueryError, UsageError
from serfer.core.plan import PARTLY_TIMED
from serfer.core.plan.answers import shaped
from serfer.pipeline.result_cache import ResultCache
from serfer.pipeline.verify import verify
from serfer.plan_directory import check_artefacts, load_plan
from serfer.splitter.network import as_is
from serfer.splitter.plan_dir.check import run_tiles
from serfer.splitter.planning.split_options import SplitOptions
from serfer.splitter.profiling import part_costs, part_trial
from serfer.splitter.split import split
from serfer.splitter.whole import whole_plan
from serfer.storage.memory import MemoryStore
from serfer.variants.quantising import with_quantised
from tests.e2e.small import batch as images_of
from tests.e2e.small import small_onnx
from tests.splitter.models import Net, opened, saved
from tests.splitter.test_random_tails import Tailed


def recurrent(size=8, **options):
    """A convolution whose rows an LSTM reads; the output has no images on its first axis, (rows, 1, 5)."""
    net = Net(2, size, size, **options)
    rows = net.op("Transpose", net.op("Relu", net.conv("x", 2, 4, 3)), perm=[2, 0, 1, 3])
    rows = net.op("Reshape", rows, [size, 1, 4 * size])
    weights = net.floats(1, 20, 4 * size), net.floats(1, 20, 5)
    states, last = net.op("LSTM", rows, *weights, outputs=2, hidden_size=5)
    axes, attributes = ([[1]], {}) if net.opset > 12 else ([], {"axes": [1]})
    return net.model(
        (net.op("Squeeze", states, *axes, **attributes), TensorProto.FLOAT, 3), (last, TensorProto.FLOAT, 3)
    )


def quantised_in_part():
    """Quantised activations behind a convolution in float32."""
    net = Net(3, 8, 8)
    step = 0.05, np.uint8(120)
    inexact = net.op("DequantizeLinear", net.op("QuantizeLinear", net.conv("x", 3, 4, [3, 3]), *step), *step)
    weight = net.random.integers(-9, 9, (4, 4, 3, 3), dtype=np.int8)
    sums = net.op("Conv", inexact, net.op("DequantizeLinear", weight, 0.1, np.int8(0)), kernel_shape=[3, 3])
    again = net.op("DequantizeLinear", net.op("QuantizeLinear", sums, *step), *step)
    return net.model(net.linear(net.flat(again), 64, 5))


def normalised_in_double():
    """A network whose output is float64, and which takes the mean over all images of a batch."""
    net = Net(2, 4, 4)
    centred = net.op("Sub", "x", net.op("ReduceMean", "x", [0], keepdims=1))
    out = net.op("Cast", net.op("Add", "x", centred), to=TensorProto.DOUBLE)
    return net.model((out, TensorProto.DOUBLE, 4))


WHOLE = {
    **{tail: Tailed(5, tail).whole for tail in ("lstm", "branch", "foreign", "8_bits")},
    "opset 11": lambda: recurrent(opset=11),
    "a batch of 1": lambda: recurrent(batch=1),
    "8 bits in part": quantised_in_part,
    "mixes images": normalised_in_double,
}


def own_answers(path, batch):
    """Return the file's answers to images one by one, each output with the images on its first axis."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    answers = [session.run(None, {name: image[None]}) for image in batch]
    return [
        np.stack([value[0] if value.shape[0] == 1 else value for value in values])
        for values in zip(*answers, strict=True)
    ]


def noise(*shape):
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def values(answer):
    return list(answer.values()) if isinstance(answer, dict) else [answer]


@pytest.fixture(autouse=True)
def quickly(request, monkeypatch):
    """Leave out the process that measures a part, unless a test is about that."""
    if "measure" not in request.node.name:
        monkeypatch.setattr(part_costs, "measured", lambda *_: (0.001, 1 << 20))


@pytest.mark.exact
@pytest.mark.parametrize("make", WHOLE.values(), ids=WHOLE)
def test_a_whole_plan_has_the_files_own_answers_bit_for_bit(make, tmp_path):
    path = saved(tmp_path, make())
    plan = whole_plan(path, out=tmp_path / "plan")
    assert (len(plan.stages), plan.tasks) == (1, 1)
    assert load_plan(tmp_path / "plan") == plan
    check_artefacts(plan, tmp_path / "plan")
    batch = noise(3, plan.input.channels, plan.input.height, plan.input.width)
    expected = own_answers(path, batch)
    for got, own in zip(values(run_tiles(plan, tmp_path / "plan", batch)), expected, strict=True):
        assert got.shape == own.shape
        assert np.array_equal(got, own.astype(got.dtype))


@pytest.mark.parametrize("weights", ["zip", "fetched"])
def test_workers_compute_a_whole_plan_wherever_its_weights_are(weights, tmp_path):
    path = saved(tmp_path, recurrent(size=16))
    plan = whole_plan(path, out=tmp_path / "plan", weights=weights)
    assert plan.stages[0].functions[0].weights.bytes >= 20 * 64 * 4
    batch = noise(2, 2, 16, 16)
    with opened(tmp_path / "plan") as pipeline:
        got = values(pipeline.run(batch))
    for value, own in zip(got, own_answers(path, batch), strict=True):
        assert np.array_equal(value, own)


def found_boxes(most=20):
    """A detector's end: boxes of positions, scores of 2 classes, NonMaxSuppression, and the boxes that it selects."""
    net = Net(2, 12, 12)
    x = net.op("Relu", net.conv("x", 2, 4, 3, strides=[2, 2]))
    head = net.op("Reshape", net.conv(x, 4, 6, 1), [0, 6, 36])
    boxes = net.op("Transpose", net.op("Slice", head, [0], [4], [1]), perm=[0, 2, 1])
    scores = net.op("Sigmoid", net.op("Slice", head, [4], [6], [1]))
    chosen = net.op("NonMaxSuppression", boxes, scores, [most], [0.4], [0.7], output="chosen")
    position = net.op("Gather", chosen, 2, axis=1)
    flat = net.op("Squeeze", boxes, [0])
    return net.model(
        (net.op("Gather", flat, position, output="boxes"), TensorProto.FLOAT, 2), (chosen, TensorProto.INT64, 2)
    )


def check_sizes(plan, directory, path, batch):
    """Compare answers to single images, as large as the file's, and to several, padded with zeros."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    sizes = set()
    with opened(directory) as pipeline:
        several_answers = pipeline.run(batch)
        for number, image in enumerate(batch):
            one = pipeline.run(image[None])
            for name, own in zip(("boxes", "chosen"), session.run(None, {"x": image[None]}), strict=True):
                assert one[name].shape == (1, *own.shape)
                assert np.abs(one[name][0] - own).max(initial=0) < 1e-5
                assert several_answers[f"{name}.size"][number] == len(own)
                assert np.abs(several_answers[name][number, : len(own)] - own).max(initial=0) < 1e-5
                assert not several_answers[name][number, len(own) :].any()
                sizes.add(len(own))
    assert len(sizes) > 1
    assert plan.output_tensors[0].sized_by == "boxes.size"


@pytest.mark.parametrize("way", ["whole", "split"])
def test_an_output_has_each_images_own_size(way, tmp_path):
    path = saved(tmp_path, found_boxes())
    if way == "whole":
        plan = whole_plan(path, out=tmp_path / "plan")
    else:
        plan = split(path, out=tmp_path / "plan", grids="2x2")
        assert [plan.stages[number].grid.tiles for number in (0, -1)] == [4, 1]
        assert "(NonMaxSuppression)" in plan.why
    assert [tensor.dims for tensor in plan.output_tensors] == [(36, 4), (36, 3), (), ()]
    batch = noise(3, 2, 12, 12)
    check_sizes(plan, tmp_path / "plan", path, batch * np.float32([[[[0.01]]], [[[1]]], [[[10]]]]))


def test_an_output_that_is_larger_than_its_bound_fails_by_name(tmp_path):
    plan = whole_plan(saved(tmp_path, found_boxes(most=2)), out=tmp_path / "plan")
    assert plan.output_tensors[0].dims == (4, 4)
    values = [np.zeros((2, 4, 4)), np.zeros((2, 4, 3)), np.array([[4], [5]]), np.array([[4], [4]])]
    with pytest.raises(QueryError, match="'boxes' for image 1 has 5 entries, the plan has room for 4"):
        shaped(plan.output_tensors, values)


def test_positions_of_values_are_an_output(tmp_path):
    net = Net(1, 4, 4, batch=1)
    found = net.op("Transpose", net.op("NonZero", net.op("Relu", "x")), perm=[1, 0])
    path = saved(tmp_path, net.model((found, TensorProto.INT64, 2)))
    plan = whole_plan(path, out=tmp_path / "plan")
    assert plan.output_tensors[0].dims == (16, 4)
    answer = run_tiles(plan, tmp_path / "plan", noise(1, 1, 4, 4))
    assert np.array_equal(answer[found], own_answers(path, noise(1, 1, 4, 4))[0])


def test_an_answer_that_is_kept_has_its_size(tmp_path):
    plan = whole_plan(saved(tmp_path, found_boxes()), out=tmp_path / "plan")
    cache = ResultCache(MemoryStore(), plan, 60.0)
    answer = run_tiles(plan, tmp_path / "plan", noise(1, 2, 12, 12))
    key = cache.key([b"question"])
    cache.keep(key, answer)
    kept = cache.find(key, 1)
    assert all(np.array_equal(kept[name], value) for name, value in answer.items())


def test_a_network_that_is_quantised_in_part_runs_as_it_is_on_any_grid(tmp_path):
    path = saved(tmp_path, quantised_in_part())
    with pytest.warns(PlanWarning, match=r"no stage can be spread 2x2: \d+ operators run as given, .* because of '"):
        plan = split(path, out=tmp_path / "plan", grids="2x2")
    assert "answers differ between processors" in plan.why
    batch = noise(3, 3, 8, 8)
    assert np.array_equal(run_tiles(plan, tmp_path / "plan", batch), own_answers(path, batch)[0])


@pytest.mark.slow
def test_a_module_that_takes_one_image_at_a_time_is_split(tmp_path):
    import torch  # noqa: PLC0415 - slow to import

    class Single(torch.nn.Module):
        def forward(self, x):
            return x.reshape(1, 48)

    with pytest.warns(PlanWarning, match="one at a time"):
        plan = split(Single().eval(), torch.zeros(1, 3, 4, 4), tmp_path / "plan")
    assert plan.tasks == 1


def test_a_part_with_more_weights_than_a_model_holds_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(as_is, "MOST_BYTES", 1000)
    with pytest.raises(ModelError, match=r"5,120 bytes of weights, more than the 1,000 that one task can have"):
        whole_plan(saved(tmp_path, recurrent(size=16)), out=tmp_path / "plan")


def test_the_process_that_measures_reads_no_module_of_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('not the library')")
    monkeypatch.chdir(tmp_path)
    plan = whole_plan(saved(tmp_path, recurrent()), out=tmp_path / "there" / "plan")
    assert plan.times == PARTLY_TIMED
    assert plan.stages[0].tiles[0].serial_ms > 0


def test_a_network_that_runs_as_it_is_has_no_form_in_8_bits(tmp_path):
    plan = whole_plan(saved(tmp_path, recurrent()), out=tmp_path / "plan")
    with pytest.raises(ModelError, match="cannot be quantised: a part of it runs as it was given"):
        with_quantised(plan, tmp_path / "plan", None, tmp_path / "int8")


def not_finite(kind):
    """A convolution and classes whose scores of noise are not finite, as `kind` says: at times, always or in part."""
    net = Net(2, 8, 8)
    weight, bias = np.abs(net.floats(4, 2, 3, 3)), np.zeros(4) if kind == "negative" else net.floats(4)
    mean = net.flat(net.op("GlobalAveragePool", net.op("Conv", "x", weight, bias)))
    if kind == "negative":
        return net.model(net.op("Log", mean), dims=("N", 4))
    limits = [np.nan] * 4 if kind == "always" else [0, -np.inf, 0, np.inf]
    return net.model(net.op("Add", mean, limits), dims=("N", 4))


@pytest.mark.parametrize("kind", ["negative", "always", "in part"])
@pytest.mark.parametrize("make", [whole_plan, split])
def test_a_network_whose_answers_to_noise_are_not_finite_has_a_plan(make, kind, tmp_path):
    path = saved(tmp_path, not_finite(kind))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = make(path, out=tmp_path / "plan")
    told = [str(item.message) for item in caught if issubclass(item.category, (PlanWarning, RuntimeWarning))]
    assert ["are NaN or infinite" in text for text in told] == ([] if kind == "negative" else [True])
    batch = np.abs(noise(2, 2, 8, 8))
    [expected] = own_answers(path, batch)
    np.testing.assert_allclose(run_tiles(plan, tmp_path / "plan", batch), expected, rtol=1e-5)
    with opened(tmp_path / "plan") as pipeline:
        if kind == "negative":
            assert np.isfinite(pipeline.run(batch)).all()
            assert verify(pipeline, tmp_path / "plan", [], 2, lambda _: None).exact
        else:
            with pytest.raises(NotFiniteError, match="not a finite number"):
                pipeline.run(batch)


@pytest.mark.parametrize("make", [whole_plan, split])
def test_labels_that_do_not_fit_are_refused_before_anything_is_timed(make, tmp_path, monkeypatch):
    monkeypatch.setattr(part_costs, "measured", lambda *_: pytest.fail("the part is timed"))
    with pytest.raises(ModelError, match="3 labels for a network with 5 outputs"):
        make(saved(tmp_path, quantised_in_part()), out=tmp_path / "plan", labels=["a", "b", "c"])


@pytest.mark.parametrize("slower", [1, 3])
def test_time_of_a_part_is_processor_time_beside_that_of_a_known_network(slower, tmp_path, monkeypatch, capsys):
    onnx.save(small_onnx(), tmp_path / "part.onnx")
    np.savez(tmp_path / "inputs.npz", input=images_of(1))
    onnx.save(part_costs._known_network(), tmp_path / "known.onnx")
    files = (f"{tmp_path}/{name}" for name in ("part.onnx", "inputs.npz", "known.onnx"))
    monkeypatch.setattr("sys.argv", ["part_trial", *files])
    known, part = ([0, slower * ms / 1000] for ms in (2, 5))  # when a run starts, and when it ends
    monkeypatch.setattr("time.process_time", cycle([*known, *known, *known, *part]).__next__)
    part_trial.main()
    assert json.loads(capsys.readouterr().out)["times"] == 2.5


def test_a_choice_of_parts_is_refused_for_a_whole_plan(tmp_path):
    chosen = SplitOptions(stages=2, memory_mb=1769)
    with pytest.raises(UsageError, match=r"leave out stages$"):
        whole_plan("net.onnx", out=tmp_path / "plan", options=chosen)
