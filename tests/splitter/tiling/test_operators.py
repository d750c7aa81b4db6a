"""Every operator that can be tiled, position by position: its whole output map is the network's answer."""

import numpy as np
import pytest

from serfer.core.errors import ModelError
from serfer.core.exactness import relative_error
from serfer.splitter.network.onnx_models import OPSET
from serfer.splitter.network.source import mean_matrix
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.cuts import cut_points
from serfer.splitter.tiling.from_onnx import from_onnx
from tests.once import one_each
from tests.splitter.models import Net, cut, run_tiles, unsplit, worst_error

GRIDS = ["1", "1x3", "2x2", "3x2"]
EXACT = 1e-6


@pytest.fixture(scope="session")
def functional():
    import torch  # noqa: PLC0415 - slow to import

    return torch.nn.functional


def tiled(net, x, batch, directory, grid):
    """Return the map `x` of a network, computed in tiles, flattened; x must be tileable."""
    model = net.model(net.flat(x))
    plan = cut(model, batch.shape[2:], directory, [grid, "1"])
    return run_tiles(plan, directory, batch)


def from_torch(tensor):
    return tensor.flatten(1).numpy()


@one_each(
    "grid",
    GRIDS,
    ("include", [0, 1]),
    (
        ("kernel", "stride", "padding", "ceil", "size"),
        [
            ((2, 2), (2, 2), (0, 0), True, (13, 17)),
            ((3, 3), (2, 2), (1, 1), True, (12, 15)),
            ((3, 2), (2, 2), (1, 1), True, (14, 12)),
            ((3, 3), (3, 3), (1, 1), True, (17, 17)),
            ((3, 3), (1, 1), (1, 1), False, (9, 10)),
            ((5, 3), (3, 2), (2, 0), True, (16, 16)),
        ],
    ),
)
def test_average_pooling_equals_torchs(  # noqa: PLR0913, PLR0917 - parameters
    functional, tmp_path, grid, include, kernel, stride, padding, ceil, size
):
    import torch  # noqa: PLC0415 - slow to import

    net = Net(2, *size)
    batch = net.batch_of(2)
    x = net.op(
        "AveragePool",
        "x",
        kernel_shape=kernel,
        strides=stride,
        pads=padding * 2,
        ceil_mode=int(ceil),
        count_include_pad=include,
    )
    expected = functional.avg_pool2d(torch.from_numpy(batch), kernel, stride, padding, ceil, bool(include))
    assert relative_error(tiled(net, x, batch, tmp_path, grid), from_torch(expected)) <= EXACT


@one_each(
    "grid",
    GRIDS,
    (
        ("kernel", "stride", "padding", "dilation", "ceil"),
        [(3, 2, 1, 1, True), (2, 2, 0, 1, True), (3, 2, 1, 2, True), (3, 1, 1, 3, False), (3, 3, 1, 1, True)],
    ),
)
def test_max_pooling_equals_torchs(functional, tmp_path, grid, kernel, stride, padding, dilation, ceil):
    import torch  # noqa: PLC0415 - slow to import

    net = Net(2, 17, 14)
    batch = net.batch_of(2) - 5  # all negative: a zero from the padding would win
    x = net.op(
        "MaxPool",
        "x",
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=[padding] * 4,
        dilations=[dilation] * 2,
        ceil_mode=int(ceil),
    )
    expected = functional.max_pool2d(torch.from_numpy(batch), kernel, stride, padding, dilation, ceil)
    assert np.array_equal(tiled(net, x, batch, tmp_path, grid), from_torch(expected))


@one_each(
    "grid",
    GRIDS,
    (
        ("groups", "stride", "dilation", "pads"),
        [
            (1, (1, 1), (1, 1), (1, 1, 1, 1)),
            (2, (2, 1), (1, 1), (1, 0, 1, 2)),
            (4, (1, 2), (1, 1), (0, 1, 2, 1)),
            (1, (2, 2), (2, 3), (2, 3, 1, 0)),
            (1, (3, 3), (1, 1), (2, 2, 2, 2)),
            (1, (1, 1), (1, 1), (0, 0, 0, 0)),
            (1, (1, 1), (1, 1), (5, 4, 3, 6)),
        ],
    ),
)
def test_convolution_equals_torchs(functional, tmp_path, grid, groups, stride, dilation, pads):
    import torch  # noqa: PLC0415 - slow to import

    net = Net(4, 15, 18)
    batch = net.batch_of(2)
    x = net.conv("x", 4, 8, [3, 3], groups, strides=stride, dilations=dilation, pads=pads)
    weight, bias = (torch.from_numpy(from_onnx_weight(tensor)) for tensor in net.weights)
    padded = functional.pad(torch.from_numpy(batch), (pads[1], pads[3], pads[0], pads[2]))
    expected = functional.conv2d(padded, weight, bias, stride, 0, dilation, groups)
    assert relative_error(tiled(net, x, batch, tmp_path, grid), from_torch(expected)) <= EXACT


def from_onnx_weight(tensor):
    from onnx import numpy_helper  # noqa: PLC0415 - beside its only use

    return numpy_helper.to_array(tensor).copy()


@one_each(
    "grid", GRIDS, (("size", "outputs"), [((13, 17), (6, 6)), ((5, 4), (7, 9)), ((12, 12), (6, 4)), ((9, 9), (3, 3))])
)
def test_adaptive_average_pooling_equals_torchs_at_any_size(functional, tmp_path, grid, size, outputs):
    import torch  # noqa: PLC0415 - slow to import

    net = Net(3, *size)
    batch = net.batch_of(2)
    cols = net.constant(np.ascontiguousarray(mean_matrix(size[1], outputs[1]).T))
    rows = net.constant(mean_matrix(size[0], outputs[0]))
    x = net.op("MatMul", rows, net.op("MatMul", "x", cols))
    expected = functional.adaptive_avg_pool2d(torch.from_numpy(batch), outputs)
    assert relative_error(tiled(net, x, batch, tmp_path, grid), from_torch(expected)) <= EXACT


@one_each(
    "grid",
    ["2x2", "3x3"],
    ("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"]),
    ("kind", ["Conv", "MaxPool", "AveragePool"]),
)
def test_automatic_padding(tmp_path, mode, kind, grid):
    net = Net(2, 14, 11)
    window = {"kernel_shape": [4, 3], "strides": [2, 2], "auto_pad": mode}
    if kind == "Conv":
        x = net.op("Conv", "x", net.constant(net.floats(3, 2, 4, 3)), **window)
    else:
        x = net.op(kind, "x", **window)
    model = net.model(net.flat(x))
    assert worst_error(model, net.batch_of(2), tmp_path, [grid, "1"]) <= EXACT


@one_each(
    "grid", ["2x2", "3x3"], ("then", ["Conv", "MaxPool", "AveragePool", "Relu"]), ("axes", [None, [2, 3], [-1, -2]])
)
def test_padding_as_an_operator_of_its_own(tmp_path, grid, then, axes):
    net = Net(2, 9, 10)
    amounts = [0, 0, 4, 1, 0, 0, 2, 3] if axes is None else [4, 1, 2, 3]
    inputs = ["x", net.constant(np.array(amounts)), net.constant(np.float32(-0.5))]
    x = net.op("Pad", *inputs, *([net.constant(np.array(axes))] if axes else []))
    if then == "Conv":
        x = net.conv(x, 2, 3, [3, 3])
    else:
        x = net.op(then, x, **({"kernel_shape": [2, 2]} if then != "Relu" else {}))
    assert worst_error(net.model(net.flat(x)), net.batch_of(2), tmp_path, [grid, "1"]) <= EXACT


@pytest.mark.exact
@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_padding_that_repeats_the_image_is_exact(tmp_path, mode):
    net = Net(2, 9, 9)
    x = net.op("Pad", "x", net.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1])), mode=mode)
    model = net.model(net.flat(net.op("Relu", net.conv(x, 2, 2, [3, 3]))))
    assert worst_error(model, net.batch_of(2), tmp_path, "2x2") <= EXACT


@pytest.mark.parametrize("grid", ["2x2", "3x3"])
def test_old_opsets_are_converted(tmp_path, grid):
    from serfer.splitter.network.source import load  # noqa: PLC0415 - beside its only use

    net = Net(2, 13, 13, opset=13, batch=1)
    x = net.conv("x", 2, 4, [3, 3], pads=[1, 1, 1, 1])
    x = net.op("Relu", x)
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    x = net.op("ReduceMean", x, axes=[2, 3], keepdims=0)
    path = tmp_path / "old.onnx"
    path.write_bytes(net.model(net.linear(x, 4, 3), dims=(1, 3)).SerializeToString())
    source, sample = load(path, None)
    assert source.onnx.proto.opset_import[0].version == OPSET
    assert sample.shape == (1, 2, 13, 13)
    batch = net.batch_of(3)
    assert worst_error(source.onnx, batch, tmp_path / "plan", grid, expected=source.run(batch)) <= EXACT


def normalised(net, x, channels):
    scale, bias, mean = (net.constant(net.floats(channels)) for _ in range(3))
    return net.op("BatchNormalization", x, scale, bias, mean, net.constant(np.abs(net.floats(channels)) + 0.5))


def test_batch_norm_after_a_convolution_is_folded_into_it(tmp_path):
    net = Net(2, 10, 10)
    x = normalised(net, net.conv("x", 2, 4, [3, 3], pads=[1, 1, 1, 1]), 4)
    model = net.model(net.flat(x))
    assert [node.kind for node in from_onnx(model, 10, 10).nodes] == ["Conv", "Flatten"]
    assert worst_error(model, net.batch_of(2), tmp_path, ["2x2", "1"]) <= 5e-6


def test_batch_norm_that_cannot_be_folded_is_tiled(tmp_path):
    net = Net(2, 10, 10)
    x = normalised(net, net.op("MaxPool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), 2)
    model = net.model(net.flat(x))
    assert "BatchNormalization" in [node.kind for node in from_onnx(model, 10, 10).nodes]
    assert worst_error(model, net.batch_of(2), tmp_path, ["3x3", "1"]) <= EXACT


@pytest.mark.parametrize("grid", ["2x2", "3x3"])
def test_a_residual_is_cropped_to_the_region_of_its_other_branch(tmp_path, grid):
    net = Net(3, 16, 13)
    base = net.conv("x", 3, 4, [3, 3], pads=[1, 1, 1, 1])
    inner = net.conv(net.conv(base, 4, 4, [5, 5], pads=[2, 2, 2, 2]), 4, 4, [3, 3], pads=[1, 1, 1, 1])
    joined = net.op("Relu", net.op("Add", inner, base))
    again = net.op("Concat", joined, net.op("AveragePool", joined, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), axis=-3)
    model = net.model(net.flat(net.op("Mul", again, again)))
    plan = cut(model, (16, 13), tmp_path, [grid, "1"])
    batch = net.batch_of(2)
    assert relative_error(run_tiles(plan, tmp_path, batch), unsplit(model, batch)) <= EXACT


@one_each(
    "grid",
    ["2x2", "3x2"],
    ("shape", [(4, 1, 1), (1,), (), (9, 9), (4, 9, 9), (9,), (9, 1), (4, 1, 9), (1, 4, 9, 1)]),
    ("kind", ["Add", "Mul", "PRelu"]),
)
def test_a_constant_that_varies_over_the_map_is_sliced_with_it(tmp_path, kind, shape, grid):
    net = Net(3, 9, 9)
    x = net.op(kind, net.conv("x", 3, 4, [3, 3], pads=[1, 1, 1, 1]), net.constant(net.floats(*shape)))
    model = net.model(net.flat(x))
    graph = from_onnx(model, 9, 9)
    assert all(operators.tileable(graph, node) for node in graph.nodes if node.kind == kind)
    assert worst_error(model, net.batch_of(2), tmp_path, [grid, "1"], cuts=(x,)) <= EXACT


@pytest.mark.exact
def test_a_map_that_a_constant_stretches_is_exact(tmp_path):
    net = Net(3, 1, 9)
    x = net.op("Add", "x", net.constant(net.floats(3, 4, 9)))
    model = net.model(net.flat(net.op("Relu", net.conv(x, 3, 2, [3, 3], pads=[1, 1, 1, 1]))))
    assert worst_error(model, net.batch_of(2), tmp_path, ["2x2", "1"]) <= EXACT


@pytest.mark.exact
def test_squeeze_and_excite_ends_the_tiled_part_and_is_exact(tmp_path):
    net = Net(3, 12, 12)
    x = net.conv("x", 3, 4, [3, 3], pads=[1, 1, 1, 1])
    gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", x), 4, 4, [1, 1]))
    model = net.model(net.flat(net.op("Mul", x, gate)))
    assert worst_error(model, net.batch_of(2), tmp_path, "2x2") <= EXACT


@pytest.mark.exact
def test_a_convolution_over_channels_is_exact(tmp_path):
    """Efficient channel attention: one axis, so one stride."""
    net = Net(3, 12, 12)
    x = net.conv("x", 3, 8, [3, 3], pads=[1, 1, 1, 1])
    gate = net.op("Reshape", net.op("GlobalAveragePool", x), net.constant(np.array([0, 1, 8])))
    gate = net.op("Conv", gate, net.constant(net.floats(1, 1, 3)), kernel_shape=[3], pads=[1, 1], strides=[1])
    gate = net.op("Reshape", net.op("Sigmoid", gate), net.constant(np.array([0, 8, 1, 1])))
    model = net.model(net.flat(net.op("Mul", x, gate)))
    assert worst_error(model, net.batch_of(2), tmp_path, "2x2") <= EXACT


def test_tensors_may_be_named_input_or_output(tmp_path):
    net = Net(2, 9, 9)
    weight = net.constant(net.floats(2, 2, 3, 3), "output")
    x = net.op("Conv", "x", weight, output="input", kernel_shape=[3, 3])
    x = net.op("Sigmoid", net.conv(x, 2, 2, [2, 2]))
    model = net.model(net.flat(x))
    assert worst_error(model, net.batch_of(2), tmp_path, "2x2") <= EXACT


@pytest.mark.filterwarnings("ignore::serfer.core.errors.PlanWarning")  # of cuts without a map to spread
def test_a_stage_never_ends_in_a_tensor_that_is_neither_map_nor_vector(tmp_path):
    net = Net(3, 8, 8)
    x = net.conv("x", 3, 4, [3, 3], pads=[1, 1, 1, 1])
    x = net.op("Reshape", x, net.constant(np.array([0, 4, 64])))
    x = net.op("Softmax", x, axis=2)
    x = net.op("ReduceSum", x, net.constant(np.array([1])), keepdims=0)
    model = net.model(net.linear(x, 64, 5))
    for stages in range(1, len(cut_points(from_onnx(model, 8, 8)))):
        assert worst_error(model, net.batch_of(2), tmp_path / str(stages), "2x2", stages) <= EXACT


@pytest.mark.exact
def test_an_operator_with_two_outputs_is_exact(tmp_path):
    net = Net(4, 8, 8)
    x = net.conv("x", 4, 6, [3, 3], pads=[1, 1, 1, 1])
    net.op("Split", x, output="left", axis=1, num_outputs=2)
    net.nodes[-1].output.append("right")
    x = net.op("Concat", "right", net.op("Sigmoid", "left"), axis=1)
    assert worst_error(net.model(net.flat(x)), net.batch_of(2), tmp_path, "2x2") <= EXACT


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_a_window_that_ceil_mode_would_start_past_the_map_is_left_out(tmp_path, kind):
    net = Net(1, 8, 8)
    x = net.op(kind, "x", kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1)
    assert worst_error(net.model(net.flat(x)), net.batch_of(2), tmp_path, ["2x2", "1"]) <= EXACT


@one_each(
    "grid",
    GRIDS,
    ("include", [0, 1]),
    (("kernel", "pads"), [([1, 2], [0, 0, 0, 0]), ([1, 3], [0, 1, 0, 1]), ([1, 2], [0, 1, 0, 0])]),
)
def test_a_mean_that_ceil_mode_ends_differently_in_each_direction(tmp_path, grid, include, kernel, pads):
    net = Net(1, 8, 7)
    x = net.op(
        "AveragePool", "x", kernel_shape=kernel, strides=[2, 2], pads=pads, ceil_mode=1, count_include_pad=include
    )
    batch = net.batch_of(2)
    model = net.model(net.flat(x))
    assert relative_error(tiled(net, x, batch, tmp_path, grid), unsplit(model, batch)) <= EXACT


def test_a_second_output_without_a_rule_is_refused():
    net = Net(1, 8, 8)
    net.op("MaxPool", "x", output="top", kernel_shape=[2, 2])
    net.nodes[-1].output.append("where")
    x = net.op("Cast", "where", to=1)
    with pytest.raises(ModelError, match="second output"):
        from_onnx(net.model(net.flat(x)), 8, 8)


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
