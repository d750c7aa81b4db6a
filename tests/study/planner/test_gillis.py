"""Gillis's planner: its dynamic programme against every plan that there is, and a case priced by hand."""

from dataclasses import replace
from itertools import product
from math import ceil

import numpy as np
import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.geometry import Grid, Rect, Span
from serfer.core.plan import PackageLimit
from serfer.splitter.planning.ort_kernels import operator_work
from serfer.splitter.planning.split_options import Budget, memory_sizes
from serfer.splitter.tiling.cuts import weight_bytes
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer.splitter.tiling.grids import ONE
from serfer_bench.study.baselines.gillis import Gillis, Options, layers
from tests.bench.slow import slow_profiles
from tests.splitter.models import Net
from tests.study.planner.test_published_costs import every_plan

CASES = 15
MEMORY = (900, 3600)
GRIDS = (ONE, Grid(1, 2), Grid(2, 2), Grid(1, 2, columns=True))
PROFILES = slow_profiles(times=0.3, parallel=0.8)


def facts(**functions):
    aws = shipped_aws()
    return replace(aws, functions=replace(aws.functions, **functions))


def network(random):
    height, width, channels = *(int(side) for side in random.integers(8, 17, size=2)), 3
    size = height, width
    net, x = Net(channels, height, width, int(random.integers(1000))), "x"
    for _ in range(random.integers(1, 3)):
        after = int(random.integers(2, 9))
        x = net.op("Relu", net.conv(x, channels, after, [3, 3], pads=[1] * 4))
        channels = after
    x = net.linear(net.flat(x), channels * height * width, 12)
    if random.random() < 0.5:
        x = net.linear(net.op("Relu", x), 12, 8)
    return with_tile_pools(from_onnx(net.model(x), *size))


def planner(graph, room=10**9, options=None, **functions):
    budget = Budget(PackageLimit(room, 0), facts(**functions), memory_sizes(facts().functions), profiles=PROFILES)
    return Gillis(graph, budget, options or Options(GRIDS, MEMORY))


def brute_force(gillis):
    """Return seconds and dollars of the fastest plan, and of those the cheapest, over all memories of all functions."""
    plans = []
    for offers in every_plan(gillis.offers, gillis.positions[-1]):
        for row, master in enumerate(MEMORY):
            if sum(offer.held for offer in offers) > gillis.capacity(master):
                continue
            ns, usd = np.zeros(1, np.int64), np.zeros(1)
            for offer in offers:
                ns = np.add.outer(ns, offer.ns[row]).ravel()
                usd = np.add.outer(usd, offer.usd if len(offer.usd) else np.zeros(1)).ravel()
            best = np.lexsort((usd, ns))[0]
            plans.append(gillis.priced(master, int(ns[best]), float(usd[best])))
    return min(plans, key=lambda price: (round(price[0] * 1e9), price[1]))


@pytest.mark.weekly
def test_the_dynamic_programme_finds_the_best_of_all_plans():
    random = np.random.default_rng(3)
    masters, workers, tight = 0, 0, 0
    for _ in range(CASES):
        graph = network(random)
        most = weight_bytes(graph, 0, len(graph.nodes))
        room = int(most * random.choice([0.6, 1.0]))
        gillis = planner(graph, room, bandwidth=2e6, invoke_floor=2e-4, invoke_tail=1e-4)
        plan = gillis.best()
        if plan is None:
            continue
        assert (plan.seconds, plan.usd) == pytest.approx(brute_force(gillis), rel=1e-12)
        masters += sum(group.offer.here for group in plan.groups)
        workers += sum(group.worker_mb is not None for group in plan.groups)
        tight += room < most
    assert min(masters, workers, tight) > 4


def test_the_masters_memory_is_bounded_over_all_groups():
    random = np.random.default_rng(4)
    graph = network(random)
    most = weight_bytes(graph, 0, len(graph.nodes))
    plan = planner(graph, most - 1).best()
    assert sum(group.offer.held for group in plan.groups) < most
    assert any(group.worker_mb for group in plan.groups)
    assert [group.worker_mb for group in planner(graph, most).best().groups] == [None]


def test_given_groups_get_the_cheapest_memories_within_a_time():
    graph = network(np.random.default_rng(3))
    gillis = planner(graph, bandwidth=2e6, invoke_floor=2e-4, invoke_tail=1e-4)
    ends = gillis.positions
    groups = [(0, ends[1], GRIDS[1], True), (ends[1], ends[-1], ONE, False)]
    first, second = (
        next(offer for offer in gillis.offers if (offer.start, offer.stop, offer.grid, offer.here) == group)
        for group in groups
    )
    ways = []
    for (row, master), one, two in product(enumerate(MEMORY), range(2), range(2)):
        ns = int(first.ns[row, one] + second.ns[row, two])
        ways.append(gillis.priced(master, ns, float(first.usd[one] + second.usd[two])))
    for most in (min(seconds for seconds, _ in ways), float("inf")):
        plan = gillis.cheapest(groups, most)
        assert plan.usd == pytest.approx(min(usd for seconds, usd in ways if seconds <= most * (1 + 1e-9)))
        assert plan.seconds <= most * (1 + 1e-6)
    assert gillis.cheapest(groups, plan.seconds / 1e3) is None
    assert gillis.cheapest([(0, ends[-1], GRIDS[2], True)]) is None  # a linear layer has no rows


def chain():
    net = Net(3, 8, 8)
    x = net.conv("x", 3, 4, [3, 3], pads=[1] * 4)
    return with_tile_pools(from_onnx(net.model(net.linear(net.flat(x), 256, 10)), 8, 8))


def test_a_plan_on_the_master_alone_by_hand():
    gillis = planner(chain(), options=Options((ONE,), (1800,)))
    plan = gillis.best()
    compute = sum(int(group.offer.ns[0, 0]) for group in plan.groups) / 1e9
    moved = 3 * 64 + 4 * 10  # the image's bytes in, ten floats out
    billed = 4e-4 + compute + moved / 25e6 + moved * 4 / 3 / 75e6
    assert plan.seconds == pytest.approx(2.8e-4 + moved / 75e6 + 0.032 + billed)
    assert plan.usd == pytest.approx(0.20e-6 + 1800 / 1024 * ceil(billed * 1000) / 1000 * 0.0000166667)


def test_a_fork_by_hand():
    graph = chain()
    gillis = planner(graph, options=Options((ONE, Grid(1, 2)), (1800,)))
    forks = {offer.here: offer for offer in gillis.offers if (offer.start, offer.grid) == (0, Grid(1, 2))}
    read, written = 3 * 8 * 5, 4 * 4 * 8 * 4  # 4 columns and one of halo, a byte a value; 4 columns of 4 floats
    parts = [operator_work(graph, node, Rect(Span(0, 8), Span(0, 4))) for node in graph.nodes[: forks[True].stop]]
    serial, parallel = np.sum([PROFILES.parts(each) for each in parts if each], axis=0)
    compute = PROFILES.run_s + serial + parallel * 1769 / 1800
    worker = 4e-4 + compute + (read + written) * (1 / 25e6 + 4 / 3 / 75e6)
    one = 2.8e-4 + (read + written) / 25e6 + 0.032 + worker
    assert forks[True].ns[0, 0] / 1e9 == pytest.approx(one, abs=2e-9)
    both = 2 * 2.8e-4 + 2 * (read + written) / 25e6 + 0.027 + 0.005 * 1.5 + worker
    assert forks[False].ns[0, 0] / 1e9 == pytest.approx(both, abs=2e-9)
    assert forks[False].usd[0] == pytest.approx(2 * (0.20e-6 + 1800 / 1024 * ceil(worker * 1000) / 1000 * 1.66667e-5))
    assert (forks[True].held, forks[False].held) == (weight_bytes(graph, 0, forks[True].stop), 0)


def test_memory_bounds_parts_and_payloads_are_bounded():
    graph = chain()
    assert sum(weight.nbytes for weight in graph.weights.values()) < 2**20
    assert [bool(planner(graph, options=Options((ONE,), (mb,))).best()) for mb in (119, 200)] == [False, True]
    most = planner(graph).offers
    few = planner(graph, sync_payload_limit=1000).offers
    assert len(few) < len(most)
    assert all(offer.here for offer in few if offer.start == 0 and offer.grid == ONE and offer.stop < len(graph.nodes))


def test_layers_end_where_one_tensor_crosses_and_no_pointwise_operator_follows():
    net = Net(3, 8, 8)
    x = net.op("Relu", net.conv("x", 3, 4, [3, 3], pads=[1] * 4))
    y = net.op("Add", net.conv(x, 4, 4, [3, 3], pads=[1] * 4), x)
    graph = from_onnx(net.model(net.linear(net.flat(y), 256, 10)), 8, 8)
    ends = [cut.position for cut in layers(graph, Budget(PackageLimit(10**9, 0), facts(), (1769,)))]
    kinds = [node.kind for node in graph.nodes]
    assert kinds[:4] == ["Conv", "Relu", "Conv", "Add"]
    assert ends[:3] == [0, 2, 4]
