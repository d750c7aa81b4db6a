"""The search with a share of cold queries against an enumeration of all chains, on small random networks."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from serfer.core.costs.cold_starts import cold_seconds
from serfer.core.costs.cost_model import ready_seconds
from serfer.core.plan import INLINE, ZIP, PackageLimit
from serfer.splitter.planning.cold.share import best_chain, expected_seconds, first_answer
from serfer.splitter.planning.planner import prepare
from serfer.splitter.planning.search import BALANCED, COST, LATENCY
from serfer.splitter.tiling.cuts import weight_bytes
from serfer.splitter.tiling.grids import GridChoice
from tests.splitter.planning import test_search
from tests.splitter.planning.test_search import GRIDS, INLINE_MOST, Enumerated, cases, searched

SHARES = (0.02, 0.3)
A_FEW, MORE = 3, 100
GOALS = {"latency": LATENCY, "cost": COST, "balanced": BALANCED}


@pytest.fixture(scope="module", autouse=True)
def _small_choices():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serfer.splitter.planning.stage_prices.INLINE_MOST", INLINE_MOST)
        patch.setattr(test_search, "GRIDS", GRIDS[:3])
        yield


class WithColds(Enumerated):
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
    return [(graph, cuts, budget) for graph, cuts, budget in islice(cases(request.param + 1), 1, None)]


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
        search = searched(graph, cuts, within, test_search.GRIDS)
        assert best_chain(search, GOALS[goal], within.platform) == search.best(GOALS[goal])
