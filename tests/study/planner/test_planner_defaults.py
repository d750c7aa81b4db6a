"""`serfer study planner defaults` on a small network that no zip holds, where fetching takes long."""

from dataclasses import replace

import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cold_starts import COLD_SHARE
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer_bench.study.planner.defaults import choices
from tests.splitter.models import Net

FACTS = shipped_aws()


def test_the_default_is_better_than_the_warm_choice_where_queries_are_cold():
    net, x = Net(3, 12, 12), "x"
    for before, after in ((3, 24), (24, 40), (40, 24)):
        x = net.op("Relu", net.conv(x, before, after, [3, 3], pads=[1, 1, 1, 1]))
    x = net.linear(net.op("Relu", net.linear(net.flat(x), 24 * 144, 60)), 60, 10)
    functions = replace(FACTS.functions, package_limit=DEPENDENCY_ALLOWANCE + 500_000, fetch_latency=5.0)
    slow = replace(FACTS, functions=functions)
    warm, default = choices("small", from_onnx(net.model(x), 12, 12), 12, slow)
    assert (warm.chosen_for, default.chosen_for) == ("warm", "default")
    assert warm.warm_ms * warm.usd < default.warm_ms * default.usd
    assert default.expected_ms * default.expected_usd < warm.expected_ms * warm.expected_usd
    assert default.cold_ms < warm.cold_ms
    for choice in (warm, default):
        assert choice.expected_ms == pytest.approx((1 - COLD_SHARE) * choice.warm_ms + COLD_SHARE * choice.cold_ms)
