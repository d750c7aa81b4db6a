"""Split equals unsplit for any small network, cut wherever it can be cut, through worker and store."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings

from serfer.core.checksum import verified
from serfer.core.errors import ModelError, PlanWarning
from serfer.core.exactness import difference
from serfer.core.geometry import Rect, Span, even_parts
from serfer.core.keys import output_key
from serfer.core.wire import Crop, Membership, Task
from serfer.lambdas.worker import Worker
from serfer.plan_directory import load_plan
from serfer.splitter.network.source import Source
from serfer.splitter.plan_dir.assemble import assemble
from serfer.splitter.planning.planner import Choice, Decision
from serfer.splitter.planning.stage_costs import StageEnumerator
from serfer.splitter.tiling.cuts import all_cuts
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer.splitter.tiling.grids import ONE, parse_grid, tile_rects
from serfer.storage.memory import MemoryStore
from tests.splitter.models import BUDGET, Net, unsplit, worst_error
from tests.splitter.random_networks import CLASSES, wanted, wanted_dense

EXACT = 1e-5
PATIENCE_S = 30.0
MOST_TILES = 64
QUERY = "0123456789abcdef" * 2
USUAL = settings(
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
DRAWN = settings(USUAL, derandomize=False)
"""By the seed that the run prints: `make slow` gives the day's."""


def read(wish):
    """Return the network's graph; ONNX's optimizer takes most of an example's time, so most go without."""
    model = wish.net.model(wish.output, dims=wish.dims)
    if wish.optimise:
        return model, from_onnx(model, *wish.net.size[1:])
    with patch("onnxscript.optimizer.optimize_ir"):
        return model, from_onnx(model, *wish.net.size[1:])


def decide(wish, graph):
    """Choose stages between the wished cuts: each has the first wished grid, from its own on, on which it can be."""
    pooled = with_tile_pools(graph)
    every = all_cuts(pooled)
    wished = {place * (len(every) - 1) // 99 for place in wish.cuts}
    trunk = {index for index, cut in enumerate(every) if cut.tensors == (wish.trunk,)}
    chosen = [every[index] for index in sorted({0, len(every) - 1} | wished | trunk)]
    stages = StageEnumerator(pooled, chosen, BUDGET.profiles)
    known = {}

    def spread(grid, ends):
        if grid not in known:
            known[grid] = {(work.start, work.stop) for work in stages.tiled(grid)}
        return ends in known[grid]

    choices = []
    for number, (left, right) in enumerate(pairwise(chosen)):
        order = [parse_grid(grid) for grid in (*wish.grids[number:], *wish.grids[:number])]
        ends = left.position, right.position
        grid = next((grid for grid in order if spread(grid, ends)), ONE)
        choices.append(Choice(*ends, grid, 1769, 0.0, 0.0, path="inline" if right is chosen[-1] else "cache"))
        wish.story.append(f"stage {pooled.nodes[ends[0]].name} to {pooled.nodes[ends[1] - 1].name} on {grid}")
    return Decision(pooled, chosen, choices)


def uneven(seed):
    """Return what cuts maps into a grid's rectangles of random sizes; with seed 0, into even ones."""

    def parts(random, size, count):
        if seed == 0:
            return even_parts(size, count)
        marks = [0, *sorted(random.choice(np.arange(1, size), count - 1, replace=False).tolist()), size]
        return [Span(start, stop) for start, stop in pairwise(marks)]

    def rects(graph, tensor, grid):
        shape = graph.shape(tensor)
        even = tile_rects(graph, tensor, grid)
        if grid == ONE or not even or shape.whole.area == grid.tiles:
            return even
        random = np.random.default_rng([seed, len(tensor), shape.height, shape.width])
        rows, cols = parts(random, shape.height, grid.rows), parts(random, shape.width, grid.cols)
        return [Rect(row, col) for row in rows for col in cols]

    return rects


def some_gangs(decision, seed):
    """Return the decision with some of the runs of its stages that can be one as gangs."""
    random = np.random.default_rng([seed, len(decision.choices)])
    tiles = [choice.grid.tiles for choice in decision.choices]
    gangs, start = [], 0
    while start < len(tiles) - 1:
        longest = next((stop for stop in range(start, len(tiles)) if tiles[stop] > tiles[start]), len(tiles))
        stop = int(random.integers(start + 1, longest + 1))
        if stop > start + 1:
            gangs.append(range(start, stop))
        start = stop
    return replace(decision, gangs=tuple(gangs))


def answers(directory, batch, *, gangs=False):
    """Run a plan's tasks one after the other, or its `gangs` as such, over a store in memory."""
    plan = load_plan(directory)
    worker = Worker(plan, directory, MemoryStore(), "here", threads=1, init_ms=0.0)
    result = np.empty(plan.output.of(plan.output.whole, len(batch)), np.float32)

    def run(number, index, gang):
        last = plan.stages[gang.stop - 1 if gang else number]
        crop = None
        if number == 0:
            part = np.ascontiguousarray(batch[:, :, *plan.stages[0].tiles[index].inputs[0].slices])
            crop = Crop("float32", part.tobytes())
        membership = Membership(gang.stop, PATIENCE_S) if gang else None
        inline = last is plan.stages[-1]
        task = Task(plan.digest, QUERY, number, index, len(batch), 60.0, crop, inline, gang=membership)
        report = worker.run(task)
        *_, output = [each.output for each in (report, *report.later)]
        if inline and output is not None:
            part = result[plan.output.slices(last.tiles[index].outputs[0])]
            checked = verified(output, output_key(QUERY, len(plan.stages) - 1, index))
            part[...] = np.frombuffer(checked, "<f4").reshape(part.shape)

    with ThreadPoolExecutor(MOST_TILES) as threads:
        for number in sorted({stage for stage, _ in plan.functions}) if gangs else range(len(plan.stages)):
            gang = plan.gang_of(number) if gangs else None
            tiles = range(len(plan.stages[number].tiles))
            [*threads.map(run, [number] * len(tiles), tiles, [gang] * len(tiles))]
    return result


def check(wish):
    compare(*both_answers(wish))


def both_answers(wish):
    model, graph = read(wish)
    decision = some_gangs(decide(wish, graph), wish.seed)
    note(repr(wish))
    batch = wish.net.batch_of(2)
    expected = unsplit(model, batch)
    source = Source("net", "random", model, lambda images: unsplit(model, images))
    with tempfile.TemporaryDirectory() as directory:
        with patch("serfer.splitter.plan_dir.assemble.tile_rects", uneven(wish.seed)):
            assemble(decision, source, graph, BUDGET, Path(directory), lambda _: None)
        answer = answers(Path(directory), batch)
        if decision.gangs:
            assert answers(Path(directory), batch, gangs=True).tobytes() == answer.tobytes()
    return answer, expected


def compare(answer, expected):
    deviation = difference(answer, expected)
    assert deviation.same_top
    if np.ptp(expected) > 1e-3 * np.abs(expected).max():  # otherwise its range is all rounding
        assert deviation.error <= EXACT


@pytest.mark.exact
@settings(USUAL, max_examples=30)
@given(wanted())
def test_any_split_network_equals_the_unsplit_one(wish):
    check(wish)


@pytest.mark.exact
@pytest.mark.slow
@settings(DRAWN, max_examples=100)  # weekly twenty times as many, and those below
@given(wanted())
def test_a_hundred_split_networks_equal_the_unsplit_ones(wish):
    check(wish)


@pytest.mark.exact
@pytest.mark.weekly
@settings(USUAL, max_examples=4000)
@given(wanted())
def test_thousands_of_split_networks_equal_the_unsplit_ones(wish):
    check(wish)


def check_dense(wish):
    """Compare scores, and the best class wherever the best two differ by more than is allowed."""
    answer, expected = (each.reshape(len(each), CLASSES + 1, -1) for each in both_answers(wish))
    scores = expected[:, :CLASSES]
    compare(answer[:, :CLASSES].reshape(len(answer), -1), scores.reshape(len(answer), -1))
    second, best = np.sort(scores, axis=1)[:, -2:].swapaxes(0, 1)
    clear = best - second > EXACT * max(np.ptp(scores), 1e-3 * np.abs(scores).max())
    assert (answer[:, CLASSES] == expected[:, CLASSES])[clear].all()


@pytest.mark.exact
@settings(USUAL, max_examples=6)
@given(wanted_dense())
def test_any_split_dense_network_equals_the_unsplit_one(wish):
    check_dense(wish)


@pytest.mark.exact
@pytest.mark.slow
@settings(DRAWN, max_examples=50)  # weekly twenty times as many, and those below
@given(wanted_dense())
def test_fifty_split_dense_networks_equal_the_unsplit_ones(wish):
    check_dense(wish)


@pytest.mark.exact
@pytest.mark.weekly
@settings(USUAL, max_examples=2000)
@given(wanted_dense())
def test_thousands_of_split_dense_networks_equal_the_unsplit_ones(wish):
    check_dense(wish)


@pytest.mark.exact
def test_a_map_too_small_for_the_grid_is_refused_or_left_in_one_tile(tmp_path):
    net = Net(1, 2, 9)
    model = net.model(net.flat(net.conv("x", 1, 1, [1, 3])))
    with pytest.warns(PlanWarning, match="3x3: the largest map .* 2 x 7"):
        assert worst_error(model, net.batch_of(2), tmp_path / "one", (3, 3)) <= 1e-6
    with pytest.raises(ModelError):
        worst_error(model, net.batch_of(2), tmp_path / "two", [(3, 3), (1, 1)])
