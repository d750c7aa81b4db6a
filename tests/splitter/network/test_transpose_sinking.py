"""Indexing by constants as torch's exporter writes it: around the first axis, between two transposes."""

import numpy as np
import pytest

from serfer.core.errors import ModelError
from tests.splitter.models import split_error
from tests.splitter.tiling.test_elementwise import EXACT, SIZE, network, spread


def picked(net, x, axis, indices, kind="GatherND"):
    """Move an axis to the front, pick, and move it back."""
    order = [axis, *(other for other in range(4) if other != axis)]
    indices, form = (indices, {"axis": 0}) if kind == "Gather" else (np.array(indices)[:, None], {})
    chosen = net.op(kind, net.op("Transpose", x, perm=order), indices, **form)
    return net.op("Transpose", chosen, perm=np.argsort(order).tolist())


PICKS = [(1, [2, 1, 0, 5, 4, 3]), (1, [0, -1]), (2, [8, 0, 5, 5, 3]), (3, [0, 5, 3, 9, -1])]


@pytest.mark.parametrize("kind", ["Gather", "GatherND"])
@pytest.mark.parametrize(("axis", "indices"), PICKS)
def test_a_pick_along_a_moved_axis_is_one_gather_and_is_spread(axis, indices, kind, tmp_path):
    net, x = network()
    channels = len(indices) if axis == 1 else 6
    x = net.conv(picked(net, x, axis, indices, kind), channels, 4, 3)
    graph = net.graph(net.flat(x))
    assert [(node.kind, node.attributes.get("axis")) for node in graph.nodes[1:2]] == [("Gather", axis)]
    assert [node.kind for node in graph.nodes] == ["Conv", "Gather", "Conv", "Flatten"]
    assert spread(net, x, tmp_path) <= EXACT


def test_a_moved_axis_may_serve_several_picks(tmp_path):
    net, x = network()
    moved = net.op("Transpose", x, perm=[1, 0, 2, 3])
    picked = [net.op("GatherND", moved, rows) for rows in ([[3], [0]], [[1], [5], [2]])]
    x = net.op("Concat", *(net.op("Transpose", part, perm=[1, 0, 2, 3]) for part in picked), axis=1)
    assert split_error(net, net.flat(x), tmp_path, ["2x2", "1"]) <= EXACT


def test_transposes_that_undo_each_other_are_left_out():
    net, x = network()
    x = net.op("Transpose", net.op("Transpose", x, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2])
    x = net.op("Transpose", net.op("Transpose", net.op("Relu", x), perm=[0, 2, 3, 1]), perm=[0, 2, 1, 3])
    graph = net.graph(net.flat(x))
    assert [node.kind for node in graph.nodes] == ["Conv", "Relu", "Transpose", "Flatten"]
    assert graph.nodes[2].attributes["perm"] == [0, 3, 2, 1]


UNPACKED = {
    "slices": lambda net, packed, part: net.op("Squeeze", net.op("Slice", packed, [part], [part + 1], [0]), [0]),
    "index": lambda net, packed, part: net.op("Gather", packed, part, axis=0),
}


@pytest.mark.parametrize("unpacked", UNPACKED.values(), ids=UNPACKED)
def test_multi_head_attention_as_exported_from_vision_transformers(unpacked, tmp_path):
    """Queries, keys and values of two heads are unpacked as torch's permute and unbind are exported."""
    positions = SIZE[0] * SIZE[1]
    net, x = network(24)
    tokens = net.op("Transpose", net.op("Reshape", x, [0, 24, -1]), perm=[0, 2, 1])
    packed = net.op("Transpose", net.op("Reshape", tokens, [0, positions, 3, 2, 4]), perm=[2, 0, 3, 1, 4])
    queries, keys, values = (unpacked(net, packed, part) for part in range(3))
    keys = net.op("Transpose", net.op("Reshape", keys, [-1, positions, 4]), perm=[0, 2, 1])  # heads join the batch
    keys = net.op("Reshape", keys, [1, 2, 4, positions])
    mixed = net.op("MatMul", net.op("Softmax", net.op("MatMul", queries, keys), axis=-1), values)
    out = net.op("Reshape", net.op("Transpose", mixed, perm=[0, 2, 1, 3]), [0, positions, 8])
    assert split_error(net, net.flat(net.op("ReduceMean", out, [1])), tmp_path) <= EXACT


def grid_of(rows, cols):
    return np.stack(np.meshgrid(rows, cols, indexing="ij"), axis=-1)


@pytest.mark.parametrize("to_front", [[2, 3, 0, 1], [3, 2, 1, 0]])
def test_a_grid_of_rows_and_columns_is_two_gathers_and_is_spread(to_front, tmp_path):
    """What torch's exporter makes of interpolation with "nearest-exact"."""
    net, x = network()
    grid = grid_of([0, 0, 3, 8, -1], [1, 2, 2, 7, 7, 8])
    x = net.op("GatherND", net.op("Transpose", x, perm=to_front), grid)
    x = net.conv(net.op("Transpose", x, perm=np.argsort(to_front).tolist()), 6, 4, 3)
    assert [node.kind for node in net.graph(net.flat(x)).nodes] == ["Conv", "Gather", "Gather", "Conv", "Flatten"]
    assert spread(net, x, tmp_path) <= EXACT


def test_places_that_are_no_grid_are_refused():
    net, x = network()
    places = grid_of([0, 1, 2], [3, 4, 5])
    places[1, 1] = (8, 8)
    x = net.op("GatherND", net.op("Transpose", x, perm=[2, 3, 0, 1]), places)
    x = net.op("Transpose", x, perm=[2, 3, 0, 1])
    with pytest.raises(ModelError, match=r"\(Transpose\).*images of a batch"):
        net.graph(net.flat(x))
