import logging
from dataclasses import replace

import pytest

from serfer.core.errors import ModelError, UsageError
from serfer.core.geometry import Grid
from serfer.core.plan import PackageLimit
from serfer.splitter import build, package_fit
from serfer.splitter.package_fit import fit
from serfer.splitter.planning import bounds, gang_chains
from serfer.splitter.planning.limits import WeightStorage, memory_needed
from serfer.splitter.planning.planner import prepare
from serfer.splitter.planning.search import BALANCED, COST, LATENCY
from serfer.splitter.planning.split_options import Budget, SplitOptions
from serfer.splitter.split import split
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.cuts import cut_points, weight_bytes
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.grids import parse_grids, tile_rects
from serfer.splitter.tiling.regions import infer_regions, tile_macs, whole_regions
from tests.splitter.models import BUDGET, FACTS, LIMIT, Net, choose, plan_error

ONE = Grid(1, 1)


def budget(facts=FACTS, room=None):
    return Budget(LIMIT if room is None else PackageLimit(room + 400_000, 400_000), facts, (1769,))


def best_chain(graph, grids, stages=None, given=BUDGET, storage=None):
    return choose(graph, cut_points(graph), parse_grids(grids), stages, given, storage)


def chain_model():
    net = Net(3, 40, 40)
    x = net.op("Relu", net.conv("x", 3, 16, 3))
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Relu", net.conv(x, 16, 64, 5))
    x = net.op("Relu", net.conv(x, 64, 8, 3))
    return net.model(net.linear(net.flat(x), 3200, 50)), (40, 40)


@pytest.fixture(scope="module")
def chain():
    model, size = chain_model()
    return from_onnx(model, *size)


@pytest.mark.parametrize("wanted", [("2x2", "1"), ("1x2", "3x3", "1"), ("1", "2x2", "1"), ("1", "1")])
def test_a_list_gives_every_stage_its_grid(chain, wanted):
    choice = best_chain(chain, list(wanted))
    assert [str(stage.grid) for stage in choice] == list(wanted)
    assert [stage.start for stage in choice] == [0, *(stage.stop for stage in choice[:-1])]
    assert choice[-1].stop == len(chain.nodes)


@pytest.mark.parametrize("grid", ["1", "2x2", "3x3", "1x4"])
@pytest.mark.parametrize("stages", [2, 3, 4, None])
def test_one_grid_for_all_stages_tiles_every_stage_that_can_be_tiled(chain, grid, stages):
    choice = best_chain(chain, grid, stages)
    flat = next(index for index, node in enumerate(chain.nodes) if node.kind == "Flatten")
    for stage in choice:
        assert str(stage.grid) == (grid if stage.stop <= flat else "1")
        assert grid == "1" or stage.stop <= flat or stage.start >= flat


@pytest.mark.parametrize(
    ("grids", "stages", "words"),
    [
        *(("auto", stages, "between 1 and 16") for stages in (0, -1, 17)),
        ("auto", 9, "into 6 stages at most, not 9"),
        (["2x2", "1"], 3, "2 grids do not fit 3 stages"),
        (["1"] * 17, None, "17 grids"),
    ],
)
def test_impossible_number_of_stages_is_refused(chain, grids, stages, words):
    with pytest.raises(UsageError, match=words):
        best_chain(chain, grids, stages)


def fitted(graph, grids="auto", room=None, stages=None, **options):
    return fit(graph, SplitOptions(grids=grids, stages=stages, **options), budget(room=room), None, lambda _: None)


@pytest.mark.parametrize(
    ("grids", "precision", "room", "message"),
    [
        ("auto", "fp32", 40_000, r"no cut divides, .* \(Gemm\), .*room for 40,000 \(440,000 less .*, 600,200 too few"),
        ("auto", "auto", 20_000, r"no cut divides, .* \(Gemm\), .*320,200 bytes.*room for 20,000 .*, 300,200 too few"),
        (["2x2", "1"], "fp32", 600_000, r"stage 1 of 2, with operator .* \(Gemm\), cannot .*room for 600,000"),
        (["2x2", "2x2"], "auto", None, r"2x2,2x2 .*\(Flatten\).*no tiles"),
    ],
)
def test_stages_that_cannot_be_are_refused_by_operator_with_their_bytes(chain, grids, precision, room, message):
    with pytest.raises(ModelError, match=message):
        fitted(chain, grids, room, precision=precision, weights="zip")


@pytest.mark.parametrize("grid", ["1", "2x2", "col2"])
def test_a_head_that_is_too_large_is_spread_by_columns_for_any_requested_grid(chain, grid):
    decision = fitted(chain, grid, 600_000, precision="fp32", weights="zip")
    assert decision.choices[-1].grid.columns
    assert decision.changes == ()
    assert not any(choice.grid.columns for choice in decision.choices[:-1])


@pytest.mark.parametrize("room", [640_200, 640_199])
def test_a_layer_goes_to_several_functions_only_where_one_cannot_hold_it(chain, room):
    tight = budget(room=room)
    for storage in (None, WeightStorage(), WeightStorage(spread=True)):
        choice = best_chain(chain, ["2x2", "1", "col2"], None, tight, storage)
        assert (choice is None) == (room < 640_200 and (storage is None or not storage.spread))


def test_storing_in_fp16_is_chosen_for_the_stages_that_need_it_alone(chain):
    names = frozenset(name for name, value in chain.weights.items() if value.nbytes > 1024)
    choice = best_chain(chain, "1", None, budget(room=400_000), WeightStorage(names))
    assert [stage.half for stage in choice] == [stage.stop == len(chain.nodes) for stage in choice]
    for stage in choice:
        stored = weight_bytes(chain, stage.start, stage.stop, names if stage.half else ())
        assert stored <= 400_000
    everywhere = best_chain(chain, "1", None, budget(room=400_000), WeightStorage(names, always=True))
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
            wanted = [{nodes[-1].output: rect}]
            regions = whole_regions(graph, nodes) if stage.grid == ONE else infer_regions(graph, nodes, wanted)[0]
            total += tile_macs(graph, nodes, regions)
    return total


def test_the_work_objective_minimises_work_before_time(chain):
    fast_net = replace(FACTS, functions=replace(FACTS.functions, invoke_floor=1e-9, invoke_tail=1e-9, bandwidth=1e15))
    cuts, quick = cut_points(chain), replace(budget(fast_net), memory_mb=(128,))
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
def test_a_grid_spreads_every_map_that_it_fits(size, grid, sizes):
    net = Net(2, *size)
    x = net.op("Relu", "x")
    graph = net.graph(net.linear(net.flat(x), 2 * size[0] * size[1], size[1]))
    tensor = graph.output if grid.columns and size[0] == 1 else x
    rects = tile_rects(graph, tensor, grid)
    assert [(rect.rows.size, rect.cols.size) for rect in rects] == sizes


def test_stages_that_need_more_memory_than_others_are_planned_beside_them(chain):
    """What does not hold a stage is left out for it alone: such stages have fewer memories to choose from."""
    stops = [cut.position for cut in cut_points(chain)[1:]]
    needs = [memory_needed(chain, 0, stop, weight_bytes(chain, 0, stop)) for stop in stops]
    assert min(needs) < max(needs)
    both = replace(budget(), memory_mb=(min(needs), max(needs)))
    for goal in (LATENCY, COST, BALANCED):
        best = prepare(chain, cut_points(chain), parse_grids("auto"), None, both).best(goal)
        assert best is not None


PLANNING = logging.getLogger("serfer.splitter.planning.optional")


@pytest.fixture
def survived(monkeypatch, caplog):
    monkeypatch.setattr(PLANNING, "handlers", [])
    return caplog


def a_bug(*_arguments, **_options):
    raise ValueError("could not broadcast\nshapes")


@pytest.mark.parametrize(
    ("module", "name", "part"),
    [
        (gang_chains.GangChains, "works", "the search for gangs"),
        (gang_chains.GangStages, "add_tail", "the search for gangs"),
        (bounds.StepBounds, "stages", "a bound of the search"),
        (package_fit, "list_alternatives", "the list of alternatives"),
        (package_fit, "explain_choice", "the explanation"),
        (package_fit, "_deployment_options", "the list of deployments"),
        (build, "cold_offer", "the choice of a cold plan"),
    ],
)
def test_a_bug_in_an_optional_part_costs_a_line_in_the_log_and_not_the_plan(
    tmp_path, monkeypatch, survived, module, name, part
):
    net = Net(3, 24, 20)
    x = net.conv("x", 3, 4, 3)
    x = net.conv(x, 4, 4, 3)
    output = net.linear(net.flat(net.op("GlobalAveragePool", x)), 4, 5)
    path = net.save(tmp_path, output)
    monkeypatch.setattr(module, name, a_bug)
    gang = "always" if module in (gang_chains.GangChains, gang_chains.GangStages) else "auto"
    plan = split(path, out=tmp_path / "plan", gang=gang)
    assert plan_error(net, output, plan, tmp_path / "plan") < 1e-6
    (line,) = {record.getMessage() for record in survived.records if record.levelno == logging.ERROR}
    said = f"a bug in SerFer, please report it: {part} failed and the plan does without (ValueError in "
    assert (line.startswith(said), line.endswith(": could not broadcast shapes)")) == (True, True)


@pytest.mark.parametrize(("name", "error"), [("list_alternatives", ModelError), ("choices_of", ValueError)])
def test_refusals_and_bugs_elsewhere_are_not_told_as_bugs_of_a_part_that_a_plan_can_do_without(
    tmp_path, monkeypatch, survived, name, error
):
    def fail(*_arguments, **_options):
        raise error("no head")

    monkeypatch.setattr(package_fit, name, fail)
    net = Net(3, 8, 8)
    with pytest.raises(error, match="no head"):
        split(net.save(tmp_path, net.linear(net.flat("x"), 192, 5)), out=tmp_path / "plan")
    assert not survived.records
