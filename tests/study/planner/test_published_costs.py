"""The cost model of Gillis's and MPHB's programs: cases by hand, and the exact search over it against every plan."""

from dataclasses import replace

import numpy as np
import pytest

from serfer.core.errors import ModelError
from serfer.core.geometry import Grid
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.grids import ONE
from serfer_bench.study.baselines.published_costs import GILLIS, MPHB, Group, PublishedCosts, calls_ms
from tests.splitter.models import Net

HALVES = Grid(1, 2)


def chain():
    net = Net(3, 8, 8)
    x = net.op("Relu", net.conv("x", 3, 4, [3, 3], pads=[1] * 4, strides=[1, 1]))
    return from_onnx(net.model(net.linear(net.flat(x), 256, 64)), 8, 8)


SIDE = 160


def network(channels=64):
    """A residual block, a pool and a linear layer, so large that halves up to the pool are faster, and dearer."""
    net = Net(3, SIDE, SIDE)
    x = net.op("Relu", net.conv("x", 3, channels, [3, 3], pads=[1] * 4, strides=[1, 1]))
    y = net.op("Relu", net.conv(x, channels, channels, [3, 3], pads=[1] * 4, strides=[1, 1]))
    x = net.op("Relu", net.op("Add", net.conv(y, channels, channels, [3, 3], pads=[1] * 4, strides=[1, 1]), x))
    x = net.op("MaxPool", x, kernel_shape=[8, 8], strides=[8, 8], pads=[0] * 4)
    x = net.conv(x, channels, channels, [1, 1], pads=[0] * 4, strides=[1, 1])
    return from_onnx(net.model(net.linear(net.flat(x), channels * 400, 100)), SIDE, SIDE)


def test_layers_on_the_master_by_hand():
    costs = PublishedCosts(chain(), GILLIS)
    assert costs.ends == [0, 3, 4]  # the flattening joins the convolution's layer
    conv = 0.000066 * 4 * 64 * 3 * 9 / 1024 + 0.703038
    relu = 0.00165758 * 4 * 64 / 1024 + 0.13902374
    gemm = 0.0015 * 256 * 64 / 1024 + 2.58044859
    plan = costs.plan([Group(0, 1, ONE, here=True), Group(1, 2, ONE, here=True)])
    assert plan.ms == pytest.approx(conv + relu + gemm)
    assert plan.usd == pytest.approx(3008 / 1024 * 0.1 * 0.0000166667)  # 100 ms at least
    assert plan.held_mb == pytest.approx(4 * (4 * 3 * 9 + 4 + 256 * 64 + 64) / 2**20)


def test_halves_of_a_map_by_hand():
    graph = network()
    costs = PublishedCosts(graph, MPHB)
    read, written = 3 * 160 * 81 / 1024, 64 * 160 * 80 / 1024  # a column of halo on one side, and padding on the other
    conv = 0.000066 * 64 * 160 * 80 * 3 * 9 / 1024 + 0.703038
    relu = 0.00165758 * 64 * 160 * 80 / 1024 + 0.13902374
    busy = 0.16 * read + conv + relu + 0.22 * written
    rate = (0.5 * 0.000016 + 2.048 * 0.0000024) / 1000
    ms, usd = costs.price(Group(0, 1, HALVES, here=True))
    assert ms == pytest.approx(0.22 * read + busy + 0.16 * written + calls_ms(1, read, written))
    assert usd == pytest.approx(rate * busy + 0.00000012)
    assert costs.price(Group(0, 1, HALVES, here=False))[1] == pytest.approx(2 * usd)
    assert costs.price(Group(0, 1, HALVES, here=False))[0] > ms


def test_columns_divide_products_and_answers():
    graph = network()
    costs = PublishedCosts(graph, MPHB)
    last = len(costs.ends) - 2
    gemm = 0.0015 * 64 * 400 * 100 / 4 / 1024 + 2.58044859
    busy = 0.16 * 25 + gemm + 0.22 * 25 / 1024
    assert costs.price(Group(last, last + 1, Grid(1, 4, columns=True), here=True))[0] == pytest.approx(
        3 * 0.22 * 25 + busy + 3 * 0.16 * 25 / 1024 + calls_ms(3, 25, 25 / 1024)
    )


def test_a_call_takes_the_mean_of_its_distribution_and_more_of_them_longer():
    one, four = calls_ms(1, 0, 0), calls_ms(4, 0, 0)
    assert one == pytest.approx(28.83 + 2.765 * 0.9966, abs=2)  # the grid has steps of 2 ms
    assert one < four < one + 20


@pytest.mark.parametrize(("prices", "ms", "usd"), [(GILLIS, 101, 200 * 3008 / 1024 * 1.66667e-8), (MPHB, 0, 1.2e-7)])
def test_functions_are_billed_as_the_programs_do(prices, ms, usd):
    assert float(prices.usd(ms)) == pytest.approx(usd)


def every_plan(groups, count, at=0):
    """Yield every chain of groups from a layer to the end."""
    if at == count:
        yield ()
    for group in groups:
        if group.start == at:
            for rest in every_plan(groups, count, group.stop):
                yield (group, *rest)


@pytest.mark.parametrize("prices", [GILLIS, MPHB])
def test_the_search_finds_the_cheapest_of_all_plans(prices):
    costs = PublishedCosts(network(), replace(prices, most_parts=2, round_ms=prices.round_ms // 10))
    plans = [costs.plan(groups) for groups in every_plan([*costs.groups()], len(costs.ends) - 1)]
    times = sorted({plan.ms for plan in plans})
    for most in (times[0], *np.quantile(times, [0.1, 0.5]), 1e9):
        cheapest = min(plan.usd for plan in plans if plan.ms <= most)
        assert costs.best(most).usd == pytest.approx(cheapest)
    assert costs.fastest().ms == pytest.approx(times[0])
    assert costs.best(times[0] * 0.99) is None
    assert len({round(costs.best(most).usd, 12) for most in (times[0], 1e9)}) == 2


def test_the_masters_weights_keep_its_limit():
    graph = network(channels=256)
    all_of_it = PublishedCosts(graph, MPHB)
    tight = PublishedCosts(graph, replace(MPHB, limit_mb=int(all_of_it.weights_mb)))
    assert all_of_it.best().held_mb == pytest.approx(all_of_it.weights_mb)
    plan = tight.best()
    assert plan.held_mb <= tight.prices.limit_mb
    assert any(not group.here for group in plan.groups)


def test_layers_that_the_master_computes_one_after_the_other_are_rounded_up_once():
    """Five layers of 5 MB in all are one step of 25 MB, not one each; the last layer is on two workers."""
    costs = PublishedCosts(network(channels=256), replace(MPHB, limit_mb=30, most_parts=2))
    last = len(costs.ends) - 2
    plan = costs.plan([Group(0, last, ONE, here=True), Group(last, last + 1, Grid(1, 2, columns=True), here=False)])
    assert costs.best().usd <= plan.usd


def test_operators_without_coefficients_are_refused():
    net = Net(3, 8, 8)
    graph = from_onnx(net.model(net.linear(net.flat(net.op("Softplus", "x")), 192, 4)), 8, 8)
    with pytest.raises(ModelError, match="no coefficients for Softplus"):
        PublishedCosts(graph, GILLIS)
