from dataclasses import replace
from itertools import combinations, product

import pytest

from serfer.core.cost import FLOAT_BYTES, Roofline, operator_seconds, task_seconds
from serfer.core.errors import ModelError, UsageError
from serfer.core.geometry import Grid, grid_rects
from splitter import operators
from splitter.cuts import Limits, choose, cut_points, weight_bytes
from splitter.grids import parse_grid, parse_grids
from splitter.ingest import from_onnx
from splitter.tiles import walk_back
from tests.splitter.models import FACTS, LIMITS, Net

ONE, TWO = Grid(1, 1), Grid(2, 2)
FAST_NET = replace(FACTS, invoke_latency=1e-4, bandwidth=1e9)


@pytest.fixture(scope="module")
def chain():
    net = Net(3, 40, 40)
    x = net.op("Relu", net.conv("x", 3, 16, [3, 3], pads=[1, 1, 1, 1]))
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Relu", net.conv(x, 16, 64, [5, 5], pads=[2, 2, 2, 2]))
    x = net.op("Relu", net.conv(x, 64, 8, [3, 3], pads=[1, 1, 1, 1]))
    return from_onnx(net.model(net.linear(net.flat(x), 3200, 50)), 40, 40)


def _predicted(graph, start, stop, grid, facts):
    """Predict a stage from the definition: the slowest tile; None where it cannot be tiled so."""
    nodes, roofline = graph.nodes[start:stop], Roofline()
    target, source = graph.shape(nodes[-1].output), graph.activations(nodes[0])[0]
    if grid != ONE:
        tiled = not target.flat and all(operators.tileable(graph, node) for node in nodes)
        if not tiled or target.height < grid.rows or target.width < grid.cols:
            return None
        walks = [
            walk_back(graph, nodes, nodes[-1].output, rect) for rect in grid_rects(target.height, target.width, grid)
        ]
    else:
        names = {name for node in nodes for name in (node.output, *graph.activations(node))}
        walks = [{name: graph.shape(name).whole for name in names}]

    def tile(regions):
        compute = 0.0
        for node in nodes:
            area = regions[node.output].area
            touched = FLOAT_BYTES * graph.shape(node.output).channels * area + weight_bytes(graph, [node])
            compute += operator_seconds(operators.macs(graph, node, area), touched, roofline)
        if grid == ONE:
            moved = graph.shape(source).elements + target.elements
        else:
            moved = (
                graph.shape(source).channels * regions[source].area + target.channels * regions[nodes[-1].output].area
            )
        return task_seconds(compute, FLOAT_BYTES * moved, 1769, facts)

    return max(tile(regions) for regions in walks)


KNOWN = {}


def predicted(graph, *what):
    if what not in KNOWN:
        KNOWN[what] = _predicted(graph, *what)
    return KNOWN[what]


def cheapest(graph, grids, stages, facts):
    """Try every chain of stages."""
    points, best = cut_points(graph), float("inf")
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
    choice = choose(chain, parse_grids("auto"), stages, LIMITS, facts)
    expected = cheapest(chain, parse_grids("auto").options, stages, facts)
    assert sum(stage.seconds for stage in choice) == pytest.approx(expected, rel=1e-9)
    assert len(choice) == stages
    assert [stage.start for stage in choice] == [0, *(stage.stop for stage in choice[:-1])]
    assert choice[-1].stop == len(chain.nodes)


def test_left_to_itself_the_number_of_stages_is_the_best_too(chain):
    best = min(cheapest(chain, parse_grids("auto").options, stages, FAST_NET) for stages in (1, 2, 3))
    choice = choose(chain, parse_grids("auto"), None, LIMITS, FAST_NET)
    assert sum(stage.seconds for stage in choice) == pytest.approx(best, rel=1e-9)


def test_where_invoking_costs_more_than_it_gains_nothing_is_split(chain):
    (stage,) = choose(chain, parse_grids("auto"), None, LIMITS, replace(FACTS, invoke_latency=10.0))
    assert stage.grid == ONE


@pytest.mark.parametrize("wanted", [("2x2", "1"), ("1x2", "3x3", "1"), ("1", "2x2", "1"), ("1", "1")])
def test_a_list_gives_every_stage_its_grid(chain, wanted):
    choice = choose(chain, parse_grids(list(wanted)), None, LIMITS, FACTS)
    assert [str(stage.grid) for stage in choice] == list(wanted)
    grids = [parse_grid(grid) for grid in wanted]
    points = cut_points(chain)
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
    choice = choose(chain, parse_grids(grid), stages, LIMITS, FACTS)
    flat = next(index for index, node in enumerate(chain.nodes) if node.kind == "Flatten")
    for stage in choice:
        assert str(stage.grid) == (grid if stage.stop <= flat else "1")
        assert stage.stop <= flat or stage.start >= flat


def test_a_grid_of_one_is_one_tile_everywhere(chain):
    assert {stage.grid for stage in choose(chain, parse_grids("1"), 3, LIMITS, FACTS)} == {ONE}


def test_an_activation_is_never_parted_from_its_operator(chain):
    points = cut_points(chain)
    assert points[0] == 0
    assert points[-1] == len(chain.nodes)
    assert all(chain.nodes[point].kind != "Relu" for point in points[:-1])


def test_residual_blocks_and_branches_are_never_cut_inside():
    net = Net(4, 12, 12)
    same = {"pads": [1, 1, 1, 1]}
    head = net.conv("x", 4, 4, [3, 3], **same)
    inner = net.conv(net.conv(head, 4, 4, [3, 3], **same), 4, 4, [3, 3], **same)
    joined = net.op("Add", inner, head)
    left, right = net.conv(joined, 4, 2, [3, 3], **same), net.conv(joined, 4, 3, [1, 1])
    both = net.op("Concat", left, right, axis=1)
    graph = from_onnx(net.model(net.flat(net.op("Relu", both))), 12, 12)
    kinds = [node.kind for node in graph.nodes]
    assert kinds == ["Conv", "Conv", "Conv", "Add", "Conv", "Conv", "Concat", "Relu", "Flatten"]
    assert cut_points(graph) == [0, 1, 4, 8, 9]


def test_more_stages_than_cuts_is_refused_with_the_most(chain):
    with pytest.raises(UsageError, match="into 6 stages at most, not 9"):
        choose(chain, parse_grids("auto"), 9, LIMITS, FACTS)


@pytest.mark.parametrize("stages", [0, -1, 17])
def test_a_number_of_stages_that_no_plan_has_is_refused(chain, stages):
    with pytest.raises(UsageError, match="between 1 and 16"):
        choose(chain, parse_grids("auto"), stages, LIMITS, FACTS)


def test_grids_that_contradict_the_number_of_stages_are_refused(chain):
    with pytest.raises(UsageError, match="2 grids do not fit 3 stages"):
        choose(chain, parse_grids(["2x2", "1"]), 3, LIMITS, FACTS)


def test_more_grids_than_any_plan_has_are_refused(chain):
    with pytest.raises(UsageError, match="17 grids"):
        choose(chain, parse_grids(["1"] * 17), None, LIMITS, FACTS)


def test_tiles_where_none_can_be_are_refused_by_name(chain):
    with pytest.raises(ModelError, match=r"grids 2x2,2x2 fits .* \(Flatten\) on, stages have one tile"):
        choose(chain, parse_grids(["2x2", "2x2"]), None, LIMITS, FACTS)


def test_an_operator_that_no_function_can_hold_is_named_with_its_bytes(chain):
    with pytest.raises(
        ModelError, match=r"\(Gemm\) cannot be deployed: .*640,200 bytes.*room for 600,000.*40,200 too few"
    ):
        choose(chain, parse_grids("auto"), None, Limits(1_000_000, 400_000, 1769), FACTS)


def test_stages_are_cut_where_the_package_limit_wants_it(chain):
    limit = Limits(1_041_000, 400_000, 1769)
    choice = choose(chain, parse_grids("1"), None, limit, replace(FACTS, invoke_latency=10.0))
    assert len(choice) == 2
    assert all(weight_bytes(chain, chain.nodes[stage.start : stage.stop]) <= limit.weight_bytes for stage in choice)


@pytest.mark.parametrize(
    "grid",
    ["", "0x2", "2x", "x2", "2X2", "100x1", "2x2x2", "two", (0, 1), (1, 100), (2,), (1.0, 2), 4, None, "-1"],
)
def test_what_is_no_grid_is_refused(grid):
    with pytest.raises(UsageError, match="is no grid"):
        parse_grids(grid)


@pytest.mark.parametrize(
    ("given", "options", "per_stage"),
    [
        ("2x2", [(2, 2)], []),
        ((1, 2), [(1, 2)], []),
        ("1", [(1, 1)], []),
        ("2x2, 1x3,1", None, [(2, 2), (1, 3), (1, 1)]),
        ([(2, 2), "1"], None, [(2, 2), (1, 1)]),
    ],
)
def test_grids_are_read_as_users_write_them(given, options, per_stage):
    choice = parse_grids(given)
    assert choice.per_stage == tuple(Grid(*grid) for grid in per_stage)
    if options:
        assert choice.options == tuple(Grid(*grid) for grid in options)
