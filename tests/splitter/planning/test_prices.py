"""One cost model: the price of a finished plan equals the prediction of the planner."""

from dataclasses import replace

import pytest

from serfer.core.costs.cold_queries import price_cold
from serfer.core.costs.cost_model import Platform, price_plan
from serfer.core.costs.operator_costs import shipped_profiles
from serfer.plan_directory import load_plan
from serfer.splitter.package_fit import fit
from tests.once import one_each
from tests.splitter import models
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


def split(case, store, directory, cold_share=0.0, profiles=BUDGET.profiles, **options):
    build, grids, stages = case
    budget = replace(BUDGET, memory_mb=(1769, 3538), store=store, cold_share=cold_share, profiles=profiles)
    return cut(*build(), directory, grids, stages, budget=budget, **options)


FORMS = [
    {"store": "s3"},
    {"store": "redis", "gang": "always"},
    {"store": "valkey+s3", "cold_share": 0.02, "objective": "cost"},
    {"store": "redis", "cold_share": 0.3, "precision": "fp16"},
]


@pytest.mark.filterwarnings("ignore:no stages can be a gang")
@one_each("form", FORMS, ("case", CASES))
def test_every_figure_of_a_plan_is_its_price(case, form, tmp_path, monkeypatch):
    """Those of its stages, of its row among the alternatives, and of its paragraph; the search's are close to them."""
    searched = []
    monkeypatch.setattr(models, "fit", lambda *given: searched.append(fit(*given)) or searched[0])
    plan = split(case, directory=tmp_path, **form)
    platform = Platform.over(FACTS, form["store"], plan.cold_share)
    query, cold = price_plan(plan, platform), price_cold(plan, platform)
    warm = price_plan(plan, replace(platform, cold_share=0.0))
    assert plan.predicted_ms == [1000 * step.seconds for step in warm.stages]
    assert (plan.store, plan.predicted_usd) == (form["store"], warm.usd)
    figures = [*(1000 * price.seconds for price in (query, warm, cold)), query.usd, warm.usd]
    assert figures == figures_of(load_plan(tmp_path))
    assert plan.gangs or figures == pytest.approx(figures_of(searched[0]), rel=2e-3)
    assert f": {figures[0]:.4g} ms and ${1e6 * query.usd:.2f} a million queries, predicted" in plan.why
    for other in plan.alternatives:
        ratios = f"{other.ms / figures[0]:.2f} times as long and costs {other.usd / query.usd:.2f} times"
        assert other.tasks > 1 or other.chosen or f"{other.stages} takes {ratios}" in plan.why


def figures_of(plan):
    (chosen,) = (other for other in plan.alternatives if other.chosen)
    return [chosen.ms, chosen.warm_ms, chosen.cold_ms, chosen.usd, chosen.warm_usd]


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
    plan = split(LARGE, store, tmp_path, objective=objective)
    assert [stage.path for stage in plan.stages] == chosen
    assert ("What stage 0 hands on goes to the object store." in plan.why) == (chosen[0] == "objects")


def test_a_safety_offset_makes_tiles_slower_by_its_share(tmp_path_factory):
    """The offset of INFless, section 3.3."""
    case = (wide, ["2x2", "1"], None)
    plain, careful = (
        split(case, "redis", tmp_path_factory.mktemp("plan"), profiles=shipped_profiles(safety))
        for safety in (0.0, 0.1)
    )
    before, after = ([tile for stage in plan.stages for tile in stage.tiles] for plan in (plain, careful))
    assert [tile.parallel_ms for tile in after] == pytest.approx([1.1 * tile.parallel_ms for tile in before], rel=1e-4)
    assert [tile.serial_ms for tile in after] == pytest.approx([1.1 * tile.serial_ms for tile in before], rel=1e-3)
