"""The graph of one window, told where it is, computes all others of its kind as the whole map has them."""

from fractions import Fraction

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from onnx.helper import make_tensor_value_info

from serfer.core.geometry import Rect, Span
from serfer.splitter.network.graph import STATISTICS, Bins, Graph, Node
from serfer.splitter.network.onnx_models import model_of, session_of
from serfer.splitter.plan_dir.emit import input_name, tile_graph
from serfer.splitter.tiling.by_position import RATES, RESIZE_BY_POSITION, LinearResize, Place, append_bins
from serfer.splitter.tiling.onnx_builder import OnnxBuilder
from serfer.splitter.tiling.regions import input_region

PLACES = {True: b"align_corners", False: b"half_pixel"}


def resized(graph):
    """The linear Resize of a graph, as float64 weights make it, of a map (C, rows, cols)."""
    [node] = graph.nodes
    aligned = node.attributes["coordinate_transformation_mode"] == b"align_corners"
    matrices = []
    for inputs, outputs in zip(graph.shapes["x"][2:], graph.shapes["y"][2:], strict=True):
        how, rows = LinearResize(inputs, outputs, aligned), np.arange(outputs)
        read = np.clip(rows * float(how.ratio) + float(how.shift), 0, inputs - 1)
        matrices.append(np.maximum(0, 1 - np.abs(read[:, None] - np.arange(inputs))))
    return matrices


@settings(max_examples=25, deadline=None)
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


@settings(max_examples=15, deadline=None)
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
