"""What cannot be split runs as it is: in one task, image by image, with the file's own answers bit for bit."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from serfer.core.errors import ModelError
from serfer.plan_directory import check_artefacts, load_plan
from splitter.plan_dir.check import run_tiles
from splitter.whole import whole_plan
from tests.splitter.models import Net, opened


def recurrent(size=8, opset=20, *, batch="N"):
    """A convolution whose rows an LSTM reads; the output has no images on its first axis, (rows, 1, 5)."""
    net = Net(2, size, size, opset=opset, batch=batch)
    x = net.op("Relu", net.conv("x", 2, 4, [3, 3], pads=[1, 1, 1, 1]))
    rows = net.op("Transpose", x, perm=[2, 0, 1, 3])
    rows = net.op("Reshape", rows, net.constant(np.array([size, 1, 4 * size])))
    net.op("LSTM", rows, net.constant(net.floats(1, 20, 4 * size)), net.constant(net.floats(1, 20, 5)), hidden_size=5)
    net.nodes[-1].output[:] = ["all", "last"]
    return net


def several(net, *outputs):
    """Return the model of a network with several outputs: names with their ONNX types and ranks."""
    model = net.model(outputs[0][0])
    del model.graph.output[:]
    model.graph.output.extend(helper.make_tensor_value_info(name, kind, [None] * rank) for name, kind, rank in outputs)
    return model


def recurrent_model(**options):
    net = recurrent(**options)
    axes = [net.constant(np.array([1]))] if net.opset > 12 else []
    net.op("Squeeze", "all", *axes, output="rows", **({} if axes else {"axes": [1]}))
    return several(net, ("rows", TensorProto.FLOAT, 3), ("last", TensorProto.FLOAT, 3))


def branching():
    """An If whose branches read a constant and a tensor from around them."""
    net = Net(1, 4, 4)
    flat = net.linear(net.flat("x"), 16, 3)
    weight = net.constant(net.floats(3))
    total = net.op("ReduceSum", flat, keepdims=0)
    positive = net.op("Greater", total, net.constant(np.float32(0)))

    def branch(kind, name):
        node = helper.make_node(kind, [flat, weight], [name], name=name)
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])

    chosen = net.op("If", positive, then_branch=branch("Mul", "then"), else_branch=branch("Sub", "else"))
    return net.model(chosen, dims=("N", 3))


def foreign():
    """An operator of another domain that ONNX Runtime's processor provider has."""
    net = Net(1, 4, 4)
    out = net.op("FastGelu", net.linear(net.flat("x"), 16, 3), domain="com.microsoft")
    body = helper.make_graph(
        net.nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 4, 4])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, ["N", 3])],
        net.weights,
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(body, opset_imports=imports, ir_version=10)


def in_8_bits():
    net = Net(3, 8, 8)
    quantised = net.op("DynamicQuantizeLinear", "x")
    net.nodes[-1].output[:] = [quantised, "scale", "zero"]
    weight = net.constant(net.random.integers(0, 255, (4, 3, 3, 3), dtype=np.uint8))
    sums = net.op("ConvInteger", quantised, weight, "zero", kernel_shape=[3, 3])
    scores = net.op("Mul", net.op("Cast", sums, to=TensorProto.FLOAT), "scale")
    return net.model(net.linear(net.flat(scores), 144, 5))


def normalised_in_double():
    """A network whose output is float64, and which takes the mean over all images of a batch."""
    net = Net(2, 4, 4)
    centred = net.op("Sub", "x", net.op("ReduceMean", "x", net.constant(np.array([0])), keepdims=1))
    out = net.op("Cast", net.op("Add", "x", centred), to=TensorProto.DOUBLE)
    return several(net, (out, TensorProto.DOUBLE, 4))


WHOLE = {
    "LSTM": recurrent_model,
    "opset 11": lambda: recurrent_model(opset=11),
    "a batch of 1": lambda: recurrent_model(batch=1),
    "If": branching,
    "com.microsoft": foreign,
    "8 bits": in_8_bits,
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


def values(answer):
    return list(answer.values()) if isinstance(answer, dict) else [answer]


@pytest.fixture
def saved(tmp_path):
    def save(model):
        path = tmp_path / "net.onnx"
        onnx.save(model, path)
        return path

    return save


@pytest.mark.parametrize("make", WHOLE.values(), ids=WHOLE)
def test_a_whole_plan_has_the_files_own_answers_bit_for_bit(make, saved, tmp_path):
    path = saved(make())
    plan = whole_plan(path, out=tmp_path / "plan")
    assert (len(plan.stages), plan.tasks) == (1, 1)
    assert load_plan(tmp_path / "plan") == plan
    check_artefacts(plan, tmp_path / "plan")
    shape = plan.input
    batch = np.random.default_rng(1).standard_normal((3, shape.channels, shape.height, shape.width), dtype=np.float32)
    expected = own_answers(path, batch)
    for got, own in zip(values(run_tiles(plan, tmp_path / "plan", batch)), expected, strict=True):
        assert got.shape == own.shape
        assert np.array_equal(got, own.astype(got.dtype))


@pytest.mark.parametrize("weights", ["zip", "fetched"])
def test_workers_compute_a_whole_plan_wherever_its_weights_are(weights, saved, tmp_path):
    path = saved(recurrent_model(size=16))
    plan = whole_plan(path, out=tmp_path / "plan", weights=weights)
    assert plan.stages[0].functions[0].weights.bytes >= 20 * 64 * 4
    batch = np.random.default_rng(1).standard_normal((2, 2, 16, 16), dtype=np.float32)
    with opened(tmp_path / "plan") as pipeline:
        got = values(pipeline.run(batch))
    for value, own in zip(got, own_answers(path, batch), strict=True):
        assert np.array_equal(value, own)


def test_the_plan_says_what_was_measured_here(saved, tmp_path):
    plan = whole_plan(saved(recurrent_model()), out=tmp_path / "plan")
    assert "measured here on one thread" in plan.why
    assert plan.stages[0].tiles[0].serial_ms > 0


def test_a_whole_plan_of_a_network_that_does_not_run_says_why(saved, tmp_path):
    net = Net(1, 4, 4)
    model = net.model(net.linear(net.flat("x"), 16, 3))
    with pytest.raises(ModelError, match="does not run in ONNX Runtime"):
        whole_plan(saved(model), np.zeros((1, 1, 5, 5), np.float32), tmp_path / "plan")
    assert not (tmp_path / "plan").exists()


def test_an_output_whose_size_depends_on_the_data_is_refused_by_name(saved, tmp_path):
    net = Net(1, 4, 4, batch=1)
    found = net.op("Cast", net.op("Transpose", net.op("NonZero", "x"), perm=[1, 0]), to=TensorProto.FLOAT)
    with pytest.raises(ModelError, match=r"depends on the data, by operator 't0' \(NonZero\)"):
        whole_plan(saved(net.model(found)), out=tmp_path / "plan")
