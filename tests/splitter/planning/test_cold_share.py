"""The search with a share of cold queries against an enumeration of all chains, on small random networks."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from onnx import TensorProto

from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cold_starts import cold_seconds
from serfer.core.costs.cost_model import ready_seconds
from serfer.core.costs.operator_costs import Kind, Work, shipped_profiles
from serfer.core.geometry import Grid
from serfer.core.plan import AS_IS, INLINE, ZIP, PackageLimit
from serfer.splitter.network.as_is import PartCosts
from serfer.splitter.planning import bounds
from serfer.splitter.planning.cold.share import best_chain, expected_seconds, first_answer
from serfer.splitter.planning.planner import prepare
from serfer.splitter.planning.search import BALANCED, COST, LATENCY
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling.cuts import cut_points, weight_bytes
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer.splitter.tiling.grids import COLUMNS, ONE, GridChoice
from tests.splitter.models import Net
from tests.splitter.planning import test_search
from tests.splitter.test_random_tails import read, source_of

SHARES = (0.02, 0.3)
A_FEW, MORE = 3, 100
GOALS = {"latency": LATENCY, "cost": COST, "balanced": BALANCED}


@pytest.fixture(scope="module", autouse=True)
def _small_choices():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serfer.splitter.planning.stage_prices.INLINE_MOST", test_search.INLINE_MOST)
        patch.setattr("serfer.splitter.planning.gang_candidates.GRIDS", (Grid(2, 1), Grid(2, 2)))
        patch.setattr(test_search, "GRIDS", test_search.GRIDS[:3])
        yield


class WithColds(test_search.Enumerated):
    """Every chain of stages with its warm seconds, its first answer where nothing is warm, and its dollars."""

    def chains(self, at=0, before=None, path=INLINE):
        if at == len(self.cuts) - 1:
            yield np.zeros(1), np.zeros(1), np.zeros(1)
            return
        for to in range(at + 1, len(self.cuts)):
            for grid in test_search.GRIDS:
                for after in [INLINE] if to == len(self.cuts) - 1 else self.paths:
                    price = self.price(at, to, grid, before, path, after)
                    for warm, cold, usd in self.chains(to, grid, after) if price is not None else ():
                        seconds = np.add.outer(price[0], warm)
                        ended = np.maximum(seconds + self.ready(at, to, grid), cold)
                        yield seconds.ravel(), ended.ravel(), np.add.outer(price[1], usd).ravel()

    def ready(self, at, to, grid):
        size = weight_bytes(self.graph, self.cuts[at].position, self.cuts[to].position)
        functions = self.budget.platform.functions
        return ready_seconds(grid.tiles, cold_seconds(size, ZIP, functions), functions, first=not at)


def slow_starts(budget, share):
    """Give a budget environments that take as long to start as the networks here take to run, by their weights."""
    functions = replace(budget.facts.functions, init=0.05, load_rate=1e5)
    facts = replace(budget.facts, functions=functions)
    return replace(budget, limit=PackageLimit(10**9, 0), facts=facts, cold_share=share)


@pytest.fixture(scope="module", params=[A_FEW, pytest.param(MORE, marks=pytest.mark.weekly)])
def some_cases(request):
    return [(graph, cuts, budget) for graph, cuts, budget in islice(test_search.cases(request.param + 1), 1, None)]


def chosen(graph, cuts, budget, share, goal):
    """Return the chain that is chosen, with the bounds of one function, and its seconds cold and expected."""
    budget = slow_starts(budget, share)
    search = prepare(graph, cuts, GridChoice(options=test_search.GRIDS), None, budget, goal=goal)
    chain = best_chain(search, goal, budget.platform)
    cold_s = first_answer(chain, budget.platform)
    return chain, cold_s, expected_seconds(chain.seconds, cold_s, budget.platform)


def test_search_returns_the_best_of_all_chains_with_cold_queries_in_their_share(some_cases):
    others = 0
    for graph, cuts, budget in some_cases:
        for share in SHARES:
            parts = WithColds(graph, cuts, slow_starts(budget, share)).chains()
            warm, cold, usd = map(np.concatenate, zip(*parts, strict=True))
            seconds = (1 - share) * warm + share * cold
            later = (warm.min() + warm[usd.argmin()]) / 2
            first = (cold.min() + cold[usd.argmin()]) / 2
            bounded = (replace(COST, most_seconds=later), replace(COST, most_cold_seconds=first))
            for goal in (*GOALS.values(), *bounded):
                fitting = (warm <= goal.most_seconds) & (cold <= goal.most_cold_seconds)
                best = goal.value(seconds[fitting], usd[fitting]).min()
                chain, cold_s, expected = chosen(graph, cuts, budget, share, goal)
                assert goal.value(expected, chain.usd) == pytest.approx(best, rel=1e-9)
                assert chain.seconds <= goal.most_seconds * (1 + 1e-9)
                assert cold_s <= goal.most_cold_seconds * (1 + 1e-9)
                others += goal.value(warm, usd).argmin() != goal.value(seconds, usd).argmin()
    assert others > len(some_cases)


@pytest.mark.parametrize("goal", GOALS)
def test_without_cold_queries_the_choice_is_that_of_warm_ones(some_cases, goal):
    for graph, cuts, budget in some_cases:
        within = slow_starts(budget, 0.0)
        search = test_search.searched(graph, cuts, within, test_search.GRIDS)
        assert best_chain(search, GOALS[goal], within.platform) == search.best(GOALS[goal])


TAIL_GRIDS = (ONE, Grid(1, 2), Grid(2, 2), *COLUMNS[:2])


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
        x = net.op("Relu", net.conv(x, channels, width, 3))
        channels = width
    outputs = {net.op("Sigmoid", x): 4} if has_map else {}
    sums = net.op("ReduceSum", x, [0], keepdims=1)
    sums = net.op("Concat", *[sums] * times, axis=1)
    if is_table:
        sums = net.op("Reshape", sums, [0, times * channels, -1])
    outputs[sums] = 3 if is_table else 4
    model = net.model(*((name, TensorProto.FLOAT, rank) for name, rank in outputs.items()))
    graph, _ = read(source_of(model), np.zeros((1, 3, *size), np.float32))
    nodes = [node if node.kind != AS_IS else measured(node, took_s) for node in graph.nodes]
    return with_tile_pools(replace(graph, nodes=tuple(nodes)))


def measured(node, took_s):
    costs = PartCosts(Work(Kind.PRODUCT, measured_s=took_s), 1000)
    return replace(node, attributes={**node.attributes, "part": replace(node.attributes["part"], costs=costs)})


def tailed_cases(count):
    random = np.random.default_rng(11)
    for number in range(count):
        graph = network(random, number)
        facts = replace(test_search.FACTS, valkey=test_search.DEAR_BYTES)
        store, share = str(random.choice(["redis", "valkey", "valkey+s3"])), float(random.choice([0, 0.1]))
        budget = Budget(
            PackageLimit(10**9, 0), facts, (884, 3538), store=store, cold_share=share, profiles=test_search.PROFILES
        )
        yield graph, cut_points(graph), budget


def prepared(graph, cuts, budget, goal):
    return prepare(graph, cuts, GridChoice(options=TAIL_GRIDS), None, budget, gang="auto", goal=goal)


@pytest.mark.parametrize("count", [3, pytest.param(60, marks=pytest.mark.weekly)])
def test_bounds_leave_out_no_chain_that_is_the_best(count):
    drawn = [*tailed_cases(count)]
    assert {node.kind for graph, *_ in drawn for node in graph.nodes[-3:]} >= {AS_IS, "Flatten"}
    test_search.shares_left(drawn, prepared)


def test_little_is_searched_where_one_task_has_a_large_answer(monkeypatch):
    graph = tailed((24, 160), [16] * 8, 12, 4e-3, is_table=True)
    budget = Budget(PackageLimit(10**9, 0), shipped_aws(), (1769, 3008), profiles=shipped_profiles())
    given = (graph, cut_points(graph), budget, BALANCED)
    fewer = prepared(*given)
    monkeypatch.setattr(bounds, "_FEW", 0)
    every = prepared(*given)
    assert len([*fewer.edges]) < 0.1 * len([*every.edges])
    assert test_search.priced(fewer.best(BALANCED)) == test_search.priced(every.best(BALANCED))
