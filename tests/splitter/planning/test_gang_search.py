"""The search for gangs against an enumeration of every gang and every choice of exchanges, on small networks."""

from collections import Counter
from dataclasses import replace
from itertools import chain as joined
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from serfer.core.costs.cost_model import Exchange, GangEnds, StageLoad, Traffic, gang_price
from serfer.core.costs.vcpus import compute_seconds, vcpus
from serfer.core.geometry import Grid
from serfer.core.plan import CACHE, INLINE, OBJECTS, PackageLimit
from serfer.core.units import FLOAT_BYTES
from serfer.splitter.planning.gang_candidates import exchange_points
from serfer.splitter.planning.gang_chains import frontier
from serfer.splitter.planning.planner import gangs_of, prepare
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.cuts import cut_points
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.global_pooling import with_grid, with_tile_pools
from serfer.splitter.tiling.grids import ONE, GridChoice, tile_rects
from tests.splitter.models import Net
from tests.splitter.planning import test_search
from tests.splitter.planning.test_search import (
    DEAR_BYTES,
    FACTS,
    INLINE_MOST,
    PROFILES,
    Enumerated,
    common,
    gap,
    goals,
    shares_left,
    starts_usd,
)

STAGE_GRIDS = (ONE, Grid(2, 2))
GANG_GRIDS = (Grid(2, 1), Grid(2, 2))
MEMORY = (884, 3538)
CASES = (0, 2, 4, 6, 7)
"""Those with few chains, of every store and of one and two cuts; `make weekly` has all of the first 80."""
MORE_CASES = range(80)


@pytest.fixture(scope="module", autouse=True)
def _small_choices():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serfer.splitter.planning.stage_prices.INLINE_MOST", INLINE_MOST)
        patch.setattr("serfer.splitter.planning.gang_candidates.GRIDS", GANG_GRIDS)
        patch.setattr(test_search, "GRIDS", STAGE_GRIDS)
        yield


def network(random):
    """A convolution, one or two blocks with skips and perhaps squeeze-and-excite, pooling and a linear layer."""
    height, width, channels = int(random.integers(18, 32)), int(random.integers(18, 32)), int(random.integers(4, 9))
    net = Net(3, height, width, int(random.integers(1000)))
    x = net.op("Relu", net.conv("x", 3, channels, 3))
    for _ in range(random.integers(1, 3)):
        narrow = net.op("Relu", net.conv(x, channels, 3, 1))
        y = net.op("Relu", net.conv(narrow, 3, 3, 3))
        y = net.conv(y, 3, channels, 1)
        if random.random() < 0.3:
            y = net.op("Mul", y, net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", y), channels, channels, 1)))
        x = net.op("Relu", net.op("Add", y, x))
    pooled = net.op("GlobalAveragePool", x)
    return net.model(net.linear(net.flat(pooled), channels, 10)), (height, width)


class WithGangs(Enumerated):
    """Every chain of stages and gangs, the gangs with every choice of exchanges."""

    def __init__(self, graph, cuts, budget):
        super().__init__(graph, cuts, budget)
        self.points, self.known = exchange_points(graph), {}
        self.made = {node.output: index for index, node in enumerate(graph.nodes)}

    def chains(self, at=0, before=None, path=INLINE):
        yield from super().chains(at, before, path)
        single = [number for number, cut in enumerate(self.cuts) if len(cut.tensors) == 1]
        for to in (number for number in single if number > at and at in single):
            last = to == len(self.cuts) - 1
            for grid, tail, after in product(GANG_GRIDS, (False, True), [INLINE] if last else self.paths):
                for price in self.gangs(at, to, grid, tail, before, path, after):
                    for rest in self.chains(to, ONE if tail else grid, after):
                        yield tuple(
                            np.add.outer(mine, theirs).ravel() for mine, theirs in zip(price, rest, strict=True)
                        )

    def gangs(self, *key):
        if key not in self.known:
            self.known[key] = [*self._gangs(*key)]
        return self.known[key]

    def _gangs(self, at, to, grid, tail, before, come, go):
        left, right = self.cuts[at], self.cuts[to]
        inner = [cut for cut in self.points if left.position < cut.position < right.position]
        for few in joined.from_iterable(combinations(inner, count) for count in range(1, len(inner) + 1)):
            price = self.gang([left, *few, right], grid, tail, before, come, go)
            if price is not None:
                yield price

    def gang(self, cuts, grid, tail, before, come, go):  # noqa: PLR0911 - each is a gang that cannot be
        start, stop = cuts[0].position, cuts[-1].position
        made = {name for name, index in self.made.items() if index >= start}
        inside, store = 0.0, 0.0
        memory = np.array(self.budget.memory_mb, dtype=float)
        written = np.zeros(grid.tiles)
        for number, (left, right) in enumerate(pairwise(cuts)):
            last = right is cuts[-1]
            tiles = self.tiles(left, right, ONE if last and tail else grid)
            if tiles is None:
                return None
            graph, nodes, tiles = tiles
            needed = [name for name in left.tensors if name in tiles[0][1]]
            works = [self.compute(graph, nodes, regions, needed, outputs) for outputs, regions in tiles]
            granted = vcpus(memory, self.budget.facts.functions.memory_per_vcpu)[:, None]
            inside = inside + compute_seconds(*np.transpose(works)[:, None], granted).max(axis=1)
            if number == 0:
                reading = self.reading(graph, tiles, needed, before, come if start else INLINE, start)
                if reading is None:
                    return None
            else:
                exchange = self.exchange([regions for _, regions in tiles], needed, grid, made)
                if exchange is None:
                    return None
                seconds, usd = exchange.price(self.budget.platform)
                inside, store = inside + seconds, store + usd
            if last and tail and any(self.made[name] < left.position for name in right.tensors):
                return None
        for name in (name for name in cuts[-1].tensors if name in made):
            rects = tile_rects(with_grid(self.graph, grid), name, ONE if tail else grid)
            if not rects:
                return None
            channels = self.graph.shape(name).channels
            written[: len(rects)] += [FLOAT_BYTES * channels * rect.area for rect in rects]
        if go == INLINE and stop < len(self.graph.nodes) and written.sum() > INLINE_MOST:
            return None
        writing = self.moved(go, np.zeros(grid.tiles), np.zeros(grid.tiles), written)
        size = sum(
            self.graph.weights[name].nbytes
            for node in self.graph.nodes[start:stop]
            for name in self.graph.constants(node)
        )
        seconds, usd = gang_price(
            grid.tiles,
            inside + reading.reading_s + writing.writing_s,
            reading.carrying_s + writing.carrying_s,
            store + reading.usd + writing.usd,
            memory,
            self.budget.platform,
        )
        return seconds, usd + starts_usd(self.budget, grid.tiles, size, first=not start)

    def reading(self, graph, tiles, needed, before, come, start):
        read, ranges = [], []
        for _, regions in tiles:
            read.append(sum(graph.shape(name).channels * regions[name].area for name in needed))
            ranges.append(sum(self.pieces(name, regions[name], before) for name in needed) if start else 0)
        read = np.array(read) * (FLOAT_BYTES if start else 1.0)
        if start and come == INLINE and read.sum() > INLINE_MOST:
            return None
        return self.moved(come, read, np.array(ranges), np.zeros(len(tiles)))

    def moved(self, path, read, ranges, written):
        none, traffic = np.zeros(len(read)), Traffic(read, ranges, written)
        cache = traffic if path == CACHE else Traffic(none, none, none)
        carried = (read, written) if path == INLINE else (none, none)
        load = StageLoad(
            none,
            none,
            cache.bytes_read,
            cache.ranges,
            cache.bytes_written,
            *carried,
            objects=traffic if path == OBJECTS else None,
        )
        return GangEnds.of(load, self.budget.platform)

    def exchange(self, regions, needed, grid, made):
        """Return what crosses between tiles, from rectangles; None where it would come from before the gang."""
        sent, received, messages = np.zeros((3, grid.tiles))
        graph, pairs = with_grid(self.graph, grid), set()
        for name in needed:
            rects = tile_rects(graph, name, grid)
            pooled = name in made and graph.nodes[self.made[name]].kind == operators.TILE_POOL
            for reader, region in enumerate(regions):
                wanted = graph.shape(name).whole if pooled else region[name]
                if name not in made and not (len(regions) > 1 and rects and rects[reader].contains(wanted)):
                    return None
                for writer, rect in enumerate(rects):
                    size = graph.shape(name).channels * FLOAT_BYTES * common(rect, wanted)
                    if writer != reader and size and name in made:
                        sent[writer] += size
                        received[reader] += size
                        pairs.add((writer, reader))
        for writer, _ in pairs:
            messages[writer] += 1
        return Exchange(sent, received, messages)


def cases(numbers):
    random = np.random.default_rng(11)
    for number in range(max(numbers) + 1):
        model, size = network(random)
        graph = with_tile_pools(from_onnx(model, *size))
        cuts = cut_points(graph)
        inner = sorted(random.permutation(np.arange(1, len(cuts) - 1))[: number % 2 + 1])
        store = str(random.choice(["redis", "valkey", "valkey+s3"]))
        share = float(random.choice([0, 0.1]))
        facts = replace(FACTS, valkey=DEAR_BYTES)
        budget = Budget(PackageLimit(10**9, 0), facts, MEMORY, store=store, cold_share=share, profiles=PROFILES)
        if number in numbers:
            yield graph, [cuts[0], *(cuts[at] for at in inner), cuts[-1]], budget


@pytest.fixture(scope="module", params=[CASES, pytest.param(MORE_CASES, marks=pytest.mark.weekly)], ids=len)
def enumerated(request):
    """Every case with its search, and seconds and dollars of all of its chains."""
    priced = []
    for graph, cuts, budget in cases(request.param):
        search = prepare(graph, cuts, GridChoice(options=STAGE_GRIDS), None, budget, gang="auto")
        chains = [*WithGangs(graph, cuts, budget).chains()]
        priced.append((search, *map(np.concatenate, zip(*chains, strict=True))))
    return priced


def test_search_returns_the_best_of_all_chains_with_gangs(enumerated):
    chosen = Counter()
    for search, seconds, usd in enumerated:
        for goal in goals(seconds, usd):
            excess, chain = gap(search, goal, seconds, usd)
            assert abs(excess) < 1e-9
            chosen[bool(chain and gangs_of(chain))] += 1
    assert min(chosen.values()) > len(enumerated) // 2, chosen


def test_bounds_leave_out_no_gang_that_is_the_best():
    def prepared(graph, cuts, budget, goal):
        return prepare(graph, cuts, GridChoice(options=STAGE_GRIDS), None, budget, gang="auto", goal=goal)

    left = shares_left([*cases(CASES[:2])], prepared)
    assert left[0] > 2 * left[-1]


def test_the_frontier_keeps_what_nothing_beats_in_both():
    seconds, usd = np.array([[3.0, 1, 2, np.inf], [1, 1, 1, 1]]), np.array([[1.0, 3, 2, 0], [4, 3, 2, 5]])
    kept, fast, cheap = frontier(seconds, usd)
    assert kept[0].tolist() == [1, 2, 0]
    assert fast[0].tolist() == [1, 2, 3]
    assert cheap[0].tolist() == [3, 2, 1]
    assert kept[1, 0] == 2
    assert np.isinf(fast[1, 1:]).all()
