"""The Open Inference Protocol with the tensors that an ONNX file has: its names, its input's type and axes."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tritonclient.http import InferenceServerClient, InferRequestedOutput

import serfer
from serfer.api.http.body import ApiLimits
from serfer.api.http.tensors import TensorForm
from serfer.api.routes.inference import signature_of
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import PlanError
from serfer.core.plan import FileTensors, dump_plan, parse_plan, sealed
from serfer.core.plan.model import INPUT_AXES
from serfer.plan_directory import load_plan
from serfer.variants.candidates import PlanRequest
from serfer.variants.plans import NetworkOptions, make_plan, read_network
from tests.splitter.models import Net
from tests.support.served import served
from tests.support.tensors import triton_input

ROWS, COLUMNS = 12, 10
WHOLE = serfer.Preprocess(None, "bilinear", "RGB", 1.0, (0.0,) * 3, (1.0,) * 3)


def keras(directory):
    """Split a network of uint8 images with their channels last, and a name that SerFer has for another tensor."""
    net = Net(3, ROWS, COLUMNS)
    x = net.op("Transpose", net.op("Cast", "input", to=TensorProto.FLOAT), perm=[0, 3, 1, 2])
    model = net.model(net.linear(net.flat(net.conv(x, 3, 4, [3, 3])), 320, 5), name="input")
    given = helper.make_tensor_value_info("input", TensorProto.UINT8, ["N", ROWS, COLUMNS, 3])
    model.graph.input[0].CopyFrom(given)
    return saved(model, "dense_3", directory / "keras")


def half(directory):
    """Split a network of one float16 image, whose input has the name of SerFer's pixels."""
    net = Net(3, ROWS, COLUMNS)
    x = net.op("Unsqueeze", net.op("Cast", "image", to=TensorProto.FLOAT), net.constant(np.array([0])))
    x = net.linear(net.flat(net.conv(x, 3, 4, [3, 3])), 320, 5)
    model = net.model(net.op("Squeeze", x, net.constant(np.array([0]))), name="image", dims=("K",))
    given = helper.make_tensor_value_info("image", TensorProto.FLOAT16, [3, ROWS, COLUMNS])
    model.graph.input[0].CopyFrom(given)
    return saved(model, "a/b:0", directory / "half")


def saved(model, output, home):
    model.graph.node[-1].output[0] = model.graph.output[0].name = output
    onnx.save(model, f"{home}.onnx")
    return serfer.split(f"{home}.onnx", out=home, stages=1, grids=(1, 1), preprocess=WHOLE)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def url(home):
    for make in (keras, half):
        make(home)
    with served({"keras": home / "keras", "half": home / "half"}, results=(home / "results").as_uri()) as url:
        yield url


@pytest.fixture
def triton(url):
    with InferenceServerClient(url.removeprefix("http://"), network_timeout=60.0) as client:
        yield client


def expected(home, model, images):
    session = ort.InferenceSession(home / f"{model}.onnx")
    return session.run(None, {session.get_inputs()[0].name: images})[0]


def test_metadata_are_those_of_the_file(triton):
    described = triton.get_model_metadata("keras")
    assert described["inputs"][0] == {"name": "input", "datatype": "UINT8", "shape": [-1, ROWS, COLUMNS, 3]}
    assert described["outputs"] == [{"name": "dense_3", "datatype": "FP32", "shape": [-1, 5]}]
    described = triton.get_model_metadata("half")
    assert described["inputs"][0] == {"name": "image", "datatype": "FP16", "shape": [-1, 3, ROWS, COLUMNS]}
    assert described["outputs"][0]["name"] == "a/b:0"


@pytest.mark.parametrize("binary", [True, False])
def test_the_files_own_tensors_are_taken_and_given(home, triton, binary):
    pixels = np.random.default_rng(0).integers(0, 256, (2, ROWS, COLUMNS, 3), dtype=np.uint8)
    answer = triton.infer("keras", triton_input(pixels, binary=binary)).as_numpy("dense_3")
    assert np.allclose(answer, expected(home, "keras", pixels), rtol=1e-5)
    best = triton.infer("keras", triton_input(pixels), outputs=[InferRequestedOutput("dense_3", class_count=1)])
    assert [int(text.split(b":")[1]) for text in best.as_numpy("dense_3").ravel()] == answer.argmax(1).tolist()


def test_float16_images_are_taken_and_a_network_of_one_takes_several(home, triton):
    images = np.random.default_rng(0).standard_normal((2, 3, ROWS, COLUMNS)).astype(np.float16)
    answer = triton.infer("half", triton_input(images, "image")).as_numpy("a/b:0")
    assert np.allclose(answer, [expected(home, "half", image) for image in images], rtol=1e-3, atol=1e-3)


def test_serfers_own_names_are_taken_too_and_answered_by_the_files(home, triton):
    pixels = np.random.default_rng(0).integers(0, 256, (1, ROWS, COLUMNS, 3), dtype=np.uint8)
    wanted = expected(home, "keras", pixels)
    floats = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32)
    for name, array in (("input", floats), ("image", pixels)):
        assert np.allclose(triton.infer("keras", triton_input(array, name)).as_numpy("dense_3"), wanted, rtol=1e-5)
        both = [InferRequestedOutput("logits"), InferRequestedOutput("dense_3")]
        answer = triton.infer("keras", triton_input(array, name), outputs=both)
        assert np.array_equal(answer.as_numpy("logits"), answer.as_numpy("dense_3"))
        kept = triton.infer("keras", triton_input(array, name), outputs=both, parameters={"result": "link"})
        assert len({kept.get_output(output.name())["parameters"]["result_link"] for output in both}) == 1


@pytest.mark.usefixtures("url")
def test_kept_results_and_answers_in_python_have_the_files_name(home, tmp_path):
    images = np.zeros((1, 3, ROWS, COLUMNS), np.float32)
    with serfer.open(home / "keras", results=f"file://{tmp_path}/results") as pipeline:
        answer = pipeline.run(images)
        assert [*pipeline.last.outputs] == ["dense_3"]
        kept = pipeline.run_to_result(images)
        assert [*kept.arrays()] == ["dense_3"]
        assert np.array_equal(kept.arrays()["dense_3"], answer)


@given(st.sampled_from(INPUT_AXES))
def test_any_axes_become_those_of_queries(axes):
    images = np.random.default_rng(0).integers(0, 256, (2, 1, 3, 4))
    form = TensorForm("x", "INT64", (), axes.removeprefix("N"))
    as_file = images[:, 0] if axes == "NHW" else images.transpose(0, 2, 3, 1) if axes.endswith("HWC") else images
    taken = form.as_queries(as_file)
    assert taken.dtype == np.float32
    assert np.array_equal(taken, images)


@pytest.mark.usefixtures("url")
def test_variants_of_a_network_keep_its_files_tensors(home, tmp_path):
    options, facts = NetworkOptions(None, WHOLE, tuple("abcde")), shipped_aws()
    (tmp_path / "work").mkdir()
    base = read_network(str(home / "keras"), "keras", options, facts, tmp_path / "work", lambda _: None)
    plan = make_plan(base, PlanRequest("fp32", whole=True), tmp_path / "plan", facts, None, lambda _: None)
    assert (
        base.plan.file
        == plan.file
        == load_plan(tmp_path / "plan").file
        == FileTensors("input", "uint8", "NHWC", "dense_3")
    )


@pytest.mark.usefixtures("url")
def test_a_plan_keeps_its_files_tensors_and_one_without_them_is_as_before(home):
    plan = parse_plan((home / "keras" / "plan.json").read_text())
    assert plan.file == FileTensors("input", "uint8", "NHWC", "dense_3")
    plain = sealed(replace(plan, file=None))
    assert '"file"' not in dump_plan(plain)
    assert parse_plan(dump_plan(plain)) == plain
    signature = signature_of(plain, ApiLimits())
    assert [form.name for form in (*signature.takes, *signature.gives)] == ["input", "image", "logits"]
    for wrong in ({"axes": "NWH"}, {"dtype": "complex64"}, {"input": ""}, {"output": "y" * 2000}):
        with pytest.raises(PlanError, match="tensors of the ONNX file"):
            parse_plan(dump_plan(sealed(replace(plan, file=replace(plan.file, **wrong)))))
