"""The search against an enumeration of all chains, on small random networks."""

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cold_starts import cold_start
from serfer.core.costs.cost_model import StageLoad, Traffic, stage_price, starting_usd
from serfer.core.costs.operator_costs import shipped_profiles
from serfer.core.geometry import Grid, Rect, Span
from serfer.core.plan import CACHE, INLINE, OBJECTS, ZIP, PackageLimit
from serfer.core.units import FLOAT_BYTES
from serfer.splitter.planning.ort_kernels import operator_work, tile_moves
from serfer.splitter.planning.planner import choices_of, prepare
from serfer.splitter.planning.search import BALANCED, COST, LATENCY
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.planning.stage_graph import LEAST_SIDE
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.cuts import cut_points, weight_bytes
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.global_pooling import with_grid, with_tile_pools
from serfer.splitter.tiling.grids import COLUMNS, ONE, GridChoice, can_part, tile_rects
from serfer.splitter.tiling.regions import infer_regions
from tests.splitter.models import Net

CASES = 200
A_FEW = 15  # `make weekly` has all of them
MEMORY = (884, 1769, 7076)
GRIDS = (ONE, Grid(1, 2), Grid(2, 2), Grid(3, 2), *COLUMNS[:2])
SLOW_NETWORK = replace(shipped_aws().functions, bandwidth=2e6, invoke_floor=2e-4, invoke_tail=1e-4)
FACTS = replace(shipped_aws(), functions=SLOW_NETWORK)
DEAR_BYTES = replace(FACTS.valkey, price_byte=1e-9)
NEAR_OBJECTS = replace(FACTS.s3, request_latency=2e-4)
INLINE_MOST = 2000


class SlowProcessor:
    """Takes 3,000 times as long as the shipped profiles say, a fifth of it in one thread."""

    run_s = 1e-6

    def parts(self, work):
        seconds = 3000 * SHIPPED.seconds(work)
        return 0.2 * seconds, 0.8 * seconds

    def least(self, work):
        seconds = 3000 * sum(SHIPPED.least(work))
        return 0.2 * seconds, 0.8 * seconds


SHIPPED, PROFILES = shipped_profiles(), SlowProcessor()
"""A Lambda, and a processor, on which tiny networks are worth splitting, and stores between which tiny maps choose."""


def network(random):
    """Three to five operators that cost something on maps of 8 to 20 rows, then perhaps a pool, then a linear layer."""
    height, width, channels = *(int(side) for side in random.integers(8, 21, size=2)), 3
    size = height, width
    net, x = Net(channels, height, width, int(random.integers(1000))), "x"
    for _ in range(random.integers(2, 4)):
        after, kernel = int(random.integers(2, 9)), int(random.choice([1, 3, 5]))
        stride = int(random.choice([1, 1, 2])) if min(height, width) > 8 else 1
        pads = [kernel // 2] * 4
        x = net.op("Relu", net.conv(x, channels, after, [kernel, kernel], pads=pads, strides=[stride, stride]))
        channels, height, width = after, -(-height // stride), -(-width // stride)
    if random.random() < 0.5:
        x, height, width = net.op("GlobalAveragePool", x), 1, 1
    x = net.linear(net.flat(x), channels * height * width, 40)
    if random.random() < 0.5:
        x = net.linear(net.op("Relu", x), 40, 10)
    return net.model(x), size


class Enumerated:
    """Every chain of stages on every grid, memory and path, priced from the tiles that would be written.

    With `everywhere` it is every chain that is cut at all of the cuts.
    """

    def __init__(self, graph, cuts, budget, *, everywhere=False):
        self.graph, self.cuts, self.budget, self.everywhere = graph, cuts, budget, everywhere
        self.prices, self.known_stages = {}, {}
        self.paths = [CACHE, INLINE, OBJECTS] if budget.platform.objects else [CACHE, INLINE]

    def chains(self, at=0, before=None, path=INLINE):
        """Yield (seconds, usd) of every chain from a cut to the end, arrays over what its stages may have of memory.

        `before` is the grid on which the tensors at the cut were written, `path` how they travel.
        """
        if at == len(self.cuts) - 1:
            yield np.zeros(1), np.zeros(1)
            return
        for to in [at + 1] if self.everywhere else range(at + 1, len(self.cuts)):
            last = to == len(self.cuts) - 1
            for grid, after in product(GRIDS, [INLINE] if last else self.paths):
                price = self.price(at, to, grid, before, path, after)
                for rest in self.chains(to, grid, after) if price is not None else ():
                    yield tuple(np.add.outer(mine, theirs).ravel() for mine, theirs in zip(price, rest, strict=True))

    def price(self, *key):
        if key not in self.prices:
            self.prices[key] = self._price(*key)
        return self.prices[key]

    def stage(self, *key):
        if key not in self.known_stages:
            self.known_stages[key] = self._stage(*key)
        return self.known_stages[key]

    def _stage(self, at, to, grid):
        """Return each tile's regions that are read, what it reads, writes and computes; None for no such stage."""
        left, right = self.cuts[at], self.cuts[to]
        tiles = self.tiles(left, right, grid)
        if tiles is None or weight_bytes(self.graph, left.position, right.position) > self.budget.limit.room:
            return None
        graph, nodes, tiles = tiles
        needed, read, written, seconds = [], [], [], []
        for outputs, regions in tiles:
            needed.append({name: regions[name] for name in left.tensors if name in regions})
            read.append(sum(graph.shape(name).channels * region.area for name, region in needed[-1].items()))
            written.append(sum(graph.shape(name).channels * rect.area for name, rect in outputs.items()))
            seconds.append(self.compute(graph, nodes, regions, list(needed[-1]), outputs))
        return needed, *(np.array(each) * FLOAT_BYTES for each in (read, written)), seconds

    def _price(self, at, to, grid, before, come, go):
        stage = self.stage(at, to, grid)
        if stage is None:
            return None
        needed, read, written, seconds = stage
        ranges = [sum(self.pieces(*item, before) for item in regions.items()) if at else 0 for regions in needed]
        size = weight_bytes(self.graph, self.cuts[at].position, self.cuts[to].position)
        last = to == len(self.cuts) - 1
        too_large = read.sum() > INLINE_MOST, written.sum() > INLINE_MOST
        if (at and come == INLINE and too_large[0]) or (not last and go == INLINE and too_large[1]):
            return None
        none, ranges = np.zeros(len(needed)), np.array(ranges)

        def by(path):
            into = (read, ranges) if come == path else (none, none)
            return Traffic(*into, written if go == path else none)

        carried = by(INLINE)
        load = StageLoad(
            *np.transpose(seconds),
            *(by(CACHE).bytes_read, by(CACHE).ranges, by(CACHE).bytes_written),
            carried_in=carried.bytes_read if at else read / FLOAT_BYTES,
            carried_out=carried.bytes_written,
            weight_bytes=size,
            objects=by(OBJECTS) if OBJECTS in (come, go) else None,
        )
        seconds, usd = stage_price(load, np.array(self.budget.memory_mb)[:, None], self.budget.platform)
        return seconds, usd + starts_usd(self.budget, len(needed), size, first=not at)

    def compute(self, graph, nodes, regions, read, outputs):
        """Return the seconds of a tile, in one thread and in several."""
        profiles, moves = self.budget.profiles, tile_moves(graph, nodes, regions, read, outputs)
        works = [*(operator_work(graph, node, at_origin(regions[node.output])) for node in nodes), *moves]
        return np.sum([(profiles.run_s, 0.0), *(profiles.parts(work) for work in works if work)], axis=0)

    def tiles(self, left, right, grid):
        """Return each tile's outputs and all its regions, as the assembler would; None where there is no such stage."""
        graph = with_grid(self.graph, grid)
        nodes = graph.nodes[left.position : right.position]
        made = [node.output for node in nodes]
        outputs = [name for name in right.tensors if name in made]
        spread = operators.column_splittable if grid.columns else operators.tileable
        if grid == ONE:
            whole = {name: graph.shape(name).whole for name in (*self.read(left, nodes), *made)}
            return graph, nodes, [({name: whole[name] for name in outputs}, whole)]
        parts = {name: tile_rects(graph, name, grid) for name in outputs}
        pools = [node.output for node in nodes if node.kind == operators.TILE_POOL]
        if not all(can_part(graph, name, grid, LEAST_SIDE) for name in outputs):
            return None
        if not all(spread(graph, node) for node in nodes) or set(pools) - set(outputs):
            return None
        tiles = []
        for number in range(grid.tiles):
            targets = {name: rects[number] for name, rects in parts.items()}
            tiles.append((targets, *infer_regions(graph, nodes, [targets])))
        return graph, nodes, tiles

    def read(self, left, nodes):
        needed = {name for node in nodes for name in self.graph.activations(node)}
        return [name for name in left.tensors if name in needed]

    def pieces(self, name, rect, grid):
        rects = tile_rects(with_grid(self.graph, grid), name, grid) if grid else []
        return sum(common(rect, other) > 0 for other in rects) or 1


def common(rect, other):
    rows = min(rect.rows.stop, other.rows.stop) - max(rect.rows.start, other.rows.start)
    cols = min(rect.cols.stop, other.cols.stop) - max(rect.cols.start, other.cols.start)
    return max(rows, 0) * max(cols, 0)


def starts_usd(budget, tasks, weights, *, first):
    """Return what the cold starts of a step cost in the share of the queries that are cold, for each memory."""
    platform = budget.platform
    billed_s = cold_start(weights, ZIP, platform.functions).billed_seconds
    usd = starting_usd(tasks, np.array(budget.memory_mb, dtype=float), billed_s, platform.functions, first=first)
    return platform.cold_share * usd


def at_origin(rect):
    """Predictions know how large a region is, not where it lies."""
    return Rect(Span(0, rect.rows.size), Span(0, rect.cols.size))


def cases(count):
    """Yield (graph, cuts, budget) of networks with two or three places to cut, or now and then four."""
    random = np.random.default_rng(7)
    for number in range(count):
        model, size = network(random)
        graph = with_tile_pools(from_onnx(model, *size))
        cuts = cut_points(graph)
        inner = sorted(random.permutation(np.arange(1, len(cuts) - 1))[: 3 if number % 10 == 0 else 2])
        store = str(random.choice(["redis", "s3", "redis+s3", "valkey+s3"], p=[0.5, 0.2, 0.1, 0.2]))
        facts = replace(FACTS, valkey=DEAR_BYTES, s3=NEAR_OBJECTS if random.random() < 0.3 else FACTS.s3)
        limit = PackageLimit(int(random.choice([10**9, 30_000])), 0)
        budget = Budget(limit, facts, MEMORY, store=store, cold_share=float(random.choice([0, 0.1])), profiles=PROFILES)
        yield graph, [cuts[0], *(cuts[at] for at in inner), cuts[-1]], budget


@pytest.fixture(scope="module", autouse=True)
def _little_rides_along():
    """Tiny networks have tiny maps: nearly all of them would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serfer.splitter.planning.stage_prices.INLINE_MOST", INLINE_MOST)
        yield


@pytest.fixture(scope="module", params=[A_FEW, pytest.param(CASES, marks=pytest.mark.weekly)])
def enumerated(request):
    """Every case with seconds and dollars of all of its chains."""
    priced = [(*case, *prices(*case)) for case in cases(request.param)]
    assert sum(len(seconds) for *_, seconds, _ in priced) > 2500 * request.param
    return priced


@pytest.fixture(scope="module", params=[pytest.param(CASES, marks=pytest.mark.slow)])
def cut_everywhere(request):
    """The cases with two stores and at most three stages, with seconds and dollars of all chains of that many."""
    chosen = [case for case in cases(request.param) if case[2].platform.objects and len(case[1]) <= 4]
    priced = [(*case, *prices(*case, everywhere=True)) for case in chosen]
    return [case for case in priced if len(case[3])]


def prices(graph, cuts, budget, **wanted):
    chains = [(np.zeros(0), np.zeros(0)), *Enumerated(graph, cuts, budget, **wanted).chains()]
    return map(np.concatenate, zip(*chains, strict=True))


def goals(seconds, usd):
    """The three objectives, and both bounds drawn between the extremes."""
    middle_s, middle_usd = (seconds.min() + seconds[usd.argmin()]) / 2, (usd.min() + usd[seconds.argmin()]) / 2
    bounded = (replace(COST, most_seconds=middle_s), replace(LATENCY, most_usd=middle_usd))
    return (LATENCY, COST, BALANCED, *bounded, replace(BALANCED, most_seconds=middle_s, most_usd=middle_usd))


def searched(graph, cuts, budget, grids=GRIDS, *, everywhere=False):
    return prepare(graph, cuts, GridChoice(options=grids), len(cuts) - 1 if everywhere else None, budget)


def gap(search, goal, seconds, usd):
    """Return how much worse than the best of all the search's chain is, relatively, inf for none; and that chain."""
    fitting = (seconds <= goal.most_seconds) & (usd <= goal.most_usd)
    best = goal.value(seconds[fitting], usd[fitting]).min(initial=np.inf)
    chain = search.best(goal)
    value = goal.value(chain.seconds, chain.usd) if chain else np.inf
    return 0.0 if value == best else value / best - 1, chain


def check_best(enumerated, **wanted):
    for graph, cuts, budget, seconds, usd in enumerated:
        search = searched(graph, cuts, budget, **wanted)
        for goal in goals(seconds, usd) if len(seconds) else (LATENCY,):
            assert abs(gap(search, goal, seconds, usd)[0]) < 1e-9


def test_search_returns_the_best_of_all_chains_for_every_goal(enumerated):
    check_best(enumerated)


def test_search_returns_the_best_chain_where_every_cut_is_taken(cut_everywhere):
    check_best(cut_everywhere, everywhere=True)


def test_every_data_path_is_the_best_for_some_boundary(cut_everywhere):
    chosen = Counter()
    for graph, cuts, budget, seconds, usd in cut_everywhere:
        search, near = searched(graph, cuts, budget, everywhere=True), budget.facts.s3 == NEAR_OBJECTS
        chains = [search.best(goal) for goal in goals(seconds, usd)]
        chosen.update((budget.store, near, choice.path) for chain in chains for choice in choices_of(chain)[:-1])
    assert min(chosen["valkey+s3", near, path] for near in (True, False) for path in (CACHE, INLINE, OBJECTS)) >= 3
    assert chosen["redis+s3", False, CACHE] >= 3
    assert chosen["redis+s3", False, OBJECTS] == 0, "where the first store charges for no byte, a detour only costs"


STARTING = (2e-4, 2e-2, 20.0)
"""Seconds of an invocation, from those with which several functions are worth it to those with which one is; a request
is dearer in the same way."""


def shares_left(cases, prepared):
    """Check that bounds leave out nothing that is the best; return the share of edges that they leave, by STARTING."""
    edges = {starting: [0, 0] for starting in STARTING}
    for (graph, cuts, budget), starting in product(cases, STARTING):
        functions = replace(budget.facts.functions, invoke_floor=starting, price_request=1e-5 * starting)
        within = replace(budget, facts=replace(budget.facts, functions=functions))
        every = prepared(graph, cuts, within, None)
        hull = [priced(chain) for chain in every.convex_hull]
        asked = goals(*np.array(hull).T) if hull else ()
        for group in (asked[:3], asked[3:]):  # without limits, and with them
            fewer = prepared(graph, cuts, within, group[0]) if group else every
            assert [priced(fewer.best(goal)) for goal in group] == [priced(every.best(goal)) for goal in group]
            assert [priced(chain) for chain in fewer.convex_hull] == hull
            edges[starting][0] += len([*every.edges])
            edges[starting][1] += len([*fewer.edges])
    return [left / of for of, left in edges.values()]


def priced(chain):
    return chain and (chain.seconds, chain.usd)


def test_bounds_leave_out_no_chain_that_is_the_best(enumerated):
    def prepared(graph, cuts, budget, goal):
        return prepare(graph, cuts, GridChoice(options=GRIDS), None, budget, goal=goal)

    left = shares_left([case[:3] for case in enumerated[::5]], prepared)
    assert left[0] > left[-1]


def test_the_supported_chains_are_on_the_frontier(enumerated):
    for graph, cuts, budget, seconds, usd in enumerated[:50]:
        for chain in prepare(graph, cuts, GridChoice(options=GRIDS), None, budget).convex_hull:
            beaten = (seconds < chain.seconds * (1 - 1e-9)) & (usd < chain.usd * (1 - 1e-9))
            assert not beaten.any()


def test_a_number_of_stages_is_kept(enumerated):
    for graph, cuts, budget, *_ in enumerated[:50]:
        for stages in range(1, len(cuts)):
            chain = prepare(graph, cuts, GridChoice(options=GRIDS), stages, budget).best(BALANCED)
            assert chain is None or len(choices_of(chain)) == stages
