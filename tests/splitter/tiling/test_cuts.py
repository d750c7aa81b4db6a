import pytest

from serfer.core.errors import UsageError
from serfer.core.geometry import Grid
from serfer.splitter.tiling.cuts import MOST_TENSORS, all_cuts, cut_points, cuts_after, weight_bytes
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer.splitter.tiling.grids import parse_grid, parse_grids
from tests.splitter.models import Net


def positions(cuts):
    return [cut.position for cut in cuts]


@pytest.fixture(scope="module")
def blocks():
    """A residual block, then two branches that are joined."""
    net = Net(4, 12, 12)
    head = net.conv("x", 4, 4, 3)
    inner = net.conv(net.conv(head, 4, 4, 3), 4, 4, 3)
    joined = net.op("Add", inner, head)
    left, right = net.conv(joined, 4, 2, 3), net.conv(joined, 4, 3, 1)
    both = net.op("Concat", left, right, axis=1)
    graph = net.graph(net.flat(net.op("Relu", both)))
    kinds = [node.kind for node in graph.nodes]
    assert kinds == ["Conv", "Conv", "Conv", "Add", "Conv", "Conv", "Concat", "Relu", "Flatten"]
    return graph


def test_an_activation_is_never_separated_from_its_operator():
    net = Net(3, 20, 20)
    x = net.op("Relu", net.conv("x", 3, 4, 3))
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Relu", net.conv(x, 4, 4, 3))
    graph = net.graph(net.linear(net.flat(x), 400, 5))
    points = positions(cut_points(graph))
    assert points[0] == 0
    assert points[-1] == len(graph.nodes)
    assert all(graph.nodes[point].kind != "Relu" for point in points[:-1])


def test_residual_blocks_and_branches_are_not_cut_where_that_moves_more_bytes(blocks):
    assert positions(cut_points(blocks)) == [0, 1, 4, 8, 9]
    assert {len(cut.tensors) for cut in cut_points(blocks)} == {1}


def test_every_cut_lists_the_tensors_computed_before_and_read_after_it(blocks):
    cuts = all_cuts(blocks)
    assert positions(cuts) == list(range(10))
    made = {node.output: index for index, node in enumerate(blocks.nodes)}
    for cut in cuts[1:-1]:
        read = {name for node in blocks.nodes[cut.position :] for name in blocks.activations(node)}
        assert set(cut.tensors) == {name for name in read if made[name] < cut.position}
        assert [made[name] for name in cut.tensors] == sorted(made[name] for name in cut.tensors)
    assert [len(cut.tensors) for cut in cuts] == [1, 1, 2, 2, 1, 2, 2, 1, 1, 1]


def test_the_image_never_crosses_a_cut():
    net = Net(3, 9, 9)
    inner = net.conv(net.conv("x", 3, 3, 3), 3, 3, 3)
    joined = net.op("Add", inner, "x")
    graph = net.graph(net.flat(net.conv(joined, 3, 2, [3, 3])))
    assert positions(all_cuts(graph)) == [0, 3, 4, 5]
    with pytest.raises(UsageError, match=rf"'{inner}'.*nearest .*'{joined}'"):
        cuts_after(graph, [inner])


def test_no_cut_has_more_tensors_than_the_most():
    net = Net(3, 9, 9)
    x = net.conv("x", 3, 2, 3)
    parts = [net.conv(x, 2, 2, 3) for _ in range(6)]
    graph = net.graph(net.flat(net.op("Concat", *parts, axis=1)))
    cuts = all_cuts(graph)
    assert max(len(cut.tensors) for cut in cuts) == MOST_TENSORS == 4
    assert positions(cuts) == [0, 1, 2, 3, 4, 8, 9]
    assert cuts_after(graph, [parts[2]])[1].tensors == (x, *parts[:3])
    with pytest.raises(UsageError, match=f"'{parts[3]}': .* more than 4 tensors"):
        cuts_after(graph, [parts[3]])


def test_cuts_fall_after_the_operators_that_are_named_in_the_networks_order(blocks):
    names = [node.name for node in blocks.nodes]
    cuts = cuts_after(blocks, [names[4], names[1], names[4]])
    assert positions(cuts) == [0, 2, 5, 9]
    assert [len(cut.tensors) for cut in cuts] == [1, 2, 2, 1]
    assert positions(cuts_after(blocks, [])) == [0, 9]
    with pytest.raises(UsageError, match="no operator 'nonsense'"):
        cuts_after(blocks, [names[0], "nonsense"])
    with pytest.raises(UsageError, match=f"'{names[-1]}' is .* last operator"):
        cuts_after(blocks, [names[-1]])


def test_a_cut_may_have_several_tensors_smaller_than_the_maps_beside_them():
    net = Net(3, 16, 16)
    x = net.conv("x", 3, 4, 3)
    narrow = [net.op("MaxPool", x, kernel_shape=[4, 4], strides=[4, 4]), net.conv(x, 4, 1, [4, 4], strides=[4, 4])]
    wide = [net.conv(narrow[0], 4, 40, 1), net.conv(narrow[1], 1, 40, 1)]
    graph = net.graph(net.flat(net.op("Add", *wide)))
    inner = [cut for cut in cut_points(graph) if len(cut.tensors) > 1]
    assert [cut.tensors for cut in inner] == [tuple(narrow)]


def test_cuts_of_several_tensors_are_considered_where_one_function_is_too_small(blocks):
    between = max(weight_bytes(blocks, *ends) for ends in [(0, 1), (1, 4), (4, 8)])
    assert between == weight_bytes(blocks, 1, 4)
    assert positions(cut_points(blocks, between)) == [0, 1, 4, 8, 9]
    assert positions(cut_points(blocks, between - 1)) == [0, 1, 2, 3, 4, 8, 9]


def test_there_is_a_cut_between_a_tiles_pooling_and_the_sum():
    net = Net(3, 9, 9)
    x = net.conv("x", 3, 4, 3)
    gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", x), 4, 4, 1))
    x = net.op("GlobalAveragePool", net.op("Mul", x, gate))
    graph = with_tile_pools(net.graph(net.linear(net.flat(x), 4, 3)))
    pooled = [index + 1 for index, node in enumerate(graph.nodes) if node.kind == "TilePool"]
    cuts = {cut.position: cut for cut in cut_points(graph)}
    assert [len(cuts[position].tensors) for position in pooled] == [2, 1]


def test_bytes_of_weights_count_each_once_and_fp16_half():
    net = Net(2, 6, 6)
    shared = net.constant(net.floats(2, 2, 3, 3))
    x = net.op("Conv", net.op("Conv", "x", shared, kernel_shape=[3, 3], pads=[1] * 4), shared, kernel_shape=[3, 3])
    matrix = net.constant(net.floats(32, 5))
    graph = net.graph(net.op("MatMul", net.flat(x), matrix))
    assert weight_bytes(graph, 0, 2) == 4 * 36
    assert weight_bytes(graph, 0, len(graph.nodes)) == 4 * (36 + 160)
    assert weight_bytes(graph, 0, len(graph.nodes), {matrix}) == 4 * 36 + 2 * 160


@pytest.mark.parametrize(
    "grid",
    [
        *("", "0x2", "2x", "x2", "2X2", "100x1", "2x2x2", "two", (0, 1), (1, 100), (2,), (1.0, 2), 4, None, "-1"),
        *("col", "col0", "col100", "col-2", "COL4", "col4x2", "col 4", "4col", "col01"),
        *((True, 2), True, 2),
    ],
)
def test_text_that_is_not_a_grid_is_refused(grid):
    with pytest.raises(UsageError, match="is not a grid"):
        parse_grids(grid)


@pytest.mark.parametrize(
    ("given", "options", "per_stage"),
    [
        ("2x2", [(2, 2)], []),
        ((1, 2), [(1, 2)], []),
        ("1", [(1, 1)], []),
        ("col4", [(1, 4, True)], []),
        ("col1", [(1, 1)], []),
        (Grid(1, 3, columns=True), [(1, 3, True)], []),
        ("2x2,col3", None, [(2, 2), (1, 3, True)]),
        (["col2", (1, 2)], None, [(1, 2, True), (1, 2)]),
        ("2x2, 1x3,1", None, [(2, 2), (1, 3), (1, 1)]),
        ([(2, 2), "1"], None, [(2, 2), (1, 1)]),
        (((2, 2), (1, 2), 1), None, [(2, 2), (1, 2), (1, 1)]),
    ],
)
def test_grids_are_read_as_users_write_them(given, options, per_stage):
    choice = parse_grids(given)
    assert choice.per_stage == tuple(Grid(*grid) for grid in per_stage)
    if options:
        assert choice.options == tuple(Grid(*grid) for grid in options)


def test_columns_differ_from_a_row_of_tiles():
    assert parse_grid("col4") != parse_grid("1x4")
    assert parse_grid(str(parse_grid("col4"))) == parse_grid("col4")
    assert parse_grid("col1") == parse_grid("1x1") == parse_grid(1)
