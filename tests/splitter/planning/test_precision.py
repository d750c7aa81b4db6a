"""Weights stored in fp16: half the bytes, arithmetic in fp32, and the loss is measured and reported."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from serfer.core.exactness import relative_error
from serfer.pipeline.reference import original
from serfer.pipeline.reference import unsplit as in_one_piece
from serfer.splitter.network.graph import Node
from serfer.splitter.planning.precision import rounding, storable, with_half
from serfer.splitter.tiling.from_onnx import from_onnx
from tests.splitter.models import Net, check_every_answer, cut, room_for, unsplit

SIZE = (12, 12)
SAME = {"pads": [1, 1, 1, 1]}


def network(seed=0):
    """Two convolutions (1.3 and 9 KB of weights), a layer of 92 KB, one of 12 KB."""
    net = Net(3, *SIZE, seed)
    x = net.op("Relu", net.conv("x", 3, 12, [3, 3], **SAME))
    x = net.op("MaxPool", net.op("Relu", net.conv(x, 12, 16, [3, 3], **SAME)), kernel_shape=[3, 3], strides=[3, 3])
    x = net.op("Relu", net.linear(net.flat(x), 256, 90))
    return net, net.linear(x, 90, 30)


def weights_bytes(plan):
    return [sum(function.weights.bytes for function in stage.functions) for stage in plan.stages]


def check_fp16(model, plan, directory, batch):
    """A plan in fp16 is what its unsplit.onnx is, by every way; the model as it was given is kept beside it."""
    answer = in_one_piece(plan, directory)(batch)
    check_every_answer(model, plan, directory, batch, expected=answer)
    (change,) = plan.changes
    assert (change.what, change.measured_on, change.samples) == ("fp16 storage", "random inputs", 16)
    assert 0 < change.error < 1e-2
    assert 0.9 < change.agreement <= 1
    assert change.accuracy_before is change.accuracy_after is None
    lost = relative_error(answer, unsplit(model, batch))
    assert 1e-6 < lost < 1e-2
    assert [file.path for file in plan.original] == ["original.onnx", "original.bin"]
    assert relative_error(original(plan, directory)(batch), unsplit(model, batch)) <= 1e-6


@pytest.mark.exact
@pytest.mark.parametrize("grids", ["1", "2x2", ["2x2", "3x3", "col3", "col2"], ["2x2", "col4"]])
def test_fp16_halves_stored_bytes_and_tiles_equal_the_rounded_network(tmp_path, grids):
    net, output = network()
    model = net.model(output)
    full = cut(model, SIZE, tmp_path / "full", grids, precision="fp32")
    half = cut(model, SIZE, tmp_path / "half", grids, precision="fp16")
    assert full.changes == full.original == ()
    assert [stage.grid for stage in half.stages] == [stage.grid for stage in full.stages]
    large = 4 * (3 * 12 * 9 + 12 * 16 * 9 + 256 * 90 + 90 * 30)
    assert large <= sum(weights_bytes(full)) < large + 2000
    assert large / 2 <= sum(weights_bytes(half)) < large / 2 + 2000
    assert half.changes[0].how.startswith("4 weights, 9")
    check_fp16(model, half, tmp_path / "half", net.batch_of(3))


def test_auto_stores_only_oversized_stages_in_fp16(tmp_path):
    net, output = network()
    model = net.model(output)
    plan = cut(model, SIZE, tmp_path / "enough", "2x2", limit=room_for(110_000))
    assert plan.changes == plan.original == plan.ways == ()
    plan = cut(model, SIZE, tmp_path / "plan", ["2x2", "1", "1"], limit=room_for(60_000), weights="zip")
    full = cut(model, SIZE, tmp_path / "full", ["2x2", "1", "1"], precision="fp32")
    layers = [stage.operators for stage in plan.stages]
    assert layers == [stage.operators for stage in full.stages]
    shares = [less / more if more else 1 for less, more in zip(weights_bytes(plan), weights_bytes(full), strict=True)]
    halved = [number for number, share in enumerate(shares) if share < 1]
    (large,) = [number for number, size in enumerate(weights_bytes(full)) if size > 60_000]
    assert halved == [large]
    assert shares[large] == pytest.approx(0.5, abs=0.02)
    assert all(function.bytes <= plan.limit.room for stage in plan.stages for function in stage.functions)
    check_fp16(model, plan, tmp_path / "plan", net.batch_of(2))
    assert [(way.what, way.fits, way.exact) for way in plan.ways][:2] == [
        ("fp32, one function", False, True),
        ("fp16 storage, one function", True, False),
    ]


def test_a_weight_beyond_fp16s_range_stays_fp32(tmp_path):
    net = Net(3, *SIZE)
    huge = net.floats(12, 3, 3, 3)
    huge[0, 0, 0, 0] = 7e4
    x = net.op("Relu", net.op("Conv", "x", net.constant(huge, "huge"), kernel_shape=[3, 3], **SAME))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[3, 3])
    model = net.model(net.linear(net.flat(x), 192, 20))
    plan = cut(model, SIZE, tmp_path / "plan", ["2x2", "1"], precision="fp16")
    kept = {tensor.name: tensor.data_type for tensor in onnx.load(tmp_path / "plan/unsplit.onnx").graph.initializer}
    assert kept["huge"] == onnx.TensorProto.FLOAT
    assert sorted(name for name, kind in kept.items() if kind == onnx.TensorProto.FLOAT16) == ["w1.half"]
    check_fp16(model, plan, tmp_path / "plan", net.batch_of(2))


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (np.ones(300, np.float32), True),
        (np.ones(256, np.float32), False),  # a kilobyte: it stays in the graph
        (np.full(300, 7e4, np.float32), False),
        (np.append(np.ones(300), 7e4).astype(np.float32), False),
        (np.full(300, 65_504, np.float32), True),
        (np.full(300, 3e-8, np.float32), False),
        (np.append(np.ones(300), 3e-8).astype(np.float32), True),
        (np.zeros(300, np.float32), True),
        (np.full(300, np.inf, np.float32), False),
        (np.ones(300, np.int64), False),
        (np.ones(300, np.float64), False),
    ],
    ids=["plain", "small", "large", "one large", "largest", "tiny", "one tiny", "zeros", "infinite", "whole", "double"],
)
def test_which_weights_fp16_holds(value, stored):
    net = Net(1, 2, 2)
    graph = from_onnx(net.model(net.flat(net.op("Relu", "x"))), 2, 2)
    reader = Node("reader", "Add", ("x", "w"), "sum")
    graph = replace(graph, weights={"w": value})
    assert storable(graph, [reader]) == ({"w"} if stored else set())
    assert storable(graph, graph.nodes) == frozenset(), "fp16 was not requested"


def test_rounding_is_relative_to_the_weights_norm():
    assert rounding(np.float32([1.0, 0.5, 0.25])) == 0
    assert rounding(np.full(10, 1 + 2**-11, np.float32)) == pytest.approx(2**-11, rel=1e-3)
    assert rounding(np.float32([1e6])) == float("inf")


@pytest.mark.exact
def test_computed_weights_equal_the_stored_fp16_values():
    net, output = network()
    graph = from_onnx(net.model(output), *SIZE)
    names = storable(graph, graph.nodes)
    rounded = with_half(graph, names)
    assert rounded.half == names
    for name, value in rounded.weights.items():
        assert value.dtype == graph.weights[name].dtype
        expected = graph.weights[name].astype(np.float16) if name in names else graph.weights[name]
        assert np.array_equal(value, expected)
