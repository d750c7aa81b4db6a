import json
import tracemalloc

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxscript import ir

import serfer
from serfer.core.errors import PlanError
from serfer.core.plan import Pad, Preprocess
from serfer.splitter.network import ingest
from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.metadata import parse_names, read_metadata
from serfer.splitter.network.source import load
from serfer.splitter.tiling.from_onnx import from_onnx
from tests.e2e.small import LABELS, SIZE, small_onnx
from tests.splitter.models import Net, saved, split_error, unsplit, worst_error

SHAPE = (1, 3, 320, 320)
NAMES = str(dict(enumerate(["person", "traffic light", "d'Artagnan", 'the "best"'])))
ULTRALYTICS = {"task": "detect", "stride": "32", "names": NAMES, "imgsz": "[320, 320]", "description": "Ultralytics"}
DETECTOR = Preprocess(None, "opencv-bilinear", "RGB", 1 / 255, (0.0,) * 3, (1.0,) * 3, Pad("centre", 114))
TEXTS = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20)


@given(st.lists(TEXTS, max_size=30))
def test_names_are_read_as_python_and_json_write_them(names):
    for form in (names, dict(enumerate(names))):
        assert parse_names(str(form)) == tuple(names)
        assert parse_names(json.dumps(form, ensure_ascii=False)) == tuple(names)
        assert parse_names(json.dumps(form, indent=2)) == tuple(names)


@pytest.mark.parametrize(
    "text",
    [
        *("", "person", "{0: 'a', 2: 'b'}", "{0: 'a', 0: 'b'}", "['a', b]", "['a'", "{'a'}", "[0: 'a']", "['a' 'b']"),
        *("['']", "['a\\x00']", "['a\\ud800']", "['\\x']", "['\\d']", "['\\U99999999']", "[__import__('os').getcwd()]"),
        *("[" * 100_000 + "]" * 100_000, "['" + "a" * 2_000_000 + "']"),
    ],
    ids=range(18),
)
def test_what_is_no_list_of_names_is_passed_over(text):
    assert parse_names(text) == ()


@given(
    st.dictionaries(st.sampled_from([*ULTRALYTICS, "character", "Image.BitmapPixelFormat"]), st.text(max_size=50)),
    st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=3),
)
def test_any_metadata_are_read_or_passed_over(properties, outputs):
    read_metadata(properties, SHAPE, outputs)


class TestUltralytics:
    def test_a_detector_is_letterboxed_and_has_names(self):
        found = read_metadata(ULTRALYTICS, SHAPE)
        assert found.preprocess == DETECTOR
        assert found.labels == ("person", "traffic light", "d'Artagnan", 'the "best"')
        assert found.sentence == (
            "The file's metadata (ultralytics, detect) say how an image becomes the input and the names of 4 classes."
        )
        classifier = read_metadata(ULTRALYTICS | {"task": "classify"}, SHAPE).preprocess
        assert (classifier.resize, classifier.interpolation, classifier.pad) == (320, "bilinear", None)
        stretched = read_metadata(ULTRALYTICS | {"description": "Ultralytics rtdetr-l model"}, SHAPE).preprocess
        assert (stretched.resize, stretched.pad) == (None, None)
        assert read_metadata(ULTRALYTICS, (1, 1, 64, 64)).preprocess.channels == "L"
        assert read_metadata(ULTRALYTICS, (1, 4, 64, 64)).preprocess is None
        older = read_metadata({"stride": "32", "names": "['a', 'b']"}, SHAPE)
        assert (older.preprocess, older.labels, older.origin) == (None, ("a", "b"), "YOLOv5")


@pytest.mark.parametrize(
    ("pixel_format", "pixel_range", "channels", "scale", "mean"),
    [
        ("Bgr8", "NominalRange_0_255", "BGR", 1.0, 0.0),
        ("RGB8", "normalized_0_1", "RGB", 1 / 255, 0.0),
        ("Rgb8", "Normalized_1_1", "RGB", 1 / 255, 0.5),
        ("Rgb8", "NominalRange_16_235", "RGB", 219 / 255, -16.0),
    ],
)
def test_onnxs_own_keys_say_how_pixels_are_scaled(pixel_format, pixel_range, channels, scale, mean):
    keys = {"Image.BitmapPixelFormat": pixel_format, "image.nominalpixelrange": pixel_range}
    found = read_metadata(keys, SHAPE).preprocess
    assert (found.channels, found.scale, found.mean) == (channels, scale, (mean,) * 3)
    assert read_metadata(keys | {"Image.ColorSpaceGamma": "Linear"}, SHAPE).preprocess is None
    assert read_metadata(keys, (1, 1, 8, 8)).preprocess is None


class TestCharacter:
    @pytest.mark.parametrize("classes", [3, 4])
    @pytest.mark.parametrize("text", ["a\nb", "\u3000\nb\n"])
    def test_text_recognition_is_as_high_as_its_input(self, text, classes):
        found = read_metadata({"character": text}, (1, 3, 48, 320), [(0, 0, classes)])
        assert (found.preprocess.pad, found.preprocess.channels) == (Pad("height", 127), "BGR")
        assert "names" not in found.sentence

    @pytest.mark.parametrize(
        "outputs",
        [
            pytest.param([(0, 4)], id="a classifier"),
            pytest.param([(1, 475, 4), (1, 130, 4), (1, 475, 32), (1, 130, 32)], id="a detector"),
            pytest.param([(1, 475, 4), (1, 475, 5)], id="a detector whose boxes have as many numbers as dictionaries"),
            pytest.param([()], id="open"),
        ],
    )
    def test_other_networks_of_rapid_ai_name_their_classes(self, outputs):
        found = read_metadata({"character": "0\r\n90\r\n180\r\n270\n"}, (1, 3, 224, 224), outputs)
        assert (found.preprocess, found.labels) == (None, ("0", "90", "180", "270"))

    @pytest.mark.parametrize("text", ["", "\n", "a\n\nb", "a\n\x00b", "a\n" * 70_000])
    def test_what_names_no_classes_is_passed_over(self, text):
        assert read_metadata({"character": text}, SHAPE, [(0, 2)]) == read_metadata({}, SHAPE)


class TestSplit:
    def split(self, model, properties, tmp_path, **options):
        helper.set_model_props(model, properties)
        return serfer.split(saved(tmp_path, model), out=tmp_path / "plan", grids=[(1, 1)], stages=1, **options)

    def test_a_plan_has_what_its_file_says_and_says_so(self, tmp_path):
        names = str(dict(enumerate(LABELS)))
        plan = self.split(small_onnx(), ULTRALYTICS | {"task": "classify", "names": names}, tmp_path)
        assert plan.labels == LABELS
        assert plan.preprocess.resize == SIZE
        assert "The file's metadata (ultralytics, classify) say how an image becomes" in plan.why

    def test_what_is_given_counts_and_what_does_not_fit_is_left_out(self, tmp_path):
        given = Preprocess(None, "nearest", "BGR", 1.0, (0.0,) * 3, (1.0,) * 3)
        plan = self.split(small_onnx(), ULTRALYTICS, tmp_path, preprocess=given)
        assert (plan.preprocess, plan.labels) == (given, ())
        assert "metadata" not in plan.why

    def test_a_file_that_takes_bytes_gets_pixels_as_they_are(self, tmp_path):
        model = small_onnx()
        model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
        model.graph.input[0].name = "bytes"
        model.graph.node.insert(0, helper.make_node("Cast", ["bytes"], ["input"], to=TensorProto.FLOAT))
        plan = self.split(model, ULTRALYTICS, tmp_path)
        assert (plan.preprocess.pad, plan.preprocess.scale) == (DETECTOR.pad, 1.0)
        with pytest.raises(PlanError, match="'bytes' is uint8, and the preprocessing gives it other numbers"):
            serfer.describe(tmp_path / "plan", preprocess=DETECTOR)

    def test_boxes_have_any_number_of_labels(self, tmp_path):
        net = Net(3, 8, 8)
        boxes = net.op("Reshape", net.conv("x", 3, 6, 1), [0, 6, -1])
        plan = self.split(net.model(boxes, dims=("N", 6, 64)), ULTRALYTICS, tmp_path)
        assert len(plan.labels) == 4
        assert serfer.describe(tmp_path / "plan", labels=["a", "b"]).labels == ("a", "b")


SIDES = (16, 16)
FEATURES = 8 * 256
SHARE = 0.1
"""Of the weights' bytes, what may be copied or serialised."""


def network(opset=20):
    """A network whose matrix is most of its 4 MB."""
    net = Net(3, *SIDES, opset=opset)
    x = net.op("Relu", net.conv("x", 3, 8, 3))
    return net, net.op("Relu", net.linear(net.flat(x), FEATURES, 512))


def quantised():
    """The same with its matrix in 8 bits: what it stands for is computed when the network is read."""
    net, x = network()
    matrix = net.random.integers(-128, 127, (512, 512), dtype=np.int8)
    return net, net.op("MatMul", x, net.op("DequantizeLinear", matrix, 0.01))


def size_of(model):
    return sum(numpy_helper.to_array(tensor).nbytes for tensor in model.graph.initializer)


@pytest.fixture
def serialised(monkeypatch):
    """How many bytes each of the models has that shape inference and ONNX Runtime are given."""
    sizes = []
    infer, session = ingest.shape_inference.infer_shapes, ort.InferenceSession
    monkeypatch.setattr(
        ingest.shape_inference,
        "infer_shapes",
        lambda model, **more: sizes.append(model.ByteSize()) or infer(model, **more),
    )
    monkeypatch.setattr(
        ort, "InferenceSession", lambda data, *a, **more: sizes.append(len(data)) or session(data, *a, **more)
    )
    return sizes


@pytest.mark.parametrize("form", [network, quantised])
def test_reading_a_network_copies_and_serialises_almost_nothing(form, serialised):
    net, x = form()
    model = net.model(x)
    before = model.SerializeToString()
    light, weights = ExternalWeightsModel.of(ir.from_proto(model)), size_of(model)
    computed = 512 * 512 * 4 if form is quantised else 0
    tracemalloc.start()
    graph = from_onnx(light, *SIDES)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(serialised) == (3 if form is quantised else 1)
    assert max(serialised) < SHARE * weights
    assert peak - computed < SHARE * weights
    assert sum(value.nbytes for value in graph.weights.values()) >= weights
    from_onnx(model, *SIDES)
    assert model.SerializeToString() == before


def test_an_exported_module_shares_its_weights_with_the_plan():
    import torch  # noqa: PLC0415 - slow to import

    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.Flatten(), torch.nn.Linear(16 * 14 * 14, 10)
    ).eval()
    source, _ = load(module, np.zeros((1, 3, *SIDES), np.float32))
    graph = from_onnx(source.onnx, *SIDES)
    for layer in (module[0], module[2]):
        weight = layer.weight.detach().numpy()
        assert any(np.shares_memory(weight, value) for value in graph.weights.values())


def test_a_files_external_weights_of_any_size_are_memory_mapped(tmp_path):
    net, x = network()
    x = net.op("Reshape", x, [0, 2, 16, 16])
    model = net.model(net.linear(net.flat(x), 512, 5))
    batch, size = net.batch_of(2), size_of(model)
    expected = unsplit(model, batch)
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)
    tracemalloc.start()
    source, _ = load(tmp_path / "net.onnx", net.batch_of(1))
    graph = from_onnx(source.onnx, *SIDES)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(value.nbytes for value in graph.weights.values()) >= SHARE * size
    assert peak < SHARE * size
    assert worst_error(source.onnx, batch, tmp_path / "plan", ["2x2", "1"], expected=expected) <= 1e-6


def as_nodes(model):
    tensors = list(model.graph.initializer)
    nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in tensors]
    rest = list(model.graph.node)
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.node.extend([*nodes, *rest])


def as_inputs(model):
    """Declare initializers as inputs too, as ONNX's first versions did."""
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in model.graph.initializer
    )
    model.ir_version = 3


@pytest.mark.parametrize(("form", "opset"), [(as_nodes, 20), (as_inputs, 20), (as_nodes, 13), (as_inputs, 8)])
def test_constants_are_read_from_every_place_that_onnx_allows(form, opset, tmp_path):
    net, x = network(opset)
    model = net.model(net.op("BatchNormalization", x, *np.abs(net.floats(4, 512))))
    batch = net.batch_of(2)
    expected = unsplit(model, batch)
    form(model)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    source, _ = load(tmp_path / "net.onnx", None)
    assert source.onnx.proto.ByteSize() < SHARE * sum(value.nbytes for value in source.onnx.large.values())
    assert worst_error(source.onnx, batch, tmp_path / "plan", ["2x2", "1"], expected=expected) <= 1e-6


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.INT4])
def test_weights_of_types_that_numpy_lacks_are_converted(kind, tmp_path):
    net, x = network()
    net.opset = 21
    whole = net.random.integers(-7, 7, (512, 64))
    net.constants.append(helper.make_tensor("odd", kind, whole.shape, whole.flatten().astype(np.float32)))
    if kind == TensorProto.INT4:
        matrix = net.op("DequantizeLinear", "odd", 0.5)
    else:
        matrix = net.op("Cast", "odd", to=TensorProto.FLOAT)
    assert split_error(net, net.op("MatMul", x, matrix), tmp_path / "plan", ["2x2", "1"]) <= 1e-6
