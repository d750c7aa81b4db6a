"""The bench against Gillis's planner: on small networks ours is never worse, and what is worse is called a loss."""

import json
from dataclasses import replace

import numpy as np
import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import UsageError
from serfer.core.plan import PackageLimit
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer_bench.study.baselines.gillis import Options
from serfer_bench.study.planner import breakeven
from serfer_bench.study.planner import planner as versus
from serfer_bench.study.planner.breakeven import Best
from serfer_bench.study.planner.planner import FASTEST, Comparisons, Network, Point, Versus
from tests.bench.running import run
from tests.bench.slow import slow_profiles
from tests.splitter.models import Net

SMALL = Options(memory_mb=(1800, 3600, 7100, 10_240))


def small(seed=0):
    """Four convolutions, two pools, global pooling and a linear layer, on a slow processor."""
    net, x, before = Net(3, 48, 48, seed), "x", 3
    random = np.random.default_rng(seed)
    for step in range(4):
        after = int(random.integers(8, 33))
        x = net.op("Relu", net.conv(x, before, after, [3, 3], pads=[1] * 4))
        if step % 2:
            x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        before = after
    x = net.linear(net.flat(net.op("GlobalAveragePool", x)), before, 10)
    graph = with_tile_pools(from_onnx(net.model(x), 48, 48))
    return Network(
        "small", 48, graph, Budget(PackageLimit(10**9, 0), shipped_aws(), versus.OURS_MB, profiles=slow_profiles())
    )


@pytest.mark.parametrize("seed", [1, 3, *(pytest.param(seed, marks=pytest.mark.weekly) for seed in (2, 5))])
def test_ours_is_never_worse_than_gillis(seed):
    comparison = versus.compare(small(seed), SMALL)
    assert {one.which for one in comparison.versus} == {"fastest", "one vCPU", "frontier"}
    assert not [one for one in comparison.versus if one.loses]
    assert any(one.speedup > 1.05 for one in comparison.versus)


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.weekly), 4])
def test_a_computing_master_saves_little(seed):
    """One invocation fewer in each group, and a cheap master that waits: a way to run that our plans do not have."""
    lost = [one for one in versus.compare(small(seed), SMALL).versus if one.loses]
    assert lost
    assert all("+" in one.gillis.what and one.speedup > 0.97 for one in lost)


def case(gillis, faster, cheaper):
    return Versus(FASTEST, Point(*gillis, "theirs"), faster and Point(*faster, "a"), cheaper and Point(*cheaper, "b"))


@pytest.mark.parametrize(
    ("one", "loses", "wins"),
    [
        (case((100, 2e-6), (100, 2e-6), (100, 2e-6)), False, False),
        (case((100, 2e-6), (76, 2e-6), (100, 1.9e-6)), False, True),
        (case((100, 2e-6), (99, 2e-6), (100, 1.3e-6)), False, True),
        (case((100, 2e-6), (101, 2e-6), None), True, False),
        (case((100, 2e-6), None, (50, 2.1e-6)), True, False),
    ],
)
def test_a_plan_worse_in_any_respect_is_a_loss(one, loses, wins):
    assert (one.loses, one.wins) == (loses, wins)


def test_results_list_losses_and_the_rate_from_which_the_store_pays():
    lost = case((100, 2e-6), (103, 1e-6), None)
    point = Point(200, 1e-6, "one")
    result = Comparisons((versus.Comparison("net", 224, (point, point), (lost,)),), "a machine", 0.2)
    text = versus.results(result).text()
    assert "LOSS" in text
    assert "losses: 1 of 1" in text
    assert "net at 224 px against theirs: +3.0% ms; no plan within its time" in text
    assert json.loads(json.dumps(result.cases[0].as_dict()))["versus"][0]["saving"] is None
    ours = replace(Point(100, 1e-6, "ours"), stored=True)
    one = Versus("one vCPU", Point(100, 2e-6, "theirs"), ours, ours)
    result = Comparisons((versus.Comparison("net", 224, (ours, ours), (one,)),), "a machine", 0.2)
    assert "from 200,000 to 200,000 queries an hour" in versus.results(result).text()


def test_the_break_even_says_from_where_on_splitting_wins():
    race = breakeven.race(small())
    for best in (race.staged, race.gangs):
        assert best.fastest.ms <= best.at_more.ms <= best.at_cost.ms
        assert best.fastest.ms <= race.large.ms
        assert best.at_cost.usd <= race.large.usd
    assert race.gangs.at_more.ms <= race.staged.at_more.ms
    slow, fast, large = (Point(ms, 1e-6, "p") for ms in (99, 50, 100))
    races = [
        replace(race, size=1, large=large, staged=Best(slow, None, None), gangs=Best(slow, None, None)),
        replace(race, size=2, large=large, staged=Best(fast, None, None), gangs=Best(fast, fast, fast)),
    ]
    assert [one.verdict for one in races] == ["even", breakeven.SPLIT]
    text = breakeven.results(breakeven.BreakEven(tuple(races), "a machine")).text()
    assert "small, without gangs: never up to 2 px for the large function's dollars; from 2 px on whatever" in text
    assert "small, with gangs: from 2 px on for the large function's dollars; from 2 px on whatever" in text
    assert json.dumps([one.as_dict() for one in races])


@pytest.mark.parametrize("command", ["gillis", "breakeven"])
def test_an_unknown_store_is_refused(command):
    with pytest.raises(UsageError, match="redis or s3"):
        run("study", "planner", command, "--store", "tape")
