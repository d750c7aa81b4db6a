import math

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from serfer.core.errors import ModelError
from serfer.core.geometry import Rect, Span
from serfer.core.plan import Padding
from splitter.network.ingest import from_onnx
from splitter.tiling import operators
from splitter.tiling import regions as tiles
from splitter.tiling.receptive_field import Window, explicit_pads
from splitter.tiling.receptive_field import window as window_of
from tests.splitter.models import Net

WINDOWS = st.builds(
    Window,
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    pad_before=st.integers(0, 4),
    pad_after=st.integers(0, 4),
)


def slide(values, window, outputs):
    """Sum over a sliding window, straight from the definition; past the padding there are zeros (ceil mode)."""
    padded = np.concatenate([np.zeros(window.pad_before), values, np.zeros(100)])
    taps = window.dilation * np.arange(window.kernel)
    return np.array([padded[index * window.stride + taps].sum() for index in range(outputs)])


def output_count(window, size, *, ceil):
    free = size + window.pad_before + window.pad_after - window.reach
    outputs = (math.ceil if ceil else math.floor)(free / window.stride) + 1
    if ceil and (outputs - 1) * window.stride >= size + window.pad_before:
        outputs -= 1  # no window may start in the padding at the end
    return outputs


@settings(max_examples=300)
@given(WINDOWS, st.integers(1, 20), st.booleans(), st.data())
def test_needs_are_the_rows_whose_change_changes_the_output(window, size, ceil, data):
    outputs = output_count(window, size, ceil=ceil)
    assume(outputs >= 1)
    start = data.draw(st.integers(0, outputs - 1))
    out = Span(start, data.draw(st.integers(start + 1, outputs)))
    base = slide(np.zeros(size), window, outputs)
    seen = []
    for row in range(size):
        changed = np.flatnonzero(slide(np.eye(size)[row], window, outputs) != base)
        if any(out.start <= index < out.stop for index in changed):
            seen.append(row)
    need = window.input_span(out)
    assert need.size == (out.size - 1) * window.stride + window.reach
    clipped = need.clip(size)
    assert all(clipped.start <= row < clipped.stop for row in seen)
    if seen and window.dilation == 1 and window.stride <= window.kernel:  # no holes, so the need is exact
        assert seen == list(range(clipped.start, clipped.stop))


@settings(max_examples=60)
@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    size=st.tuples(st.integers(8, 14), st.integers(8, 14)),
    data=st.data(),
)
def test_a_chains_receptive_field_is_what_its_output_depends_on(kernel, stride, dilation, pads, size, data):
    """Positive weights and inputs: an output changes exactly when an input that it depends on does."""
    net = Net(1, *size)
    weight = net.constant(np.ones((1, 1, *kernel), np.float32))
    x = net.op(
        "Conv", "x", weight, kernel_shape=kernel, strides=[stride] * 2, dilations=[dilation] * 2, pads=list(pads)
    )
    x = net.op("Conv", x, net.constant(np.ones((1, 1, 3, 2), np.float32)), kernel_shape=[3, 2], pads=[1, 0, 1, 1])
    try:
        graph = from_onnx(net.model(net.flat(x)), *size)
    except ModelError:  # the window does not fit the map
        reject()
    nodes = graph.nodes[:-1]
    height, width = graph.shapes[nodes[-1].output][2:]
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    region = Rect(
        Span(top, data.draw(st.integers(top + 1, height))), Span(left, data.draw(st.integers(left + 1, width)))
    )
    found = tiles.infer_input_regions(graph, nodes, {nodes[-1].output: region})["x"]
    first = [window_of(nodes[0], axis) for axis in (2, 3)]
    second = [window_of(nodes[1], axis) for axis in (2, 3)]
    for axis in (0, 1):
        span = (region.rows, region.cols)[axis]
        middle = graph.shapes[nodes[0].output][2 + axis]
        rows = [
            row
            for row in range(size[axis])
            if slide(slide(np.eye(size[axis])[row], first[axis], middle), second[axis], span.stop)[span.start :].any()
        ]
        need = (found.rows, found.cols)[axis]
        assert all(need.start <= row < need.stop for row in rows)
        assert 0 <= need.start < need.stop <= size[axis]
        if stride <= kernel[axis] and dilation == 1 and rows:
            assert (rows[0], rows[-1] + 1) == (need.start, need.stop)


@pytest.mark.parametrize(
    ("mode", "expected"), [(b"SAME_UPPER", [1, 0, 1, 1]), (b"SAME_LOWER", [1, 1, 1, 0]), (b"VALID", [0, 0, 0, 0])]
)
def test_automatic_padding_is_made_explicit(mode, expected):
    attributes = {"auto_pad": mode, "kernel_shape": [3, 2], "strides": [1, 1], "pads": [9, 9, 9, 9]}
    assert explicit_pads(attributes, (7, 7)) == expected


def test_padding_that_is_not_given_is_none():
    assert explicit_pads({"kernel_shape": [3, 3]}, (5, 5)) == [0, 0, 0, 0]


def test_padding_of_a_tile_is_only_where_the_map_ends():
    net = Net(1, 12, 12)
    x = net.conv("x", 1, 1, [3, 3], pads=[1, 1, 1, 1])
    graph = from_onnx(net.model(net.flat(x)), 12, 12)
    nodes = graph.nodes[:-1]

    def padding(rows, cols):
        return tiles.input_padding(graph, nodes, "x", {nodes[-1].output: Rect(Span(*rows), Span(*cols))})

    assert padding((0, 6), (0, 6)) == Padding(1, 1, 0, 0)
    assert padding((6, 12), (0, 6)) == Padding(0, 1, 1, 0)
    assert padding((4, 8), (4, 8)) == Padding(0, 0, 0, 0)
    assert padding((0, 12), (0, 12)) == Padding(1, 1, 1, 1)


def test_branches_need_the_union_of_what_they_read():
    net = Net(1, 20, 20)
    wide = net.conv("x", 1, 1, [7, 1], pads=[3, 0, 3, 0])
    tall = net.conv("x", 1, 1, [1, 5], pads=[0, 2, 0, 2])
    graph = from_onnx(net.model(net.flat(net.op("Add", wide, tall))), 20, 20)
    nodes = graph.nodes[:-1]
    found = tiles.infer_input_regions(graph, nodes, {nodes[-1].output: Rect(Span(8, 10), Span(8, 10))})["x"]
    assert found == Rect(Span(5, 13), Span(6, 12))


def test_several_outputs_need_the_union_of_what_they_depend_on():
    net = Net(1, 20, 20)
    first = net.conv("x", 1, 1, [7, 1], pads=[3, 0, 3, 0])
    second = net.conv(first, 1, 1, [1, 5], pads=[0, 2, 0, 2])
    graph = from_onnx(net.model(net.flat(net.op("Add", first, second))), 20, 20)
    targets = {first: Rect(Span(0, 4), Span(0, 4)), second: Rect(Span(8, 10), Span(8, 10))}
    found = tiles.infer_input_regions(graph, graph.nodes[:2], targets)
    assert found[second] == targets[second]
    assert found[first] == Rect(Span(0, 10), Span(0, 12))
    assert found["x"] == Rect(Span(0, 13), Span(0, 12))


def test_work_is_counted_by_hand():
    net = Net(4, 10, 10)
    x = net.conv("x", 4, 6, [3, 3], groups=2, pads=[1, 1, 1, 1])
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    graph = from_onnx(net.model(net.linear(net.flat(x), 150, 7)), 10, 10)
    macs = [operators.macs(graph, node, graph.shape(node.output).whole.area) for node in graph.nodes]
    assert macs == [10 * 10 * 6 * 2 * 9, 0, 0, 150 * 7]


def test_work_of_columns_is_their_share():
    net = Net(4, 5, 5)
    graph = from_onnx(net.model(net.linear(net.flat("x"), 100, 7)), 5, 5)
    assert [operators.macs(graph, graph.nodes[-1], columns) for columns in (1, 3, 7)] == [100, 300, 700]
