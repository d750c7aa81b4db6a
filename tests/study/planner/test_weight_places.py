"""`serfer study planner places` on a small network, of which a zip holds each half."""

from dataclasses import replace

import pytest

from serfer.core.plan import PackageLimit
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer_bench.study.planner.planner import Network
from serfer_bench.study.planner.weight_places import cold_ways, ways
from tests.splitter.models import BUDGET, Net


@pytest.fixture(scope="module")
def network():
    net, x = Net(3, 12, 12), "x"
    for before, after in ((3, 24), (24, 40), (40, 24), (24, 40)):
        x = net.op("Relu", net.conv(x, before, after, [3, 3], pads=[1, 1, 1, 1]))
    x = net.linear(net.flat(net.op("GlobalAveragePool", x)), 40, 10)
    graph = from_onnx(net.model(x), 12, 12)
    budget = replace(BUDGET, limit=PackageLimit(470_000, 400_000))
    return Network("small", 12, graph, budget)


@pytest.fixture(scope="module")
def by_way(network):
    return {(way.weights, way.precision): way for way in ways(network)}


def test_every_place_and_precision_is_priced(by_way):
    split, whole = by_way["split, zips", "fp32"], by_way["one function, fetched", "fp32"]
    assert len(by_way) == 8
    assert by_way["one function, zip", "fp32"].ms is None
    assert whole.ms < split.ms
    assert whole.usd < split.usd
    assert whole.predicted_loss == 0 < by_way["one function, zip", "fp16"].predicted_loss


def test_a_cold_answer_waits_for_weights_that_are_fetched(by_way):
    """And for fewer bytes in fp16, and for none that are in zips."""
    cold = {precision: by_way["one function, fetched", precision].cold_ms for precision in ("fp32", "fp16")}
    assert by_way["one function, zip", "fp16"].cold_ms < cold["fp16"] < cold["fp32"]
    assert by_way["one function, fetched", "fp32"].ms == by_way["one function, image", "fp32"].ms


def test_a_cold_plan_is_priced_by_environments_and_answers_no_later_than_one_function(network, by_way):
    cold = {way.weights: way for way in cold_ways(network)}
    assert len(cold) == 4
    whole = by_way["one function, fetched", "fp32"].cold_ms
    assert all(way.cold_ms <= 1.05 * whole for way in cold.values())
