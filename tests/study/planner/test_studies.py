"""`serfer study planner defaults`, `places`, `prediction` and `breakeven --here` on small networks."""

from dataclasses import replace

import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cold_starts import COLD_SHARE
from serfer.core.costs.operator_costs import shipped_profiles
from serfer.core.errors import UnavailableError
from serfer.core.plan import PackageLimit
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer_bench.core.container_settings import ContainerSettings
from serfer_bench.study.planner import breakeven_here
from serfer_bench.study.planner.breakeven_here import Measured
from serfer_bench.study.planner.defaults import choices
from serfer_bench.study.planner.planner import Network
from serfer_bench.study.planner.prediction import HELD_OUT, Prediction, StagePrediction, measure, results
from serfer_bench.study.planner.weight_places import cold_ways, ways
from serfer_bench.study.profiling import profile
from tests.splitter.models import BUDGET, Net

FACTS = shipped_aws()


def test_the_default_is_better_than_the_warm_choice_where_queries_are_cold():
    net, x = Net(3, 12, 12), "x"
    for before, after in ((3, 24), (24, 40), (40, 24)):
        x = net.op("Relu", net.conv(x, before, after, [3, 3], pads=[1, 1, 1, 1]))
    x = net.linear(net.op("Relu", net.linear(net.flat(x), 24 * 144, 60)), 60, 10)
    functions = replace(FACTS.functions, package_limit=DEPENDENCY_ALLOWANCE + 500_000, fetch_latency=5.0)
    slow = replace(FACTS, functions=functions)
    warm, default, half, twice = choices("small", from_onnx(net.model(x), 12, 12), 12, slow)
    assert (warm.chosen_for, default.chosen_for) == ("warm", "default")
    assert half.cold_ms > default.cold_ms > twice.cold_ms
    assert warm.warm_ms * warm.usd < default.warm_ms * default.usd
    assert default.expected_ms * default.expected_usd < warm.expected_ms * warm.expected_usd
    assert default.cold_ms < warm.cold_ms
    for choice in (warm, default):
        assert choice.expected_ms == pytest.approx((1 - COLD_SHARE) * choice.warm_ms + COLD_SHARE * choice.cold_ms)


def convolutions():
    net, x = Net(3, 12, 12), "x"
    for before, after in ((3, 24), (24, 40), (40, 24), (24, 40)):
        x = net.op("Relu", net.conv(x, before, after, [3, 3], pads=[1, 1, 1, 1]))
    x = net.linear(net.flat(net.op("GlobalAveragePool", x)), 40, 10)
    return from_onnx(net.model(x), 12, 12)


@pytest.fixture(scope="module")
def network():
    return Network("small", 12, convolutions(), replace(BUDGET, limit=PackageLimit(470_000, 400_000)))


@pytest.fixture(scope="module")
def by_way(network):
    return {(way.weights, way.precision): way for way in ways(network)}


def test_every_place_and_precision_is_priced_and_a_cold_answer_waits_for_what_is_fetched(network, by_way):
    split, whole = by_way["split, zips", "fp32"], by_way["one function, fetched", "fp32"]
    assert len(by_way) == 8
    assert by_way["one function, zip", "fp32"].ms is None
    assert whole.ms < split.ms
    assert whole.usd < split.usd
    assert whole.predicted_loss == 0 < by_way["one function, zip", "fp16"].predicted_loss
    cold = {precision: by_way["one function, fetched", precision].cold_ms for precision in ("fp32", "fp16")}
    assert by_way["one function, zip", "fp16"].cold_ms < cold["fp16"] < cold["fp32"]
    assert by_way["one function, fetched", "fp32"].ms == by_way["one function, image", "fp32"].ms
    cold_plans = {way.weights: way for way in cold_ways(network)}
    assert len(cold_plans) == 4
    assert all(way.cold_ms <= 1.05 * whole.cold_ms for way in cold_plans.values())


def test_no_network_that_is_judged_was_profiled():
    assert not {name for name, _ in profile.NETWORKS} & set(HELD_OUT)


@pytest.mark.slow
def test_every_stage_is_predicted_and_measured():
    result = measure(shipped_profiles(), ("efficientnet-lite0",), max_s=0.5)
    assert [stage.grid for stage in result.stages] == ["1", "2x2", "2x2", "1"]
    assert all(stage.predicted_ms > 0 and stage.measured_ms > 0 and stage.spread >= 0 for stage in result.stages)


def stage(predicted_ms, measured_ms, quiet):
    return StagePrediction("lenet", "whole", "1", predicted_ms, measured_ms, spread=0.1, runs=8, quiet=quiet)


def test_a_disturbed_stage_is_listed_but_does_not_count():
    result = Prediction((stage(11, 10, 3), stage(8, 10, 1), stage(10, 20, 0)), "a machine")
    assert result.mean_error == pytest.approx(0.15)
    assert result.errors == {"lenet": pytest.approx(0.15)}
    assert "15.0% of 2 stages; 1 disturbed" in results(result).text()
    assert "-50.0%" in results(result).text()
    with pytest.raises(UnavailableError, match="quiet"):
        _ = Prediction((stage(11, 10, 0),), "a machine").mean_error


def measured(one, two, split):
    return Measured("lenet", 224, one, two, split, "1x2, 1", 0.25)


def test_ratios_say_how_many_times_faster_the_split_is_and_tables_name_their_spread():
    measurements = [measured(100.0, 60.0, 50.0), measured(10.0, 6.0, 20.0)]
    assert [one.speedup for one in measurements] == [one.as_dict()["speedup"] for one in measurements] == [2.0, 0.5]
    assert measurements[0].against_large == pytest.approx(1.2)
    text = breakeven_here.results(measurements).text()
    assert all(words in text for words in ("2.00x", "0.50x", "at most +25%"))


def test_only_the_package_limit_is_lifted():
    mine, shipped = ContainerSettings().facts(), shipped_aws()
    assert mine.functions.package_limit > shipped.functions.package_limit
    assert mine.functions.price_gb_second == shipped.functions.price_gb_second
    assert mine.redis == shipped.redis
