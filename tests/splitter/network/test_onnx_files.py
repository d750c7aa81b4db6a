"""Files that ONNX Runtime runs as they are are read by every command; the reference is ONNX Runtime on the file."""

import re
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from onnx import AttributeProto, helper, numpy_helper

import serfer
from serfer.core.errors import ModelError, PlanWarning
from serfer.pipeline.reference import unsplit
from serfer.splitter.network.onnx_models import session_of
from serfer.splitter.network.source import load
from serfer.splitter.plan_dir.emit import in_one_piece, input_name
from serfer.splitter.tiling.from_onnx import from_onnx
from tests.splitter.models import Net, saved
from tests.splitter.models import unsplit as unoptimized

MAP = ("N", 4, "H", "W")
SIZE = 24, 20


def network(opset=17, act=("Relu", "")):
    """A convolution and an operator of a domain, on images of any size."""
    net = Net(3, "H", "W", opset=opset)
    x = net.conv("x", 3, 4, 3, pads=[1] * 4)
    net.nodes.append(helper.make_node(act[0], [x], ["y"], domain=act[1]))
    return net.model("y", dims=MAP, domains=[act[1]] if act[1] else [])


def pruned(tensor, *, by_axes=False):
    """Return an initializer as a sparse one, by places in the flat array or by an index for each axis."""
    value = numpy_helper.to_array(tensor)
    value = np.where(np.abs(value) < np.median(np.abs(value)), 0, value)
    places = np.argwhere(value) if by_axes else np.flatnonzero(value)
    sparse = onnx.SparseTensorProto(dims=value.shape)
    sparse.values.CopyFrom(numpy_helper.from_array(value[value != 0], tensor.name))
    sparse.indices.CopyFrom(numpy_helper.from_array(places.astype(np.int64), "places"))
    return sparse


def sparse_initializers(*, by_axes):
    model = network()
    for tensor in model.graph.initializer:
        model.graph.sparse_initializer.add().CopyFrom(pruned(tensor, by_axes=by_axes))
    del model.graph.initializer[:]
    return model


def sparse_constant():
    model = network()
    constant = onnx.NodeProto(op_type="Constant", output=[model.graph.initializer[0].name])
    attribute = constant.attribute.add(name="sparse_value", type=AttributeProto.SPARSE_TENSOR)
    attribute.sparse_tensor.CopyFrom(pruned(model.graph.initializer[0]))
    model.graph.node.insert(0, constant)
    del model.graph.initializer[0]
    return model


def functions(opset, inside=None):
    model = network(opset, act=("Swish", "own"))
    inner = [helper.make_node("LeakyRelu", ["i"], ["o"])]
    inner[0].attribute.add(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="slope")
    outer = [
        helper.make_node("Sigmoid", ["i"], ["s"]),
        helper.make_node("Mul", ["i", "s"], ["m"]),
        helper.make_node("Leaky", ["m"], ["o"], domain="own", slope=0.25),
    ]
    plain, own = helper.make_opsetid("", inside or opset), helper.make_opsetid("own", 1)
    model.functions.append(helper.make_function("own", "Leaky", ["i"], ["o"], inner, [plain], ["slope"]))
    model.functions.append(helper.make_function("own", "Swish", ["i"], ["o"], outer, [plain, own]))
    return model


def named_domain(*, of_import):
    model = network()
    if of_import:
        model.opset_import[0].domain = "ai.onnx"
    else:
        model.graph.node[0].domain = "ai.onnx"
    return model


def changed(**fields):
    """Return a network whose weights are no inputs with other values of a model's fields."""
    model = network()
    for name, value in fields.items():
        setattr(model, name, value)
    return model


def bare():
    model = network()
    model.graph.ClearField("name")
    model.graph.output[0].ClearField("type")
    return model


FILES = {
    "sparse initializers": lambda: sparse_initializers(by_axes=False),
    "sparse initializers, by axes": lambda: sparse_initializers(by_axes=True),
    "sparse Constant": sparse_constant,
    "functions of opset 13": lambda: functions(13),
    "functions of opset 20": lambda: functions(20),
    "functions of another opset": lambda: functions(17, inside=13),
    "import of ai.onnx": lambda: named_domain(of_import=True),
    "node of ai.onnx": lambda: named_domain(of_import=False),
    "IR 3": lambda: changed(ir_version=3),
    "IR 2": lambda: changed(ir_version=2),
    "no name, no type": bare,
}


@pytest.mark.exact
@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_file_that_onnx_runtime_runs_is_taken_by_all_commands(make, tmp_path):
    """Plans are compared with ONNX Runtime's answer of the file before they appear."""
    path = saved(tmp_path, make())
    image = np.random.default_rng(0).standard_normal((1, 3, *SIZE), dtype=np.float32)
    assert len(serfer.split(path, image, tmp_path / "plan", grids=(2, 2)).stages[0].tiles) == 4
    serfer.whole_plan(path, image, tmp_path / "whole")
    serfer.map_plan(path, [SIZE], tmp_path / "map", window=16)


OTHER_SIZES = {
    "rounded up": ("Resize", ["", np.array([1, 1, 1.3, 1.3], np.float32)], {"mode": "linear"}),
    "rounded up, nearest": ("Resize", ["", np.array([1, 1, 1.15, 1.3], np.float32)], {"mode": "nearest"}),
    **{
        f"dilated {kind}": (kind, [], {"kernel_shape": [3, 2], "dilations": [2, 3], "auto_pad": "SAME_LOWER"})
        for kind in ("AveragePool", "LpPool", "MaxPool")
    },
}
"""What ONNX Runtime makes another size of than ONNX infers: kind, constants and attributes."""


@pytest.mark.exact
@pytest.mark.parametrize(("kind", "constants", "attributes"), OTHER_SIZES.values(), ids=OTHER_SIZES)
def test_size_that_onnx_infers_otherwise_is_onnx_runtimes(kind, constants, attributes, tmp_path):
    net = Net(3, 24, 20)
    path = net.save(tmp_path, net.op(kind, net.conv("x", 3, 4, 3), *constants, **attributes), dims=MAP)
    source, example = load(path, None)
    for plan in (
        serfer.split(path, out=tmp_path / "plan", grids=(2, 2)),
        serfer.whole_plan(path, out=tmp_path / "whole"),
    ):
        assert plan.output.of(plan.output.whole, 1) == source.run(example).shape


@pytest.mark.parametrize("versions", [(26, 13), (27, 13), (28, 14), (29, 14), (28, 15), (99, 99)])
def test_file_newer_than_onnx_runtime_or_onnx_reads_is_refused_with_the_remedy(versions, tmp_path):
    """Which versions these are is the installed ONNX Runtime's matter."""
    model = network(20)
    model.opset_import[0].version, model.ir_version = versions
    path = saved(tmp_path, model)
    try:
        onnxruntime.InferenceSession(path)
    except Exception:  # noqa: BLE001 - it has a class for each status
        with pytest.raises(ModelError, match="export it with opset 20"):
            load(path, np.zeros((1, 3, *SIZE), np.float32))
    else:
        assert load(path, np.zeros((1, 3, *SIZE), np.float32))


@pytest.mark.parametrize("kind", ["AveragePool", "MaxPool"])
def test_pool_larger_than_its_map_is_refused_by_name(kind, tmp_path):
    """ONNX Runtime 1.32 ends the process at one of whole blocks of channels."""
    net = Net(3, "H", "W", opset=20)
    path = net.save(tmp_path, net.op(kind, net.conv("x", 3, 64, 3), kernel_shape=[9, 9]), dims=("N", 64, "H", "W"))
    image, out = np.zeros((1, 3, 24, 1), np.float32), tmp_path / "plan"
    for make, shown in ((serfer.split, image), (serfer.whole_plan, image), (serfer.map_plan, [(24, 1)])):
        with pytest.raises(ModelError, match=rf"\({kind}\).* does not fit into a map of 24 x 1"):
            make(path, shown, out=out)


def test_file_with_operators_of_one_processor_is_warned_of(tmp_path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    onnxruntime.InferenceSession(network(20).SerializeToString(), options)
    model = onnx.load(tmp_path / "saved.onnx")
    model.graph.node[0].domain = "com.microsoft.nchwc"  # as it is where channels fill a block
    with pytest.warns(PlanWarning, match="one kind of processor"):
        load(saved(tmp_path, model), np.zeros((1, 3, *SIZE), np.float32))


@pytest.mark.exact
def test_zeros_around_negative_values_are_a_maximum_at_the_edge(tmp_path):
    """ONNX Runtime below 1.32 merges the Pad into the MaxPool, whose own padding is never the largest value."""
    net = Net(3, 24, 20)
    x = net.op("Pad", net.op("Neg", net.op("Abs", "x")), np.array([0, 0, 1, 1] * 2))
    path = net.save(tmp_path, net.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1]), dims=("N", 3, "H", "W"))
    image = net.batch_of(1)
    padded = np.pad(-np.abs(image), [(0, 0), (0, 0), (1, 1), (1, 1)])
    expected = sliding_window_view(padded, (3, 3), (2, 3)).max((-2, -1))
    for make in (serfer.split, serfer.whole_plan):
        folder = tmp_path / make.__name__
        whole = unsplit(make(path, image, folder), folder)
        with serfer.open(folder, workers="inprocess") as pipeline:
            for answer in (pipeline.run(image), whole(image), load(path, image)[0].run(image)):
                np.testing.assert_array_equal(answer, expected)


BETWEEN_TRANSPOSES = {
    "Pad": ([np.array([1, 2, 3, 0]), "", np.array([2, 3])], {}),
    "Pad, all axes": ([np.array([0, 0, 1, 0, 0, 0, 0, 1]), "", np.array([0, 1, 3, 2])], {}),
    "Resize by scales": (["", np.array([2, 1.5], np.float32)], {"axes": [3, 2], "mode": "linear"}),
    "Resize to sizes": (["", "", np.array([31, 40])], {"axes": [2, 3]}),
    "Resize, cubic": (["", np.array([1, 1, 0.5, 0.5], np.float32)], {"mode": "cubic"}),
    "CenterCropPad": ([np.array([28, 16])], {"axes": [2, 3]}),
}


@pytest.mark.exact
@pytest.mark.parametrize(("kind", "given"), BETWEEN_TRANSPOSES.items(), ids=BETWEEN_TRANSPOSES)
def test_operator_past_which_onnx_runtime_moves_a_transpose_is_computed_as_it_is_written(kind, given, tmp_path):
    """ONNX Runtime 1.32 refuses all of them but one, whose shape it gets wrong, unless optimisation is off."""
    net = Net(3, 24, 20, opset=20)

    def normalized(x):
        last = net.op("LayerNormalization", net.op("Transpose", x, perm=[0, 2, 3, 1]), np.ones(4, np.float32))
        return net.op("Transpose", last, perm=[0, 3, 1, 2])

    x = normalized(net.conv("x", 3, 4, 3))
    x = net.op("Relu", normalized(net.op(re.match(r"\w+", kind)[0], x, *given[0], **given[1])))
    path, image = net.save(tmp_path, x, dims=MAP), net.batch_of(1)
    expected = unoptimized(onnx.load(path), image)
    for make in (serfer.split, serfer.whole_plan):
        make(path, image, tmp_path / make.__name__)
        with serfer.open(tmp_path / make.__name__, workers="inprocess") as pipeline:
            np.testing.assert_allclose(pipeline.run(image), expected, atol=1e-5)


@pytest.mark.exact
@settings(max_examples=25, deadline=None)
@given(
    opset=st.sampled_from([9, 10]),
    mode=st.sampled_from(["nearest", "linear"]),
    down=st.booleans(),
    factors=st.tuples(*[st.sampled_from([1, 1.01, 1.3, 1.5, 2, 3])] * 2),
)
def test_resizing_of_opsets_9_and_10_is_read_as_onnx_runtime_runs_it(opset, mode, down, factors):
    scales = [1 / factor if down and opset == 10 else factor for factor in factors]
    net = Net(2, 12, 10, opset=opset)
    x = net.op("Resize" if opset == 10 else "Upsample", "x", np.array([1, 1, *scales], np.float32), mode=mode)
    with tempfile.TemporaryDirectory() as folder:
        path = net.save(Path(folder), net.op("Relu", x), dims=("N", 2, "H", "W"))
        source, example = load(path, None)
        expected = source.run(example)
    graph = in_one_piece(from_onnx(source.onnx, 12, 10))
    answer = session_of(graph.model({})).run(None, {input_name(0): example})[0]
    np.testing.assert_allclose(answer, expected, atol=1e-6)
