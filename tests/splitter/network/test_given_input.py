"""Inputs as frameworks have them: every form of a file's input gives the answers that the file itself gives."""

import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import serfer
from serfer.core.errors import ModelError, PlanError
from serfer.core.exactness import relative_error
from serfer.splitter.network.source import load
from serfer.splitter.plan_dir.check import whole_runner
from serfer.splitter.tiling.from_onnx import from_onnx
from tests.splitter.models import Net, saved

SIZE = (12, 10)
FORMS = {"NCHW": (3, *SIZE), "NHWC": (*SIZE, 3), "CHW": (3, *SIZE), "HWC": (*SIZE, 3)}
NUMBERS = ("uint8", "int8", "uint16", "int32", "int64", "float64", "float32")


def save(net, output, directory, dtype, shape, name="x", made=None, gives="float32"):
    """Write a network whose input has another type or shape than Net's."""
    model = net.model(output, name=name, dims=made or ("N", "K"))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info(name, kind, shape))
    model.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(gives))
    onnx.checker.check_model(model, full_check=True)
    return saved(directory, model)


def framework_network(axes, dtype, batch, scaled):
    """Write a network as exporters do: a cast, a scale, a transpose, an Unsqueeze where images have no axis."""
    net = Net(3, *SIZE)
    x = "x" if dtype == "float32" else net.op("Cast", "x", to=onnx.TensorProto.FLOAT)
    if scaled:
        shape = (3,) if axes.endswith("C") else (3, 1, 1)
        x = net.op("Mul", x, np.full(shape, 1 / 64, np.float32))
    if axes.endswith("C"):
        x = net.op("Transpose", x, perm=[0, 3, 1, 2] if len(axes) == 4 else [2, 0, 1])
    if len(axes) == 3:
        x = net.op("Unsqueeze", x, [0])
    x = net.op("Relu", net.conv(x, 3, 4, 3, strides=[2, 2]))
    x = net.op("Reshape", x, [batch or -1, 4 * 6 * 5])
    x = net.linear(x, 120, 5)
    return net, net.op("Squeeze", x, [0]) if len(axes) == 3 else x


def as_given(images, axes):
    images = images.transpose(0, 2, 3, 1) if axes.endswith("C") else images
    return images if len(axes) == 4 else images[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("given")


@given(
    axes=st.sampled_from(list(FORMS)),
    dtype=st.sampled_from(NUMBERS),
    batch=st.sampled_from([None, 1, 3]),
    scaled=st.booleans(),
)
def test_any_form_of_the_input_gives_what_the_file_gives(folder, axes, dtype, batch, scaled):
    batch = None if len(axes) == 3 else batch
    net, output = framework_network(axes, dtype, batch, scaled)
    shape = FORMS[axes] if len(axes) == 3 else (batch or "N", *FORMS[axes])
    path = save(net, output, folder, dtype, shape, made=(5,) if len(axes) == 3 else (batch or "N", 5))
    source, example = load(path, None)
    assert example.shape == (1, 3, *SIZE)
    images = source.like_images(net.batch_of(2))
    session = ort.InferenceSession(path)
    expected = np.concatenate(
        [
            session.run(None, {"x": as_given(np.repeat(image[None], batch or 1, 0), axes).astype(dtype)})[0].reshape(
                batch or 1, 5
            )[:1]
            for image in images
        ]
    )
    assert relative_error(source.run(images), expected) < 1e-6
    graph = from_onnx(source.onnx, *SIZE)
    assert not {node.kind for node in graph.nodes} & {"Cast", "Squeeze", "Unsqueeze"}
    assert relative_error(whole_runner(graph)(images), expected) < 1e-5


def test_a_network_of_one_image_with_its_pre_and_postprocessing(tmp_path):
    net = Net(3, *SIZE)
    x = net.op("Div", net.op("Cast", "x", to=onnx.TensorProto.FLOAT), 255.0)
    x = net.op("Unsqueeze", net.op("Transpose", x, perm=[2, 0, 1]), [0])
    scores = net.conv(x, 3, 4, 3)
    mask = net.op("Squeeze", net.op("ArgMax", scores, axis=1, keepdims=0), [0])
    mask = net.op("Cast", mask, to=onnx.TensorProto.UINT8)
    path = save(net, mask, tmp_path, "uint8", (*SIZE, 3), made=SIZE, gives="uint8")
    plan = serfer.split(path, out=tmp_path / "plan", grids=(2, 2))
    assert plan.outputs[0].dims == SIZE
    assert len(plan.stages[0].tiles) == 4


@pytest.mark.parametrize(
    ("kind", "shape", "target"),
    [
        ("Reshape", (*SIZE, 1), [-1, 1, *SIZE]),
        ("Unsqueeze", SIZE, [1]),
        ("Unsqueeze", SIZE, [3]),
        ("Reshape", SIZE, [-1, 1, *SIZE]),
    ],
)
def test_grey_images(kind, shape, target, tmp_path):
    net = Net(1, *SIZE)
    x = net.op(kind, "x", target)
    x = net.op("Transpose", x, perm=[0, 3, 1, 2]) if target == [3] else x
    path = save(net, net.linear(net.flat(net.conv(x, 1, 2, [3, 3])), 160, 5), tmp_path, "float32", ("N", *shape))
    source, example = load(path, None)
    graph = from_onnx(source.onnx, *SIZE)
    assert example.shape == (1, 1, *SIZE)
    images = net.batch_of(2)
    assert relative_error(whole_runner(graph)(images), source.run(images)) < 1e-6
    assert graph.nodes[0].kind == "Conv" or len(shape) == 2


def test_an_example_may_have_the_files_own_form(tmp_path):
    for axes, shape in FORMS.items():
        net, output = framework_network(axes, "uint8", None, scaled=False)
        made, batch = (("N", 5), ("N",)) if len(axes) == 4 else ((5,), ())
        path = save(net, output, tmp_path, "uint8", (*batch, *shape), made=made)
        images = net.random.integers(0, 256, (1, 3, *SIZE)).astype(np.uint8)
        assert np.array_equal(load(path, as_given(images, axes))[1], images)


@pytest.mark.slow
def test_maps_of_a_network_of_whole_numbers_with_its_channels_last(tmp_path):
    net = Net(3, *SIZE)
    x = net.op("Transpose", net.op("Cast", "x", to=onnx.TensorProto.FLOAT), perm=[0, 3, 1, 2])
    x = net.conv(x, 3, 2, 3, strides=[2, 2])
    path = save(net, x, tmp_path, "uint8", ("N", "H", "W", 3), made=("N", "C", "H", "W"))
    assert serfer.map_plan(path, [(700, 641), (400, 300)], tmp_path / "plan").windows


def test_an_operator_on_whole_numbers_gets_them(tmp_path):
    net = Net(3, *SIZE)
    x = net.op("Mod", "x", np.array(7, np.uint8))
    x = net.op("Cast", x, to=onnx.TensorProto.FLOAT)
    path = save(net, net.linear(net.flat(x), 360, 5), tmp_path, "uint8", ("N", 3, *SIZE))
    source, _ = load(path, None)
    images = np.concatenate([source.like_images(net.batch_of(2)), net.batch_of(1) * 300])
    graph = from_onnx(source.onnx, *SIZE)
    assert relative_error(whole_runner(graph)(images), source.run(images)) < 1e-6


def test_channels_are_told_from_the_operators_and_then_from_their_number(tmp_path):
    net = Net(3, *SIZE)
    path = save(net, net.linear(net.flat("x"), 360, 5), tmp_path, "float32", ("N", *SIZE, 3))
    assert load(path, None)[1].shape == (1, 3, *SIZE)
    net = Net(12, 10, 3)
    path = save(net, net.flat(net.conv("x", 12, 2, [3, 3])), tmp_path, "float32", ("N", 12, 10, 3))
    assert load(path, None)[1].shape == (1, 12, 10, 3)
    net = Net(3, 12, 10)
    x = net.op("Transpose", "x", perm=[0, 3, 1, 2])
    path = save(net, net.flat(x), tmp_path, "float32", ("N", 3, 12, 10))
    assert load(path, None)[1].shape == (1, 3, 12, 10)


def refusal(path, example=None):
    with pytest.raises(ModelError) as caught:
        load(path, example)
    return str(caught.value)


def test_what_is_not_one_image_is_refused_with_its_reason(tmp_path):
    net = Net(3, *SIZE)
    model = net.model(net.flat(net.op("Sub", "x", "x")))
    model.graph.node[0].input[1] = "z"
    model.graph.input.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["N", 3, "H", "W"]))
    assert "has 2 inputs ('x', 'z')" in refusal(saved(tmp_path, model))
    net = Net(3, *SIZE)
    path = save(net, net.op("Relu", "x"), tmp_path, "float32", ("N", 16, 3), made=("N", 16, 3))
    text = refusal(path, np.zeros((1, 3, *SIZE), np.float32))
    assert "tensors of 3 axes, not images: its input 'x' is ['N', 16, 3]" in text
    net = Net(3, *SIZE)
    x = net.op("Cast", "x", to=onnx.TensorProto.FLOAT)
    text = refusal(save(net, x, tmp_path, ml_dtypes.bfloat16, ("N", 3, *SIZE), made=("N", 3, *SIZE)))
    assert "is BFLOAT16, not an image" in text


def free(directory, net, output, dims, **metadata):
    model = net.model(output, dims=("N", "A", "B", "C"))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, dims))
    helper.set_model_props(model, metadata)
    return saved(directory, model)


def strided():
    net = Net(3, *SIZE)
    x = net.op("MaxPool", net.conv("x", 3, 4, [3, 3], strides=[4, 2]), kernel_shape=[2, 2], strides=[2, 2])
    return net, net.op("Resize", x, "", [1.0, 1.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("dims", "size", "strides"),
    [
        ([-1, 3, -1, -1], "HEIGHTxWIDTH", "8 and 4"),
        (["N", 3, "H", "W"], "HEIGHTxWIDTH", "8 and 4"),
        (["N", "C", 64, "W"], "64xWIDTH", "4, such as 64x"),
        (["N", 3, "H", 64], "HEIGHTx64", "8, such as 224x64"),
    ],
)
def test_a_free_size_is_asked_for_with_what_the_strides_say(dims, size, strides, tmp_path):
    text = refusal(free(tmp_path, *strided(), dims))
    assert f"give --size {size} (in Python an example), often multiples of its strides, {strides}" in text


@pytest.mark.parametrize(
    ("dims", "size", "words"),
    [
        (["N", 3, "H", "W"], (30, 34), "multiples of its strides, 8 and 4, not 30 x 34: try --size 32x36"),
        (["N", 3, "H", 64], (30, 64), "multiples of its strides, 8, not 30 x 64: try --size 32x64"),
        (["N", 3, "H", "W"], (32, 36), ""),
    ],
)
def test_a_size_that_a_network_does_not_take_is_answered_with_what_the_strides_say(dims, size, words, tmp_path):
    net = Net(3, *SIZE)
    coarse = net.op("MaxPool", "x", kernel_shape=[8, 4], strides=[8, 4])
    fine = net.op("Resize", coarse, "", [1.0, 1.0, 8.0, 4.0])
    path = free(tmp_path, net, net.op("Add", "x", fine), dims)
    example = np.zeros((1, 3, *size), np.float32)
    if not words:
        assert load(path, example)[0].run(example).shape == example.shape
        return
    for use in (
        lambda: load(path, example, as_is=False)[0].run(example),
        lambda: load(path, example, as_is=True)[0].run(example),
        lambda: from_onnx(load(path, example)[0].onnx, *size),
    ):
        with pytest.raises(ModelError) as caught:
            use()
        assert words in str(caught.value)


def test_channels_are_asked_for_where_nothing_fixes_them_and_named_where_they_are_not_three(tmp_path):
    net = Net(1, *SIZE)
    text = refusal(free(tmp_path, net, net.op("Relu", "x"), ["N", 1, "H", 64]))
    assert "give --size HEIGHTx64 --set channels=1 (in Python an example), such as 224x64" in text
    net = Net(3, *SIZE)
    text = refusal(free(tmp_path, net, net.op("Relu", "x"), ["N", "C", 8, 8]))
    assert "does not fix its input's channels: give --size 8x8 and --set channels=" in text


@pytest.mark.parametrize("value", ["[32, 64]", "32"])
def test_the_size_that_metadata_name_is_used(value, tmp_path):
    rows, columns = json.loads(value) if "[" in value else (32, 32)
    path = free(tmp_path, *strided(), ["N", "C", "H", "W"], imgsz=value)
    assert load(path, None)[1].shape == (1, 3, rows, columns)
    assert "such as" in refusal(free(tmp_path, *strided(), ["N", 3, 64, "W"], imgsz="[32, 64]"))


@pytest.mark.parametrize("value", ["", "[1]", "[0, 3]", "[" * 5000, "9" * 5000, '["a", 3]', "[32, 32.5]", "{}"])
def test_other_metadata_are_passed_over(value, tmp_path):
    assert "such as" in refusal(free(tmp_path, *strided(), ["N", 3, "H", "W"], imgsz=value))


def test_a_description_that_gives_fractions_is_refused_where_whole_numbers_are_taken(tmp_path):
    net, output = framework_network("NHWC", "uint8", 1, scaled=True)
    path = save(net, output, tmp_path, "uint8", (1, *FORMS["NHWC"]), made=(1, 5))
    whole = serfer.Preprocess(16, "bilinear", "RGB", 1.0, (0.0,) * 3, (1.0,) * 3)
    assert serfer.split(path, out=tmp_path / "plan", preprocess=whole).preprocess == whole
    fraction = replace(whole, scale=1 / 255)
    with pytest.raises(PlanError, match=r"input 'x' is uint8, .* need scale 1, mean 0 and std 1"):
        serfer.split(path, out=tmp_path / "other", preprocess=fraction)
    with pytest.raises(PlanError, match=r"input 'x' is uint8, .* need scale 1, mean 0 and std 1"):
        serfer.describe(tmp_path / "plan", preprocess=fraction)


def test_a_file_that_may_not_be_read_is_not_called_a_file_of_another_kind(tmp_path, monkeypatch):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"a network")

    def opened(place, mode="r", *_):
        raise PermissionError(13, "Permission denied", str(place), mode)

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(ModelError, match=r"net.onnx cannot be read: Permission denied$"):
        load(str(path), None)
