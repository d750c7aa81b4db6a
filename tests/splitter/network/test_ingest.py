"""Operators that cannot be spread run in one task; operators that cannot run at all are refused by name."""

import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from serfer.core.errors import ModelError
from serfer.core.exactness import relative_error
from serfer.splitter.network.source import load
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.from_onnx import from_onnx
from tests.splitter.models import Net, cut, of, run_tiles, saved, split_error, unsplit, worst_error

EXACT = 2e-6
SIZE = (8, 10)


def network(channels=4):
    net = Net(3, *SIZE)
    return net, net.op("Relu", net.conv("x", 3, channels, 3))


def attention(net, x):
    flat = net.op("Reshape", x, [0, 4, -1])
    weights = net.op("Softmax", net.op("MatMul", net.op("Transpose", flat, perm=[0, 2, 1]), flat), axis=-1)
    mixed = net.op("MatMul", flat, net.op("Transpose", weights, perm=[0, 2, 1]))
    return net.op("Add", net.op("Reshape", mixed, [0, 4, *SIZE]), x)


def group_normalised(net, x):
    groups = net.op("Reshape", x, [0, 2, -1])
    groups = net.op("InstanceNormalization", groups, np.ones(2), np.zeros(2))
    return net.op("Mul", net.op("Reshape", groups, [0, 4, *SIZE]), net.floats(4, 1, 1))


def gates_of_rows_and_columns(net, x):
    """Coordinate attention."""
    rows, cols = (net.op("Sigmoid", net.op("ReduceMean", x, [axis])) for axis in (3, 2))
    return net.op("Mul", net.op("Mul", x, rows), cols)


def windows(net, x):
    parts = net.op("Transpose", net.op("Reshape", x, [0, 4, 4, 2, 5, 2]), perm=[0, 2, 4, 3, 5, 1])
    parts = net.op("LayerNormalization", parts, net.floats(4), axis=-1)
    return net.op("Reshape", net.op("Transpose", parts, perm=[0, 5, 1, 3, 2, 4]), [0, 4, *SIZE])


ONE_TASK = [
    lambda net, x: net.op("InstanceNormalization", x, net.floats(4), net.floats(4)),
    lambda net, x: net.op("Softmax", x, axis=-1),
    lambda net, x: net.op("Einsum", x, net.floats(4, 4), equation="nchw,cd->ndhw"),
    lambda net, x: net.op("LpPool", x, kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1], p=2),
    lambda net, x: net.op("CumSum", x, 2),
    *(group_normalised, attention, gates_of_rows_and_columns, windows),
]


@pytest.mark.parametrize("form", ONE_TASK)
def test_operators_that_cannot_be_spread_form_a_stage_of_one_task(form, tmp_path):
    net, x = network()
    y = net.op("Relu", net.conv(form(net, x), 4, 4, 3))
    model, batch = net.model(net.linear(net.flat(y), 4 * int(np.prod(SIZE)), 5)), net.batch_of(2)
    graph = from_onnx(model, *SIZE)
    assert not all(operators.tileable(graph, node) for node in graph.nodes[:-2])
    plan = cut(model, SIZE, tmp_path, "2x2")
    assert str(plan.stages[0].grid) == "2x2"
    expected = unsplit(model, batch)
    assert np.ptp(expected) > 0
    assert relative_error(run_tiles(plan, tmp_path, batch), expected) <= EXACT


def test_computed_constants_are_folded_and_what_is_not_float32_or_not_used_stays_inside_a_stage(tmp_path):
    net, x = network()
    x = net.op("Where", net.op("Greater", x, 0.3), x, net.op("Neg", x))
    x = net.op("Conv", x, net.op("Abs", net.floats(4, 4, 3, 3)), pads=[1, 1, 1, 1])
    net.op("MaxPool", x, output="top", others=["where"], kernel_shape=[2, 2])
    assert split_error(net, net.flat("top"), tmp_path, ["2x2", "2x2", "1"]) <= EXACT


def test_a_constant_whose_size_is_computed_is_folded(tmp_path):
    """A token that is repeated for each image and stands before its positions, as torch's exporter writes it."""
    net = Net(3, *SIZE, opset=14)
    positions = net.op("Transpose", net.op("Reshape", net.conv("x", 3, 4, 3), [0, 4, -1]), perm=[0, 2, 1])
    sizes = net.op("Concat", net.op("Gather", net.op("Shape", "x"), [0]), [-1], [-1], axis=0)
    value = helper.make_tensor("value", TensorProto.INT64, [1], [1])
    ones = net.op("ConstantOfShape", net.op("Shape", sizes), value=value)
    sizes = net.op("Where", net.op("Equal", sizes, net.op("Mul", ones, -1)), ones, sizes)
    rows = net.op("Concat", net.op("Expand", net.floats(1, 1, 4), sizes), positions, axis=1)
    classes = net.linear(net.flat(rows), 4 * (1 + int(np.prod(SIZE))), 5)
    assert split_error(net, classes, tmp_path, ["1"]) <= EXACT


def refused(net, output, *words, **options):
    with pytest.raises(ModelError) as refusal:
        net.graph(output, **options)
    message = str(refusal.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def branch_of_the_data(net, x):
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    branches = [
        helper.make_graph([helper.make_node(kind, [x], ["y"])], kind, [], [value]) for kind in ("Relu", "Sigmoid")
    ]
    condition = net.op("Greater", net.op("ReduceSum", x, keepdims=0), 0.0)
    return net.op("If", condition, then_branch=branches[0], else_branch=branches[1])


def sequences(net, x):
    both = net.op("SequenceInsert", net.op("SequenceConstruct", x, x), net.op("Relu", x))
    return net.op("ConcatFromSequence", both, axis=1)


NO_ROOM = ("(Conv)", "does not fit into a map of 8 x 10")
MIXED = ("mixes the images of a batch",)
REFUSED = [
    *(
        (lambda net, x, kind=kind: net.op("Add", x, net.op(kind, x)), (f"({kind})", "random", "evaluation mode"))
        for kind in ("RandomNormalLike", "RandomUniformLike", "Bernoulli")
    ),
    (lambda net, x: net.op("Add", x, net.op("RandomNormal", shape=[1, 4, *SIZE])), ("(RandomNormal)", "random")),
    (of("Dropout", 0.5, np.ones((), bool)), ("(Dropout)", "eval()")),
    (
        of("BatchNormalization", *np.ones((4, 4), np.float32), others=["mean", "variance"], training_mode=1),
        ("(BatchNormalization)", "training mode", "eval()"),
    ),
    (branch_of_the_data, ("(If)", "depend")),
    (sequences, ("(Sequence", "plain tensors")),
    # windows that leave no rows, -1, fewer
    *((lambda net, x, rows=rows: net.conv(x, 4, 4, [rows, 3]), NO_ROOM) for rows in (9, 10, 17)),
    (lambda net, x: net.op("Cast", net.op("NonZero", x), to=TensorProto.FLOAT), ("(NonZero)", "depends on the data")),
    (lambda net, x: net.op("Concat", x, x, axis=0), MIXED),
    (of("Concat", np.ones((1, 4, *SIZE), np.float32), axis=0), ("(Concat)", *MIXED)),
    (of("ReduceMean", [0]), MIXED),
    (lambda net, x: net.op("Mul", x, net.op("ReduceMax", x, keepdims=0)), MIXED),
    (of("Softmax", axis=0), MIXED),
    (of("Gather", [0], axis=0), MIXED),
    (
        of("Transpose", perm=[1, 0, 2, 3]),
        ("(Transpose)", "moves the images", "(N, heads, positions, features)", "torch.where"),
    ),
    (of("Reshape", [4, 1, *SIZE]), ("(Reshape)", "folds another axis into that of the images", "(N, windows, ...)")),
]


@pytest.mark.parametrize(("form", "words"), REFUSED)
def test_operators_that_cannot_run_or_that_mix_images_are_refused_by_name(form, words):
    net, x = network()
    refused(net, net.op("Reshape", net.op("Sigmoid", form(net, x)), [1, -1]), *words)


@pytest.mark.parametrize(
    ("kind", "domain", "words"),
    [
        ("Magic", "my.domain", ("'spell' (Magic)", "my.domain")),
        ("Frobnicate", "", ("Frobnicate",)),
        ("Cast", "", ("is DOUBLE", "float32")),
    ],
)
def test_operators_and_outputs_that_onnx_or_plans_lack_are_refused(kind, domain, words, monkeypatch):
    monkeypatch.setattr(onnx.checker, "check_model", lambda _: None)
    net, x = network()
    more, dtype = ({"to": TensorProto.DOUBLE}, TensorProto.DOUBLE) if kind == "Cast" else ({}, TensorProto.FLOAT)
    x = net.op(kind, x, output="spell", domain=domain, **more)
    refused(net, (net.flat(x), dtype, 2), *words, domains=[domain] if domain else [])


@pytest.mark.parametrize("order", ["cx", "xc", "cxc", "xcx", "ccxxc"])
def test_constants_joined_to_maps_are_repeated_for_each_image(order, tmp_path):
    """CoordConv's, say."""
    net, x = network()
    parts = [x if part == "x" else net.floats(1, 2, *SIZE) for part in order]
    channels = 4 * order.count("x") + 2 * order.count("c")
    x = net.conv(net.op("Concat", *parts, axis=1), channels, 4, 3)
    tokens = net.op("Transpose", net.op("Reshape", x, [0, 4, -1]), perm=[0, 2, 1])
    tokens = net.op("Concat", net.floats(1, 1, 4), tokens, axis=-2)  # a class token
    output = net.flat(tokens)
    graph = net.graph(output)
    assert all(operators.tileable(graph, node) for node in graph.nodes if len(graph.shapes[node.output]) == 4)
    assert split_error(net, output, tmp_path, ["2x2", "1"]) <= EXACT


@pytest.mark.parametrize("used", [False, True])
def test_second_outputs_are_refused_only_if_used(tmp_path, used):
    net, x = network()
    net.op("LayerNormalization", x, net.floats(*SIZE[1:]), output="top", others=["mean"], axis=-1)
    x = net.op("Add", "top", "mean") if used else "top"
    if used:
        refused(net, net.flat(x), "'top' (LayerNormalization)", "'mean'")
    else:
        assert split_error(net, net.flat(x), tmp_path, "2x2") <= EXACT


def test_a_second_output_without_a_rule_is_refused():
    net, x = network()
    net.op("MaxPool", x, output="top", others=["where"], kernel_shape=[2, 2])
    refused(net, net.flat(net.op("Cast", "where", to=1)), "'top' (MaxPool)", "second output 'where'")


def test_a_slice_that_keeps_all_images_is_removed():
    net, x = network()
    x = net.op("Slice", x, [0], [2**63 - 1], [0])
    graph = net.graph(net.flat(x))
    assert [node.kind for node in graph.nodes] == ["Conv", "Relu", "Flatten"]


def test_operators_with_the_same_name_are_renamed():
    net, x = network()
    net.flat(net.op("Sigmoid", net.op("Tanh", x)))
    for node in net.nodes:
        node.name = "same"
    graph = net.graph(net.nodes[-1].output[0])
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)


SMALL = (12, 12)


def of_opset(opset):
    """Operators that every opset has in one form: no axes, no limits, no sizes as inputs."""
    net = Net(3, *SMALL, opset=opset)
    x = net.conv("x", 3, 8, 3)
    x = net.op("Relu", net.op("BatchNormalization", x, *np.abs(net.floats(4, 8)) + 0.1))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = net.op("Add", x, net.op("Sigmoid", net.conv(x, 8, 8, 3, groups=8)))
    x = net.flat(net.op("GlobalAveragePool", net.op("Concat", x, x, axis=1)))
    return net, net.model(net.linear(x, 16, 5))


@pytest.mark.exact
@pytest.mark.parametrize("opset", range(9, 27))
def test_a_file_of_this_opset_is_split_exactly(opset, tmp_path):
    net, model = of_opset(opset)
    batch = net.batch_of(2)
    source, _ = load(saved(tmp_path, model), batch)
    assert worst_error(source.onnx, batch, tmp_path / "plan", ["2x2", "1"], expected=unsplit(model, batch)) <= 2e-6


MIB = 1024 * 1024


def torchscript_pads(net, left, right, top, bottom):
    """Write the amounts of F.pad as torch's older exporter does: last axis first, in pairs, turned round."""
    given = net.op("Constant", value=helper.make_tensor("pad", TensorProto.INT64, [4], [left, right, top, bottom]))
    zeros = net.op("ConstantOfShape", [4], value=helper.make_tensor("zero", TensorProto.INT64, [1], [0]))
    pairs = net.op("Reshape", net.op("Concat", given, zeros, axis=0), [-1, 2])
    turned = net.op("Slice", pairs, [-1], [np.iinfo(np.int64).min + 1], [0], [-1])
    flat = net.op("Reshape", net.op("Transpose", turned, perm=[1, 0]), [-1])
    return net.op("Cast", flat, to=TensorProto.INT64)


def test_padding_in_the_older_exporters_form_is_constant(tmp_path):
    net, x = network()
    x = net.op("Pad", x, torchscript_pads(net, 0, 1, 2, 0), 0.5, mode="constant")
    output = net.flat(net.conv(x, 4, 4, [3, 3], strides=[2, 2]))
    assert [node.kind for node in net.graph(output).nodes] == ["Conv", "Relu", "Pad", "Conv", "Flatten"]
    assert split_error(net, output, tmp_path, ["2x2", "1"]) <= EXACT


def many_large_ones(net):
    parts = [net.op("ConstantOfShape", [2 + index, 1 << 26]) for index in range(4)]
    return net.op("Sum", *(net.op("ReduceMax", part, [0, 1], keepdims=0) for part in parts))


TOO_LARGE = [
    lambda net: net.op("ConstantOfShape", [1 << 18, 1 << 18]),
    lambda net: net.op("Expand", 1.0, [1 << 18, 1 << 18]),
    lambda net: net.op("Range", 0.0, 2.0**36, 1.0),
    many_large_ones,
]


@pytest.mark.parametrize("form", TOO_LARGE)
def test_a_constant_larger_than_memory_is_refused(form):
    net, x = network()
    x = net.op("Add", x, net.op("ReduceMax", form(net), keepdims=0))
    output = net.flat(x)
    tracemalloc.start()
    with pytest.raises(ModelError, match="more than 2,147,483,648 bytes"):
        net.graph(output)
    assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    tracemalloc.stop()


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (1, 4)], ids=["map", "vector"])
def test_a_view_of_all_values_in_order_is_a_reshape(shape, tmp_path):
    """ConvNeXt's pooled features, as torch.export has them."""
    net, x = network()
    mean = net.op("Reshape", net.op("ReduceMean", x, [-1, -2]), [-1])
    other = net.op("Gather", mean, [[0, 2, 1, 3]], axis=0)
    with pytest.raises(ModelError, match=r"\(Reshape\).*images of a batch"):
        net.graph(net.linear(other, 4, 5))
    x = net.op("Gather", mean, np.arange(4).reshape(shape), axis=0)
    output = net.linear(net.op("Reshape", x, [1, 4]), 4, 5)
    assert split_error(net, output, tmp_path, ["2x2", "1"]) <= EXACT
    assert "Gather" not in {node.kind for node in net.graph(output).nodes}
