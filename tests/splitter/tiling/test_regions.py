import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from onnx.helper import make_tensor_value_info

from serfer.core.errors import ModelError
from serfer.core.geometry import Grid, Rect, Span, grid_rects
from serfer.core.plan import Padding
from serfer.splitter.network.graph import STATISTICS, Bins, Graph, Node
from serfer.splitter.network.onnx_models import model_of, session_of
from serfer.splitter.network.sliding_window import Window, window
from serfer.splitter.plan_dir.emit import input_name, tile_graph
from serfer.splitter.tiling.by_position import RATES, RESIZE_BY_POSITION, LinearResize, Place, append_bins
from serfer.splitter.tiling.onnx_builder import OnnxBuilder
from serfer.splitter.tiling.receptive_field import clipped, hull, spans_of, tabulated, under
from serfer.splitter.tiling.regions import infer_regions, input_paddings, input_region
from tests.splitter.models import Net


@pytest.fixture(scope="module")
def residual():
    """x (12 x 12) -> 3x3 convolution -> 3x3 pool of stride 2 (6 x 6) -> 3x3 convolution, added to the pool's result."""
    net = Net(1, 12, 12)
    x = net.op("Relu", net.conv("x", 1, 1, 3, output="t0"), output="relu")
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], output="pool")
    x = net.op("Add", net.conv(x, 1, 1, 3, output="t3"), x, output="sum")
    return net.graph(net.flat(x))


def written(rect):
    return f"{rect.rows.start}:{rect.rows.stop} x {rect.cols.start}:{rect.cols.stop}"


def test_the_regions_of_a_small_network_on_2x2_tiles(residual):
    tiles = [{"sum": rect} for rect in grid_rects(6, 6, Grid(2, 2))]
    tile_regions = infer_regions(residual, residual.nodes[:-1], tiles)
    assert [{name: written(rect) for name, rect in regions.items()} for regions in tile_regions] == [
        {"sum": "0:3 x 0:3", "t3": "0:3 x 0:3", "pool": "0:4 x 0:4", "relu": "0:8 x 0:8", "t0": "0:8 x 0:8"}
        | {"x": "0:9 x 0:9"},
        {"sum": "0:3 x 3:6", "t3": "0:3 x 3:6", "pool": "0:4 x 2:6", "relu": "0:8 x 3:12", "t0": "0:8 x 3:12"}
        | {"x": "0:9 x 2:12"},
        {"sum": "3:6 x 0:3", "t3": "3:6 x 0:3", "pool": "2:6 x 0:4", "relu": "3:12 x 0:8", "t0": "3:12 x 0:8"}
        | {"x": "2:12 x 0:9"},
        {"sum": "3:6 x 3:6", "t3": "3:6 x 3:6", "pool": "2:6 x 2:6", "relu": "3:12 x 3:12", "t0": "3:12 x 3:12"}
        | {"x": "2:12 x 2:12"},
    ]
    paddings = input_paddings(residual, residual.nodes[:-1], ["x"], tiles)
    assert paddings == [(Padding(4, 4, 0, 0),), (Padding(4, 0, 0, 3),), (Padding(0, 4, 3, 0),), (Padding(0, 0, 3, 3),)]


@settings(max_examples=60)
@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    size=st.tuples(st.integers(8, 14), st.integers(8, 14)),
    data=st.data(),
)
def test_a_chains_receptive_field_equals_the_inputs_its_output_depends_on(kernel, stride, dilation, pads, size, data):
    """Positive weights and inputs: an output changes exactly when an input that it depends on does."""
    net = Net(1, *size)
    window_of = {"kernel_shape": kernel, "strides": [stride] * 2, "dilations": [dilation] * 2, "pads": list(pads)}
    x = net.op("Conv", "x", np.ones((1, 1, *kernel)), **window_of)
    x = net.op("Conv", x, np.ones((1, 1, 3, 2), np.float32), kernel_shape=[3, 2], pads=[1, 0, 1, 1])
    try:
        graph = net.graph(net.flat(x))
    except ModelError:  # the window does not fit the map
        reject()
    nodes = graph.nodes[:-1]
    height, width = graph.shapes[nodes[-1].output][2:]
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    region = Rect(
        Span(top, data.draw(st.integers(top + 1, height))), Span(left, data.draw(st.integers(left + 1, width)))
    )
    (regions,) = infer_regions(graph, nodes, [{nodes[-1].output: region}])
    read = regions["x"]
    first = [window(nodes[0], axis) for axis in (2, 3)]
    second = [window(nodes[1], axis) for axis in (2, 3)]
    for axis in (0, 1):
        span = (region.rows, region.cols)[axis]
        middle = graph.shapes[nodes[0].output][2 + axis]
        rows = [
            row
            for row in range(size[axis])
            if slide(slide(np.eye(size[axis])[row], first[axis], middle), second[axis], span.stop)[span.start :].any()
        ]
        need = (read.rows, read.cols)[axis]
        assert all(need.start <= row < need.stop for row in rows)
        assert 0 <= need.start < need.stop <= size[axis]
        if stride <= kernel[axis] and dilation == 1 and rows:
            assert (rows[0], rows[-1] + 1) == (need.start, need.stop)


WINDOWS = st.builds(
    Window,
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    pad_before=st.integers(0, 4),
    pad_after=st.integers(0, 4),
)
SPANS = st.tuples(st.integers(-50, 50), st.integers(0, 50)).map(lambda pair: Span(pair[0], pair[0] + pair[1]))


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


@pytest.mark.exact
@settings(max_examples=300)
@given(WINDOWS, st.integers(1, 20), st.booleans(), st.data())
def test_a_window_reads_exactly_the_rows_that_affect_its_output(window, size, ceil, data):
    outputs = output_count(window, size, ceil=ceil)
    assume(outputs >= 1)
    start = data.draw(st.integers(0, outputs - 1))
    stop = data.draw(st.integers(start + 1, outputs))
    base = slide(np.zeros(size), window, outputs)
    seen = []
    for row in range(size):
        changed = np.flatnonzero(slide(np.eye(size)[row], window, outputs) != base)
        if any(start <= index < stop for index in changed):
            seen.append(row)
    read = under(window)(np.array([[start], [stop]]))
    ((first,), (after,)) = read
    assert after - first == (stop - start - 1) * window.stride + window.reach
    ((first,), (after,)) = clipped(read, size)
    assert all(first <= row < after for row in seen)
    if seen and window.dilation == 1 and window.stride <= window.kernel:  # no holes, so what is read is exact
        assert seen == list(range(first, after))


@pytest.mark.parametrize(
    ("span", "inside"), [((-3, 4), (0, 3)), ((1, 2), (1, 2)), ((-5, -3), (0, 1)), ((7, 9), (2, 3))]
)
def test_spans_are_clipped_to_the_map_and_are_never_empty(span, inside):
    assert clipped(np.array([span]).T, 3).T.tolist() == [list(inside)]


@given(st.lists(st.tuples(SPANS, SPANS), min_size=1, max_size=6))
def test_the_hull_is_each_tiles_smallest_span_that_contains_both(pairs):
    hulls = hull(*(spans_of(side) for side in zip(*pairs, strict=True)))
    for (start, stop), (one, other) in zip(hulls.T.tolist(), pairs, strict=True):
        assert start == min(one.start, other.start)
        assert stop == max(one.stop, other.stop)


def test_rows_in_any_order_are_read_from_the_first_to_the_last_and_for_an_output_that_reads_none_the_first():
    mirrored = np.array([4, 3, 2, 1, 0])
    read = tabulated(mirrored, mirrored + 1)
    assert read(spans_of([Span(0, 2), Span(2, 5), Span(4, 8)])).T.tolist() == [[3, 5], [0, 3], [0, 1]]
    read = tabulated(np.array([5, 2, 5]), np.array([0, 4, 0]))
    assert read(spans_of([Span(0, 1), Span(0, 2), Span(2, 3)])).T.tolist() == [[0, 1], [2, 4], [0, 1]]


PLACES = {True: b"align_corners", False: b"half_pixel"}


def resized(graph):
    """The linear Resize of a graph, as float64 weights make it, of a map (C, rows, cols)."""
    [node] = graph.nodes
    aligned = node.attributes["coordinate_transformation_mode"] == b"align_corners"
    matrices = []
    for inputs, outputs in zip(graph.shapes["x"][2:], graph.shapes["y"][2:], strict=True):
        ratio = Fraction(inputs - 1, max(1, outputs - 1)) if aligned else Fraction(inputs, outputs)
        how, rows = LinearResize(inputs, outputs, ratio, aligned), np.arange(outputs)
        read = np.clip(rows * float(how.ratio) + float(how.shift), 0, inputs - 1)
        matrices.append(np.maximum(0, 1 - np.abs(read[:, None] - np.arange(inputs))))
    return matrices


@settings(max_examples=25)
@given(st.data())
def test_a_window_of_a_resizing_is_any_other_of_its_kind_by_its_position(data):
    factor, aligned = data.draw(st.sampled_from([2, 3, 4])), data.draw(st.booleans())
    size = [data.draw(st.integers(40, 70)) for _ in range(2)]
    whole = [factor * each + data.draw(st.integers(-1, 1)) for each in size]
    growths = (Fraction(factor),) * 2, (Fraction(1),) * 2
    attributes = {"mode": b"linear", "coordinate_transformation_mode": PLACES[aligned], RATES: growths}
    node = Node("resize", RESIZE_BY_POSITION, ("x", "", "", "sizes", STATISTICS), "y", attributes)
    shapes = {"x": (1, 2, *size), "y": (1, 2, *whole), STATISTICS: (1, 2)}
    weights = {"sizes": np.array([1, 2, *whole])}
    graph = Graph((node,), weights, "x", ("y",), shapes, 18, fixed=frozenset({STATISTICS}))
    rows, cols = (data.draw(st.integers(1, 15 * factor)) for _ in range(2))
    region = Rect(Span(10 * factor, 10 * factor + rows), Span(11 * factor, 11 * factor + cols))
    read = input_region(graph, node, "x", region).clipped
    regions = {"x": read, "y": region, STATISTICS: graph.shape(STATISTICS).whole}
    session = session_of(tile_graph(graph, graph.nodes, regions, ["x", STATISTICS], {"y": region}).model({}))
    values = np.random.default_rng(0).standard_normal((2, *size), dtype=np.float32)
    high, wide = resized(graph)
    expected = high @ values.astype(np.float64) @ wide.T
    for down, across in ((0, 0), (1, 2), (7, 3)):
        have, made = (
            Rect(rect.rows.moved(down * by), rect.cols.moved(across * by)) for rect, by in ((read, 1), (region, factor))
        )
        corner = np.array([[have.rows.start, have.cols.start]], np.float32)
        part = np.ascontiguousarray(values[None][:, :, *have.slices])
        [got] = session.run(None, {"input0": part, "input1": corner})
        np.testing.assert_allclose(got[0], expected[:, *made.slices], rtol=0, atol=1e-5)


@settings(max_examples=15)
@given(st.integers(3, 60), st.integers(3, 60), st.integers(1, 9), st.integers(1, 9), st.integers(15, 25))
def test_what_windows_give_to_bins_is_their_mean_in_the_whole_map(high, wide, down, across, side):
    values = np.random.default_rng(0).standard_normal((2, high, wide), dtype=np.float32)
    bins = Bins((down, across), (high, wide), (Fraction(1), Fraction(1)))
    expected = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(values).double(), (down, across)).numpy()
    got = np.zeros_like(expected)
    for top in range(0, high, side):
        for left in range(0, wide, side):
            part = values[None, :, top : top + side, left : left + side]
            got += given_to(bins, part, (top, left))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def given_to(bins, part, corner):
    """What a window gives to bins, by the graph of the first window of its size."""
    graph = Graph((), {}, "x", (), {"x": (1, *part.shape[1:]), STATISTICS: (1, 2)}, 18)
    builder = OnnxBuilder(graph)
    spans = [Span(0, each) for each in part.shape[2:]]
    places = [Place(axis, span, span, Fraction(1), input_name(1)) for axis, span in zip((2, 3), spans, strict=True)]
    output = append_bins(builder, input_name(0), "bins", bins, places)
    forms = {input_name(0): part.shape, input_name(1): (1, 2), output: None}
    given, made, last = (make_tensor_value_info(name, TensorProto.FLOAT, form) for name, form in forms.items())
    constants = [numpy_helper.from_array(value, name) for name, value in builder.constants.items()]
    session = session_of(model_of(builder.nodes, [given, made], [last], constants, opset=graph.opset))
    inputs = {input_name(0): np.ascontiguousarray(part), input_name(1): np.array([corner], np.float32)}
    return session.run(None, inputs)[0][0]
