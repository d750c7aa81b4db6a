from dataclasses import replace
from itertools import combinations, product

import pytest

from serfer.core.cost import FLOAT_BYTES, Roofline, operator_seconds, stage_seconds, task_seconds
from serfer.core.errors import ModelError, UsageError
from serfer.core.geometry import Grid
from serfer.core.plan import PackageLimit
from splitter import operators
from splitter.cuts import cut_points, weight_bytes
from splitter.fit import Wishes, fit
from splitter.grids import parse_grid, parse_grids
from splitter.ingest import from_onnx
from splitter.planner import Budget, Storage, choose, tile_rects
from splitter.tiles import tile_macs, walk_back, whole_regions
from tests.splitter.models import BUDGET, FACTS, LIMIT, Net

ONE = Grid(1, 1)
FAST_NET = replace(FACTS, invoke_latency=1e-4, bandwidth=1e9)


def budget(facts=FACTS, room=None):
    return Budget(LIMIT if room is None else PackageLimit(room + 400_000, 400_000), 1769, facts)


def best_chain(graph, grids, stages=None, given=BUDGET, storage=None):
    return choose(graph, cut_points(graph), parse_grids(grids), stages, given, storage)


@pytest.fixture(scope="module")
def chain():
    net = Net(3, 40, 40)
    x = net.op("Relu", net.conv("x", 3, 16, [3, 3], pads=[1, 1, 1, 1]))
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Relu", net.conv(x, 16, 64, [5, 5], pads=[2, 2, 2, 2]))
    x = net.op("Relu", net.conv(x, 64, 8, [3, 3], pads=[1, 1, 1, 1]))
    return from_onnx(net.model(net.linear(net.flat(x), 3200, 50)), 40, 40)


def _predicted(graph, start, stop, grid, facts):
    """Predict a stage from the definition: the slowest tile; None where it cannot be spread so."""
    nodes, roofline = graph.nodes[start:stop], Roofline()
    last, source = nodes[-1].output, graph.activations(nodes[0])[0]
    if grid != ONE:
        spreads = operators.by_columns if grid.columns else operators.tileable
        rects = tile_rects(graph, last, grid)
        if not rects or not all(spreads(graph, node) for node in nodes):
            return None
        walks = [walk_back(graph, nodes, {last: rect}) for rect in rects]
    else:
        names = {name for node in nodes for name in (node.output, *graph.activations(node))}
        walks = [{name: graph.shape(name).whole for name in names}]

    def tile(regions):
        compute = 0.0
        for index, node in enumerate(nodes, start):
            area, shape = regions[node.output].area, graph.shape(node.output)
            share = area / shape.elements if node.kind == "Gemm" else 1.0
            touched = FLOAT_BYTES * shape.channels * area + int(weight_bytes(graph, index, index + 1) * share)
            compute += operator_seconds(operators.macs(graph, node, area), touched, roofline)
        moved = sum(graph.shape(name).channels * regions[name].area for name in (source, last))
        return task_seconds(compute, FLOAT_BYTES * moved, 1769, facts)

    return stage_seconds(max(tile(regions) for regions in walks), grid.tiles)


KNOWN = {}


def predicted(graph, *what):
    if what not in KNOWN:
        KNOWN[what] = _predicted(graph, *what)
    return KNOWN[what]


def positions(graph):
    return [cut.position for cut in cut_points(graph)]


def cheapest(graph, grids, stages, facts):
    """Try every chain of stages."""
    points, best = positions(graph), float("inf")
    for inner in combinations(points[1:-1], stages - 1):
        ends = [0, *inner, points[-1]]
        for wanted in product(grids, repeat=stages):
            parts = [predicted(graph, *ends[k : k + 2], wanted[k], facts) for k in range(stages)]
            if None not in parts:
                best = min(best, sum(parts))
    return best


@pytest.mark.parametrize("facts", [FACTS, FAST_NET], ids=["lambda", "fast"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_the_choice_is_the_best_of_all_chains(chain, stages, facts):
    choice = best_chain(chain, "auto", stages, budget(facts))
    expected = cheapest(chain, parse_grids("auto").options, stages, facts)
    assert sum(stage.seconds for stage in choice) == pytest.approx(expected, rel=1e-9)
    assert len(choice) == stages
    assert [stage.start for stage in choice] == [0, *(stage.stop for stage in choice[:-1])]
    assert choice[-1].stop == len(chain.nodes)


def test_left_to_itself_the_number_of_stages_is_the_best_too(chain):
    best = min(cheapest(chain, parse_grids("auto").options, stages, FAST_NET) for stages in (1, 2, 3))
    choice = best_chain(chain, "auto", None, budget(FAST_NET))
    assert sum(stage.seconds for stage in choice) == pytest.approx(best, rel=1e-9)


def test_where_invoking_costs_more_than_it_gains_nothing_is_split(chain):
    (stage,) = best_chain(chain, "auto", None, budget(replace(FACTS, invoke_latency=10.0)))
    assert stage.grid == ONE


@pytest.mark.parametrize("wanted", [("2x2", "1"), ("1x2", "3x3", "1"), ("1", "2x2", "1"), ("1", "1")])
def test_a_list_gives_every_stage_its_grid(chain, wanted):
    choice = best_chain(chain, list(wanted))
    assert [str(stage.grid) for stage in choice] == list(wanted)
    grids = [parse_grid(grid) for grid in wanted]
    points = positions(chain)
    totals = []
    for inner in combinations(points[1:-1], len(grids) - 1):
        ends = [0, *inner, points[-1]]
        parts = [predicted(chain, *ends[k : k + 2], grid, FACTS) for k, grid in enumerate(grids)]
        if None not in parts:
            totals.append(sum(parts))
    assert sum(stage.seconds for stage in choice) == pytest.approx(min(totals), rel=1e-9)


@pytest.mark.parametrize("grid", ["2x2", "3x3", "1x4"])
@pytest.mark.parametrize("stages", [2, 3, 4, None])
def test_one_grid_for_all_tiles_whatever_can_be_tiled(chain, grid, stages):
    choice = best_chain(chain, grid, stages)
    flat = next(index for index, node in enumerate(chain.nodes) if node.kind == "Flatten")
    for stage in choice:
        assert str(stage.grid) == (grid if stage.stop <= flat else "1")
        assert stage.stop <= flat or stage.start >= flat


def test_a_grid_of_one_is_one_tile_everywhere(chain):
    assert {stage.grid for stage in best_chain(chain, "1", 3)} == {ONE}


def test_more_stages_than_cuts_is_refused_with_the_most(chain):
    with pytest.raises(UsageError, match="into 6 stages at most, not 9"):
        best_chain(chain, "auto", 9)


@pytest.mark.parametrize("stages", [0, -1, 17])
def test_a_number_of_stages_that_no_plan_has_is_refused(chain, stages):
    with pytest.raises(UsageError, match="between 1 and 16"):
        best_chain(chain, "auto", stages)


def test_grids_that_contradict_the_number_of_stages_are_refused(chain):
    with pytest.raises(UsageError, match="2 grids do not fit 3 stages"):
        best_chain(chain, ["2x2", "1"], 3)


def test_more_grids_than_any_plan_has_are_refused(chain):
    with pytest.raises(UsageError, match="17 grids"):
        best_chain(chain, ["1"] * 17)


def fitted(graph, grids="auto", room=None, stages=None, **wishes):
    return fit(graph, Wishes(parse_grids(grids), stages, **wishes), budget(room=room), None, lambda _: None)


def test_tiles_where_none_can_be_are_refused_by_name(chain):
    assert best_chain(chain, ["2x2", "2x2"]) is None
    with pytest.raises(ModelError, match=r"no chain of .* grids 2x2,2x2 .* \(Flatten\) on, stages have no tiles"):
        fitted(chain, ["2x2", "2x2"])


@pytest.mark.parametrize(
    ("precision", "room", "message"),
    [
        ("fp32", 40_000, r"640,200 bytes.*room for 40,000 \(440,000 less 400,000 .*, 600,200 too few"),
        ("auto", 20_000, r"320,200 bytes.*room for 20,000 .*, 300,200 too few"),
    ],
)
def test_an_operator_that_no_functions_can_hold_is_named_with_its_bytes(chain, precision, room, message):
    with pytest.raises(
        ModelError, match=rf"no cut divides, with operator 't\d+' \(Gemm\), cannot be deployed.*{message}"
    ):
        fitted(chain, "auto", room, precision=precision)


def test_where_every_stage_has_its_grid_the_one_that_is_too_large_is_named(chain):
    with pytest.raises(ModelError, match=r"stage 1 of 2, with operator .* \(Gemm\), cannot .*room for 600,000"):
        fitted(chain, ["2x2", "1"], 600_000, precision="fp32")


@pytest.mark.parametrize("grid", ["1", "2x2", "col2"])
def test_a_head_that_is_too_large_is_spread_by_columns_whichever_grid_was_asked_for(chain, grid):
    decision = fitted(chain, grid, 600_000, precision="fp32")
    assert decision.choices[-1].grid.columns
    assert decision.changes == ()
    assert not any(choice.grid.columns for choice in decision.choices[:-1])


def test_stages_are_cut_where_the_package_limit_wants_it(chain):
    tight = budget(replace(FACTS, invoke_latency=10.0), room=641_000)
    choice = best_chain(chain, "1", None, tight)
    assert len(choice) == 2
    assert all(weight_bytes(chain, stage.start, stage.stop) <= tight.limit.room for stage in choice)


@pytest.mark.parametrize("room", [640_200, 640_199])
def test_a_layer_goes_to_several_functions_only_where_one_cannot_hold_it(chain, room):
    tight = budget(room=room)
    for storage in (None, Storage(), Storage(spread=True)):
        choice = best_chain(chain, ["2x2", "1", "col2"], None, tight, storage)
        assert (choice is None) == (room < 640_200 and (storage is None or not storage.spread))


def test_storing_in_fp16_is_chosen_for_the_stages_that_need_it_alone(chain):
    names = frozenset(name for name, value in chain.weights.items() if value.nbytes > 1024)
    choice = best_chain(chain, "1", None, budget(room=400_000), Storage(names))
    assert [stage.half for stage in choice] == [stage.stop == len(chain.nodes) for stage in choice]
    for stage in choice:
        stored = weight_bytes(chain, stage.start, stage.stop, names if stage.half else ())
        assert stored <= 400_000
    everywhere = best_chain(chain, "1", None, budget(room=400_000), Storage(names, always=True))
    assert all(stage.half for stage in everywhere)


def test_columns_end_where_vectors_begin(chain):
    flat = next(index for index, node in enumerate(chain.nodes) if node.kind == "Flatten")
    choice = best_chain(chain, "col4")
    assert [str(stage.grid) for stage in choice][-1] == "col4"
    assert all(str(stage.grid) == ("col4" if stage.start >= flat else "1") for stage in choice)


def work(graph, choices):
    """Count the multiply-accumulates of all tiles from the definition."""
    total = 0
    for stage in choices:
        nodes = graph.nodes[stage.start : stage.stop]
        for rect in tile_rects(graph, nodes[-1].output, stage.grid):
            whole = stage.grid == ONE
            regions = whole_regions(graph, nodes) if whole else walk_back(graph, nodes, {nodes[-1].output: rect})
            total += tile_macs(graph, nodes, regions)
    return total


def test_work_counts_before_time_where_it_is_asked_for(chain):
    cuts, quick = cut_points(chain), replace(budget(replace(FACTS, invoke_latency=1e-9, bandwidth=1e15)), memory_mb=128)
    least = choose(chain, cuts, parse_grids("auto"), 2, quick, least_work=True)
    fast = choose(chain, cuts, parse_grids("auto"), 2, quick)
    assert work(chain, least) == sum(operators.macs(chain, n, chain.shape(n.output).whole.area) for n in chain.nodes)
    assert work(chain, fast) > work(chain, least)
    assert sum(stage.seconds for stage in fast) < sum(stage.seconds for stage in least)


@pytest.mark.parametrize(
    ("size", "grid", "sizes"),
    [
        ((1, 10), Grid(1, 4, columns=True), [(1, 3), (1, 3), (1, 2), (1, 2)]),
        ((1, 3), Grid(1, 4, columns=True), []),
        ((7, 5), Grid(2, 2), [(4, 3), (4, 2), (3, 3), (3, 2)]),
        ((1, 5), Grid(2, 2), []),
        ((5, 5), Grid(1, 2, columns=True), []),
        ((5, 5), ONE, [(5, 5)]),
    ],
)
def test_a_grid_cuts_what_it_fits(size, grid, sizes):
    net = Net(2, *size)
    x = net.op("Relu", "x")
    graph = from_onnx(net.model(net.linear(net.flat(x), 2 * size[0] * size[1], size[1])), *size)
    tensor = graph.output if grid.columns and size[0] == 1 else x
    rects = tile_rects(graph, tensor, grid)
    assert [(rect.rows.size, rect.cols.size) for rect in rects] == sizes
