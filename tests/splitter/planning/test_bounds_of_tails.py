"""Bounds of networks whose last operators run as they are, in one task, which hands on a large answer by itself."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto

from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.operator_costs import shipped_profiles
from serfer.core.geometry import Grid
from serfer.core.plan import AS_IS, PackageLimit
from serfer.splitter.network.as_is import Measured
from serfer.splitter.planning import bounds
from serfer.splitter.planning.planner import prepare
from serfer.splitter.planning.search import BALANCED
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling.cuts import cut_points
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer.splitter.tiling.grids import COLUMNS, ONE, GridChoice
from tests.splitter.models import Net
from tests.splitter.planning.test_search import DEAR_BYTES, FACTS, INLINE_MOST, PROFILES, priced, shares_left
from tests.splitter.test_random_tails import read, source_of

GRIDS = (ONE, Grid(1, 2), Grid(2, 2), *COLUMNS[:2])


@pytest.fixture(scope="module", autouse=True)
def _small_choices():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serfer.splitter.planning.stage_prices.INLINE_MOST", INLINE_MOST)
        patch.setattr("serfer.splitter.planning.gang_candidates.GRIDS", (Grid(2, 1), Grid(2, 2)))
        yield


def network(random, number):
    """Return the graph of a few convolutions and a sum over images, which cannot be split: of 0.5 to 60 kB.

    Every second one is a table, which SerFer makes flat behind the part; every third one is a map as well.
    """
    size = tuple(int(side) for side in random.integers(10, 15, size=2))
    widths = [int(width) for width in random.integers(1, 4, size=random.integers(2, 5))]
    times, took = int(random.choice([1, 10, 30])), float(random.choice([1e-8, 1e-6]))
    return tailed(size, widths, times, took, is_table=number % 2 == 1, has_map=number % 3 == 0, seed=number)


def tailed(size, widths, times, took_s, *, is_table, has_map=False, seed=0):
    """Return a graph whose part that runs as it is repeats its channels so many times."""
    net, x, channels = Net(3, *size, seed), "x", 3
    for width in widths:
        x = net.op("Relu", net.conv(x, channels, width, [3, 3], pads=[1] * 4))
        channels = width
    outputs = {net.op("Sigmoid", x): 4} if has_map else {}
    sums = net.op("ReduceSum", x, net.constant(np.array([0])), keepdims=1)
    sums = net.op("Concat", *[sums] * times, axis=1)
    if is_table:
        sums = net.op("Reshape", sums, net.constant(np.array([0, times * channels, -1])))
    outputs[sums] = 3 if is_table else 4
    model = net.model(*((name, TensorProto.FLOAT, rank) for name, rank in outputs.items()))
    graph, _ = read(source_of(model), np.zeros((1, 3, *size), np.float32))
    took = Measured(took_s, 1000)
    return with_tile_pools(replace(graph, nodes=tuple(measured(node, took) for node in graph.nodes)))


def measured(node, took):
    if node.kind != AS_IS:
        return node
    return replace(node, attributes={**node.attributes, "part": replace(node.attributes["part"], measured=took)})


def cases(count):
    random = np.random.default_rng(11)
    for number in range(count):
        graph = network(random, number)
        facts = replace(FACTS, valkey=DEAR_BYTES)
        store, share = str(random.choice(["redis", "valkey", "valkey+s3"])), float(random.choice([0, 0.1]))
        budget = Budget(PackageLimit(10**9, 0), facts, (884, 3538), store=store, cold_share=share, profiles=PROFILES)
        yield graph, cut_points(graph), budget


def prepared(graph, cuts, budget, goal):
    return prepare(graph, cuts, GridChoice(options=GRIDS), None, budget, gang="auto", goal=goal)


@pytest.mark.parametrize("count", [3, pytest.param(60, marks=pytest.mark.weekly)])
def test_bounds_leave_out_no_chain_that_is_the_best(count):
    drawn = [*cases(count)]
    assert {node.kind for graph, *_ in drawn for node in graph.nodes[-3:]} >= {AS_IS, "Flatten"}
    shares_left(drawn, prepared)


def test_little_is_searched_where_one_task_has_a_large_answer(monkeypatch):
    graph = tailed((24, 160), [16] * 8, 12, 4e-3, is_table=True)
    budget = Budget(PackageLimit(10**9, 0), shipped_aws(), (1769, 3008), profiles=shipped_profiles())
    given = (graph, cut_points(graph), budget, BALANCED)
    fewer = prepared(*given)
    monkeypatch.setattr(bounds, "_FEW", 0)
    every = prepared(*given)
    assert len([*fewer.edges]) < 0.1 * len([*every.edges])
    assert priced(fewer.best(BALANCED)) == priced(every.best(BALANCED))
