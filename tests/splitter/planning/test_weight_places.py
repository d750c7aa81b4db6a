"""Where functions have their weights: in zips while those hold them, else fetched or in images; fp16 where allowed."""

import re

import numpy as np
import pytest

from serfer.core.errors import ModelError, PlanWarning, UsageError
from serfer.core.plan import CONTAINER, FETCHED, ZIP
from serfer.core.units import MIB
from serfer.plan_directory import load_plan
from serfer.splitter.plan_dir.check import run_tiles
from serfer.splitter.planning.precision import predicted_loss, rounded_up, storable, storable_within
from serfer.splitter.split import split
from serfer.splitter.tiling.from_onnx import from_onnx
from tests.splitter.models import Net, unsplit

SIZE = (12, 12)
SAME = {"pads": [1, 1, 1, 1]}
ROOM = 70_000
"""Bytes of weights and graphs that a zip has room for: the first fully connected layer of `head_heavy` has 92 kB."""


def head_heavy():
    net = Net(3, *SIZE)
    x = net.op("MaxPool", net.op("Relu", net.conv("x", 3, 16, [3, 3], **SAME)), kernel_shape=[3, 3], strides=[3, 3])
    x = net.op("Relu", net.linear(net.flat(x), 256, 90))
    return net, net.linear(x, 90, 30)


def many_layers():
    """Each layer fits a zip, all of them do not."""
    net, x = Net(3, *SIZE), "x"
    for before, after in ((3, 24), (24, 40), (40, 24), (24, 40)):
        x = net.op("Relu", net.conv(x, before, after, [3, 3], **SAME))
    return net, net.linear(net.flat(net.op("GlobalAveragePool", x)), 40, 10)


def residual():
    net = Net(3, *SIZE)
    x = net.op("Relu", net.conv("x", 3, 32, [3, 3], **SAME))
    for _ in range(2):
        x = net.op("Relu", net.op("Add", x, net.conv(x, 32, 32, [3, 3], **SAME)))
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
    net, output = NETWORKS[network]()
    batch = net.batch_of(2)
    np.testing.assert_allclose(run_tiles(plan, tmp_path / "plan", batch), unsplit(net.model(output), batch), atol=1e-5)
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
    graph = from_onnx(net.model(output), *SIZE)
    every = storable(graph, graph.nodes)
    most = predicted_loss(graph, every)
    assert storable_within(graph, 2 * most) == every
    some = storable_within(graph, most / 1.5)
    assert set() < some < every
    assert predicted_loss(graph, some) <= most / 1.5
    assert storable_within(graph, 1e-9) == set()
    assert most <= rounded_up(most) <= 2 * most


@pytest.mark.parametrize(
    "options",
    [
        {"weights": "disk"},
        *({"max_loss": loss} for loss in (-1, 1.0, float("nan"))),
        {"max_loss": 0.1, "precision": "fp32"},
    ],
)
def test_impossible_options_are_refused(planned, options):
    with pytest.raises(UsageError, match=r"--weights .*'disk'|max_loss"):
        planned("residual", **options)


def test_what_zips_do_not_hold_is_refused_with_the_option_that_would(planned):
    with pytest.raises(ModelError, match="--set weights=fetched"):
        planned("head_heavy", room=40_000, weights="zip", stages=1, precision="fp32")
