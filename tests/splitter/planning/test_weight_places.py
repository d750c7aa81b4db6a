"""Where functions have their weights: in zips while those hold them, else fetched or in images; fp16 where allowed."""

import re
from dataclasses import replace

import numpy as np
import onnx
import pytest

from serfer.core.errors import ModelError, PlanWarning, UsageError
from serfer.core.exactness import relative_error
from serfer.core.plan import CONTAINER, FETCHED, ZIP
from serfer.core.units import MIB
from serfer.pipeline.reference import original
from serfer.pipeline.reference import unsplit as in_one_piece
from serfer.plan_directory import load_plan
from serfer.splitter.network.graph import Node
from serfer.splitter.planning import precision
from serfer.splitter.split import split
from tests.splitter.models import Net, check_every_answer, cut_net, plan_error, room_for, unsplit

SIZE = (12, 12)
ROOM = 70_000
"""Bytes of weights and graphs that a zip has room for: the first fully connected layer of `head_heavy` has 92 kB."""


def head_heavy():
    net = Net(3, *SIZE)
    x = net.op("MaxPool", net.op("Relu", net.conv("x", 3, 16, 3)), kernel_shape=[3, 3], strides=[3, 3])
    x = net.op("Relu", net.linear(net.flat(x), 256, 90))
    return net, net.linear(x, 90, 30)


def many_layers():
    """Each layer fits a zip, all of them do not."""
    net, x = Net(3, *SIZE), "x"
    for before, after in ((3, 24), (24, 40), (40, 24), (24, 40)):
        x = net.op("Relu", net.conv(x, before, after, 3))
    return net, net.linear(net.flat(net.op("GlobalAveragePool", x)), 40, 10)


def residual():
    net = Net(3, *SIZE)
    x = net.op("Relu", net.conv("x", 3, 32, 3))
    for _ in range(2):
        x = net.op("Relu", net.op("Add", x, net.conv(x, 32, 32, 3)))
    return net, net.linear(net.flat(net.op("GlobalAveragePool", x)), 32, 10)


NETWORKS = {function.__name__: function for function in (head_heavy, many_layers, residual)}


@pytest.fixture
def planned(tmp_path):
    def plan(network, room=ROOM, **options):
        net, output = NETWORKS[network]()
        options = {"gang": "never", "limit_mb": 1, "dependency_bytes": MIB - room} | options
        return split(net.save(tmp_path, output), out=tmp_path / "plan", **options)

    return plan


def places(plan):
    return {stage.weights_in for stage in plan.stages}


@pytest.mark.parametrize("network", NETWORKS)
def test_auto_has_weights_in_zips_where_they_fit_and_else_fetches_them(planned, network, tmp_path):
    """In zips it is the plan that zips alone allow; fetched in fp32, with the answers of the model."""
    plan = planned(network, room=MIB // 2, weights="auto")
    assert places(plan) == {ZIP}
    assert plan.stages == planned(network, room=MIB // 2, weights="zip").stages
    plan = planned(network, weights="auto")
    assert plan.changes == ()
    assert FETCHED in places(plan)
    assert plan_error(*NETWORKS[network](), plan, tmp_path / "plan") < 1e-5
    assert load_plan(tmp_path / "plan") == plan
    (chosen,) = [other for other in plan.alternatives if other.chosen]
    assert "weights fetched" in chosen.stages
    for stage, number in plan.functions:
        assert plan.function_bytes(stage, number) <= plan.limit.room


@pytest.mark.parametrize(("weights", "place"), [("fetched", FETCHED), ("image", CONTAINER)])
def test_one_place_can_be_requested_for_all_weights(planned, weights, place):
    plan = planned("many_layers", weights=weights)
    assert places(plan) == {place}
    assert all(alternative.fits for alternative in plan.alternatives)
    assert f"weights {'fetched' if place == FETCHED else 'in an image'}" in plan.why


def test_columns_are_in_one_function_where_weights_are_fetched(planned):
    options = {"grids": ["1", "col3", "1"]}
    spread = planned("head_heavy", weights="zip", **options).stages[1]
    fetched = planned("head_heavy", weights="fetched", **options).stages[1]
    assert (len(spread.functions), len(fetched.functions)) == (2, 1)
    assert {tile.function for tile in fetched.tiles} == {0}


@pytest.mark.parametrize("weights", ["auto", "fetched", "image"])
def test_a_gang_has_its_weights_in_one_place(planned, weights):
    plan = planned("residual", weights=weights, gang="always", grids=(2, 1), stages=3)
    (gang,) = plan.gangs
    assert {plan.stages[number].weights_in for number in gang.stages} == {FETCHED if weights == "auto" else weights}


def test_a_loss_that_is_allowed_brings_weights_into_zips(planned):
    """Without it the weights stay in fp32, and the paragraph names the option and what it would save."""
    exact, lossy = planned("many_layers", weights="auto"), planned("many_layers", weights="auto", max_loss=0.01)
    assert (exact.changes, places(exact)) == ((), {FETCHED})
    assert [change.what for change in lossy.changes] == ["fp16 storage"]
    assert places(lossy) == {ZIP}
    assert "fp16 weights" in lossy.why
    found = re.search(r"with fp16 allowed \(max_loss=(\S+), as predicted .* would take (\S+) s, not (\S+)\.", exact.why)
    assert 0 < lossy.changes[0].error <= float(found[1]) < 0.01
    assert float(found[2]) < float(found[3])
    assert places(planned("many_layers", weights="auto", max_loss=float(found[1]))) == {ZIP}


def test_zips_name_the_plan_in_fp16_that_they_leave_out(planned):
    plan = planned("many_layers", weights="zip")
    assert plan.changes == ()
    found = re.search(r"with fp16 allowed \(max_loss=(\S+), .*\) it would be .* \((.*), fp16 weights\)\.", plan.why)
    other = planned("many_layers", weights="zip", max_loss=float(found[1]))
    assert next(each.stages for each in other.alternatives if each.chosen) == f"{found[2]}, fp16 weights"
    assert "by default" not in planned("many_layers", weights="zip", precision="fp32").why


def test_a_measured_loss_beyond_what_is_allowed_leaves_weights_in_fp32(planned, monkeypatch):
    monkeypatch.setattr("serfer.splitter.package_fit.relative_error", lambda *_: 0.02)
    with pytest.warns(PlanWarning, match=r"by 0\.02 of their range .* max_loss allows 0\.01") as warned:
        plan = planned("many_layers", weights="auto", max_loss=0.01)
    assert warned[0].filename == __file__
    assert plan.changes == ()
    with pytest.raises(ModelError, match=r"max_loss allows 0\.01: allow more"):
        planned("many_layers", precision="fp16", max_loss=0.01)


def test_only_weights_whose_rounding_is_allowed_are_stored_in_fp16():
    net, output = many_layers()
    graph = net.graph(output)
    every = precision.storable(graph, graph.nodes)
    most = precision.predicted_loss(graph, every)
    assert precision.storable_within(graph, 2 * most) == every
    some = precision.storable_within(graph, most / 1.5)
    assert set() < some < every
    assert precision.predicted_loss(graph, some) <= most / 1.5
    assert precision.storable_within(graph, 1e-9) == set()
    assert most <= precision.rounded_up(most) <= 2 * most


@pytest.mark.parametrize(
    "options",
    [
        {"weights": "disk"},
        *({"max_loss": loss} for loss in (-1, 1.0, float("nan"))),
        {"max_loss": 0.1, "precision": "fp32"},
    ],
)
def test_impossible_options_are_refused(planned, options):
    with pytest.raises(UsageError, match=r"^weights .*'disk'|max_loss"):
        planned("residual", **options)


def test_what_zips_do_not_hold_is_refused_with_the_option_that_would(planned):
    with pytest.raises(ModelError, match="--set weights=fetched"):
        planned("head_heavy", room=40_000, weights="zip", stages=1, precision="fp32")


def conv_and_dense():
    """Two convolutions (1.3 and 9 KB of weights), a layer of 92 KB, one of 12 KB."""
    net = Net(3, *SIZE)
    x = net.op("Relu", net.conv("x", 3, 12, 3))
    x = net.op("MaxPool", net.op("Relu", net.conv(x, 12, 16, 3)), kernel_shape=[3, 3], strides=[3, 3])
    x = net.op("Relu", net.linear(net.flat(x), 256, 90))
    return net, net.linear(x, 90, 30)


def weights_bytes(plan):
    return [sum(function.weights.bytes for function in stage.functions) for stage in plan.stages]


def check_fp16(net, output, plan, directory):
    """A plan in fp16 is what its unsplit.onnx is, by every way; the model as it was given is kept beside it."""
    model, batch = net.model(output), net.batch_of(3)
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
    net, output = conv_and_dense()
    full = cut_net(net, output, tmp_path / "full", grids, precision="fp32")
    half = cut_net(net, output, tmp_path / "half", grids, precision="fp16")
    assert full.changes == full.original == ()
    assert [stage.grid for stage in half.stages] == [stage.grid for stage in full.stages]
    large = 4 * (3 * 12 * 9 + 12 * 16 * 9 + 256 * 90 + 90 * 30)
    assert large <= sum(weights_bytes(full)) < large + 2000
    assert large / 2 <= sum(weights_bytes(half)) < large / 2 + 2000
    assert half.changes[0].how.startswith("4 weights, 9")
    check_fp16(net, output, half, tmp_path / "half")


def test_auto_stores_only_oversized_stages_in_fp16(tmp_path):
    net, output = conv_and_dense()
    plan = cut_net(net, output, tmp_path / "enough", "2x2", limit=room_for(110_000))
    assert plan.changes == plan.original == plan.ways == ()
    plan = cut_net(net, output, tmp_path / "plan", ["2x2", "1", "1"], limit=room_for(60_000), weights="zip")
    full = cut_net(net, output, tmp_path / "full", ["2x2", "1", "1"], precision="fp32")
    layers = [stage.operators for stage in plan.stages]
    assert layers == [stage.operators for stage in full.stages]
    shares = [less / more if more else 1 for less, more in zip(weights_bytes(plan), weights_bytes(full), strict=True)]
    halved = [number for number, share in enumerate(shares) if share < 1]
    (large,) = [number for number, size in enumerate(weights_bytes(full)) if size > 60_000]
    assert halved == [large]
    assert shares[large] == pytest.approx(0.5, abs=0.02)
    assert all(function.bytes <= plan.limit.room for stage in plan.stages for function in stage.functions)
    check_fp16(net, output, plan, tmp_path / "plan")
    assert [(way.what, way.fits, way.exact) for way in plan.ways][:2] == [
        ("fp32, one function", False, True),
        ("fp16 storage, one function", True, False),
    ]


def test_a_weight_beyond_fp16s_range_stays_fp32(tmp_path):
    net = Net(3, *SIZE)
    huge = net.floats(12, 3, 3, 3)
    huge[0, 0, 0, 0] = 7e4
    x = net.op("Relu", net.op("Conv", "x", net.constant(huge, "huge"), kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    output = net.linear(net.flat(net.op("MaxPool", x, kernel_shape=[3, 3], strides=[3, 3])), 192, 20)
    plan = cut_net(net, output, tmp_path / "plan", ["2x2", "1"], precision="fp16")
    kept = {tensor.name: tensor.data_type for tensor in onnx.load(tmp_path / "plan/unsplit.onnx").graph.initializer}
    assert kept["huge"] == onnx.TensorProto.FLOAT
    assert sorted(name for name, kind in kept.items() if kind == onnx.TensorProto.FLOAT16) == ["c1.half"]
    check_fp16(net, output, plan, tmp_path / "plan")


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
    graph = net.graph(net.flat(net.op("Relu", "x")))
    reader = Node("reader", "Add", ("x", "w"), "sum")
    graph = replace(graph, weights={"w": value})
    assert precision.storable(graph, [reader]) == ({"w"} if stored else set())
    assert precision.storable(graph, graph.nodes) == frozenset(), "fp16 was not requested"


def test_rounding_is_relative_to_the_weights_norm():
    assert precision.rounding(np.float32([1.0, 0.5, 0.25])) == 0
    assert precision.rounding(np.full(10, 1 + 2**-11, np.float32)) == pytest.approx(2**-11, rel=1e-3)
    assert precision.rounding(np.float32([1e6])) == float("inf")


@pytest.mark.exact
def test_computed_weights_equal_the_stored_fp16_values():
    net, output = conv_and_dense()
    graph = net.graph(output)
    names = precision.storable(graph, graph.nodes)
    rounded = precision.with_half(graph, names)
    assert rounded.half == names
    for name, value in rounded.weights.items():
        assert value.dtype == graph.weights[name].dtype
        expected = graph.weights[name].astype(np.float16) if name in names else graph.weights[name]
        assert np.array_equal(value, expected)
