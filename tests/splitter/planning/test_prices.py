"""One cost model: the price of a finished plan equals the prediction of the planner."""

from dataclasses import replace

import pytest

from serfer.core.costs.cost_model import Platform, price_plan
from serfer.core.costs.operator_costs import shipped_profiles
from tests.once import one_each
from tests.splitter.models import BUDGET, FACTS, Net, cut
from tests.splitter.planning.test_planner import chain_model


def residual():
    net = Net(3, 64, 48)
    x = net.op("Relu", net.conv("x", 3, 32, 7, strides=[2, 2]))
    y = net.op("Relu", net.conv(x, 32, 32, 3))
    x = net.op("Relu", net.op("Add", x, net.conv(y, 32, 32, 3)))
    x = net.op("Relu", net.conv(x, 32, 64, 3, strides=[2, 2]))
    return net.model(net.linear(net.flat(net.op("GlobalAveragePool", x)), 64, 10)), (64, 48)


def wide():
    """Maps of 2 MB, which no payload carries."""
    net = Net(3, 96, 96)
    x = net.op("Relu", net.conv("x", 3, 64, 3))
    x = net.op("Add", x, net.op("Relu", net.conv(x, 64, 64, 5)))
    x = net.op("Relu", net.conv(x, 64, 48, 3))
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Relu", net.conv(x, 48, 24, 3))
    x = net.op("Relu", net.linear(net.flat(x), 24 * 48 * 48, 64))
    return net.model(net.linear(x, 64, 10)), (96, 96)


def large():
    """Maps of 9 MB, one of which has to lie between the first two of three stages."""
    net = Net(3, 192, 192)
    x = net.op("Relu", net.conv("x", 3, 64, 3))
    x = net.op("GlobalAveragePool", net.op("Relu", net.conv(x, 64, 64, 1)))
    return net.model(net.linear(net.flat(x), 64, 10)), (192, 192)


LARGE = (large, ["1x2", "1x2", "1"], None)
CASES = [
    (chain_model, "auto", None),
    (chain_model, "2x2", 3),
    (chain_model, "3x3", None),
    (chain_model, "1x2", 4),
    (chain_model, "1", 3),
    (residual, "2x2", None),
    (residual, "3x3", 3),
    (wide, ["2x2", "2x2", "1x4", "col4", "1"], None),
    (wide, ["2x2", "3x3", "1"], None),
    (wide, "3x3", 5),
    LARGE,
]


def split(case, store, directory, objective="balanced", **changes):
    build, grids, stages = case
    budget = replace(BUDGET, memory_mb=(1769, 3538), store=store, **changes)
    return cut(*build(), directory, grids, stages, budget=budget, objective=objective)


@one_each("store", ["redis", "s3", "valkey+s3"], ("case", CASES))
def test_the_price_of_a_plan_equals_the_planners_prediction(case, store, tmp_path):
    plan = split(case, store, tmp_path, "cost" if store == "valkey+s3" else "balanced")
    priced = price_plan(plan, Platform.over(FACTS, store))
    assert plan.store == store
    assert [1000 * price.seconds for price in priced.stages] == pytest.approx(plan.predicted_ms, rel=0.02)
    assert priced.usd == pytest.approx(plan.predicted_usd, rel=0.02)
    first = sorted({stage for stage, _ in plan.functions})
    assert [price.tasks for price in priced.stages] == [plan.stages[number].grid.tiles for number in first]


@pytest.mark.parametrize(
    ("store", "objective", "chosen"),
    [
        ("valkey+s3", "cost", ["objects", "inline", "inline"]),
        ("valkey+s3", "latency", ["cache", "inline", "inline"]),
        ("redis+s3", "cost", ["cache", "inline", "inline"]),
        ("valkey", "cost", ["cache", "inline", "inline"]),
        ("s3", "cost", ["cache", "inline", "inline"]),
    ],
)
def test_large_tensors_go_to_the_object_store_where_bytes_cost_more_than_requests(tmp_path, store, objective, chosen):
    plan = split(LARGE, store, tmp_path, objective)
    assert [stage.path for stage in plan.stages] == chosen
    assert ("What stage 0 hands on goes to the object store." in plan.why) == (chosen[0] == "objects")


def test_a_safety_offset_makes_tiles_slower_by_its_share(tmp_path_factory):
    """The offset of INFless, section 3.3."""
    case = (wide, ["2x2", "1"], None)
    plain, careful = (
        split(case, "redis", tmp_path_factory.mktemp("plan"), profiles=shipped_profiles(safety))
        for safety in (0.0, 0.1)
    )
    for before, after in zip(plain.stages, careful.stages, strict=True):
        for one, other in zip(before.tiles, after.tiles, strict=True):
            assert other.parallel_ms == pytest.approx(1.1 * one.parallel_ms, rel=1e-4)
            assert other.serial_ms == pytest.approx(1.1 * one.serial_ms, rel=1e-3)
