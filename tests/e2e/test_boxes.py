"""A detector from its file to boxes."""

import base64
import io
import json
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto
from PIL import Image

import serfer
from serfer.api.http.body import ApiLimits
from serfer.api.routes.inference import signature_of
from serfer.core.detections import Boxes
from serfer.core.errors import ImageError, ModelError, PlanError, PlanWarning, UsageError
from serfer.core.plan import DetectionHead, OutputTensor, Pad, Preprocess, dump_plan, parse_plan, sealed
from serfer.pipeline.prediction import kind_of
from serfer.plan_directory import load_plan
from serfer.raster.palette import palette
from serfer.splitter.whole import whole_plan
from tests.core.test_detections import naive
from tests.e2e.dense import split_dense
from tests.e2e.detector import CLASSES, SIZE, detector_onnx, split_detector, suppressed_onnx
from tests.e2e.small import split_small
from tests.splitter.models import Net

LETTERBOX = Preprocess(None, "bilinear", "RGB", 1 / 255, (0.0,) * 3, (1.0,) * 3, pad=Pad("centre", 114))


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return split_detector(tmp_path_factory.mktemp("detector"), preprocess=LETTERBOX)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return split_small(tmp_path_factory.mktemp("small"))


@pytest.fixture
def predict(serfer_here, plan):
    def command(*arguments, plan=plan):
        return serfer_here("predict", "--plan", plan, "--workers", "inprocess", *arguments)

    return command


def expected(output, size):
    """Return (class, score, box) of one image's output (7, 84), by loops, for a letterbox of an image of a size."""
    rows, cols = size
    ratio = min(SIZE / rows, SIZE / cols)
    top, left = (round((SIZE - round(side * ratio)) / 2 - 0.1) for side in (rows, cols))
    found = []
    for x, y, width, height, *scores in output.T.astype(float):
        if max(scores) >= 0.25:
            box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
            found.append((max(scores), int(np.argmax(scores)), *box))
    found.sort(key=lambda row: -row[0])
    scores, kinds, *sides = map(np.array, zip(*found, strict=True))
    boxes = Boxes(np.stack(sides, 1), scores, kinds)
    for index in naive(boxes, 0.45, 300):
        score, kind, *box = found[index]
        shifted = [(value - (left, top)[number % 2]) / ratio for number, value in enumerate(box)]
        clipped = [min(max(value, 0), (cols, rows)[number % 2]) for number, value in enumerate(shifted)]
        if clipped[0] < clipped[2] and clipped[1] < clipped[3]:
            yield kind, score, clipped


def test_a_plan_says_where_its_boxes_are(plan):
    assert load_plan(plan).detection == DetectionHead("yolov8", ("output0",), len(CLASSES))


@pytest.mark.parametrize(
    "head",
    [
        DetectionHead("yolov8", ("output1",)),
        DetectionHead("nms", ("output0", "output0", "output0")),
        DetectionHead("end2end", ("boxes",)),
        DetectionHead("yolov8", ("output0",), 2),  # of three labels
    ],
)
def test_a_plan_whose_head_is_of_other_outputs_is_refused(plan, head):
    with pytest.raises(PlanError):
        parse_plan(dump_plan(sealed(replace(load_plan(plan), detection=head))))


def test_what_contradicts_boxes_is_refused(tmp_path):
    path = tmp_path / "detector.onnx"
    onnx.save(detector_onnx(), path)
    with pytest.raises(UsageError, match="with --output boxes there is none"):
        serfer.split(path, out=tmp_path / "plan", activation="boxes", reduce="argmax")
    with pytest.raises(ModelError, match="4 labels for a detector with 3 classes"):
        serfer.split(path, out=tmp_path / "plan", activation="boxes", labels=list("abcd"), grids="1")


def test_boxes_are_those_of_the_output_in_the_images_own_pixels(plan, examples):
    paths = [examples / "rocket.jpg", examples / "coffee.png"]
    with serfer.open(plan, workers="inprocess") as pipeline:
        output = pipeline.run(pipeline.pixels(paths))
        images = pipeline.predict(paths)
        few = pipeline.predict(paths[:1], names=["r"], min_score=0.9)
    for image, path, values in zip(images, paths, output, strict=True):
        with Image.open(path) as picture:
            size = picture.height, picture.width
        assert (image.name, (image.height, image.width)) == (str(path), size)
        assert image.boxes
        wanted = [*expected(values, size)]
        assert [box.index for box in image.boxes] == [kind for kind, _, _ in wanted]
        assert [box.label for box in image.boxes] == [CLASSES[kind] for kind, _, _ in wanted]
        np.testing.assert_allclose([box.score for box in image.boxes], [score for _, score, _ in wanted])
        np.testing.assert_allclose([box.box for box in image.boxes], [box for _, _, box in wanted], atol=1e-9)
    assert few[0].boxes == tuple(box for box in images[0].boxes if box.score >= 0.9)
    assert few[0].name == "r"


def test_every_kind_of_network_predicts(classifier, tmp_path, examples):
    path = examples / "rocket.jpg"
    with serfer.open(classifier, workers="inprocess") as pipeline:
        [answer] = pipeline.classify([path], top_k=3)
        [image] = pipeline.predict([path], top_k=3)
    assert (image.predictions, image.boxes, image.outputs) == (answer.predictions, (), ())
    with serfer.open(split_dense(tmp_path / "dense"), workers="inprocess") as pipeline:
        outputs = pipeline.run(pipeline.pixels([path]))
        [image] = pipeline.predict([path])
    by_name = {output.name: output for output in image.outputs}
    assert by_name["embedding"].values == tuple(outputs["embedding"][0].tolist())
    mask = Image.open(io.BytesIO(base64.b64decode(by_name["classes"].png)))
    assert np.array_equal(np.asarray(mask.convert("RGB")), np.array(palette())[outputs["classes"][0]])
    assert (by_name["scores"].png, by_name["scores"].values) == ("", ())
    assert [output["name"] for output in image.as_dict("map")["outputs"]] == [*outputs]


def indices_onnx():
    """Places where a channel's mean is large: (2, K) int64, and the three largest values of each row, with indices."""
    net = Net(1, SIZE, SIZE)
    pooled = net.op("AveragePool", "x", kernel_shape=[16, 16], strides=[16, 16])
    far = net.op("Greater", pooled, net.constant(np.float32(0.5)))
    places = net.op("NonZero", far, output="places")
    net.op("TopK", pooled, net.constant(np.array([3])), axis=3, output="largest")
    net.nodes[-1].output.append("columns")
    return net.model(
        (places, TensorProto.INT64, 2), ("largest", TensorProto.FLOAT, 4), ("columns", TensorProto.INT64, 4)
    )


def test_indices_are_numbers_of_each_images_own_count(tmp_path, examples, serfer_here):
    onnx.save(indices_onnx(), tmp_path / "net.onnx")
    grey = Preprocess(None, "bilinear", "L", 1 / 255, (0.0,), (1.0,))
    plan = whole_plan(tmp_path / "net.onnx", out=tmp_path / "plan", preprocess=grey)
    assert kind_of(plan) == "vector"
    Image.new("L", (SIZE, SIZE)).save(tmp_path / "black.png")
    with serfer.open(tmp_path / "plan", workers="inprocess") as pipeline:
        black, rocket = pipeline.predict([tmp_path / "black.png", examples / "coffee.png"])
        outputs = pipeline.last.outputs
    counts = outputs["places.size"].tolist()
    assert counts[0] == 0 < counts[1]
    assert [image.outputs[0].shape for image in (black, rocket)] == [(4, count) for count in counts]
    assert rocket.outputs[0].values == tuple(outputs["places"][1].ravel().tolist())
    assert rocket.outputs[2].values == tuple(outputs["columns"][1].ravel().tolist())
    assert {type(value) for value in rocket.outputs[2].values} == {int}
    assert black.as_dict("vector")["outputs"][0] == {"name": "places", "type": "int64", "shape": (4, 0), "values": ()}
    printed = serfer_here("predict", "--plan", tmp_path / "plan", "--workers", "inprocess", tmp_path / "black.png").out
    assert "places  4x0 int64" in printed
    assert "serfer run" not in printed
    folder = tmp_path / "out"
    ran = serfer_here(
        "run", "--plan", tmp_path / "plan", "--workers", "inprocess", "--out", folder, tmp_path / "black.png"
    )
    assert (ran.code, np.load(folder / "black.places.npy").shape) == (0, (1, 4, 0))


@pytest.mark.parametrize(
    ("dims", "kind"),
    [
        ((4, 6), "map"),  # an image of 32 x 48
        ((7, 11), "map"),  # of strides that round
        ((5, 4, 6), "map"),
        ((4, 6, 5), "map"),  # channels last
        ((300, 6), "vector"),
        ((6, 300), "vector"),
        ((1, 40, 97), "vector"),
        ((84, 8400), "map"),  # too many numbers
    ],
)
def test_what_has_the_images_rows_and_columns_is_a_map(plan, dims, kind):
    known = load_plan(plan)
    other = replace(known, detection=None, outputs=(OutputTensor("y", dims, "float32"),))
    assert kind_of(replace(other, input=replace(known.input, height=32, width=48))) == kind


def test_what_predict_refuses(plan, examples):
    with serfer.open(plan, workers="inprocess") as pipeline:
        with pytest.raises(PlanError, match="predict"):
            pipeline.classify([examples / "rocket.jpg"])
        with pytest.raises(ImageError, match=r"README.md is not an image"):
            pipeline.predict([examples / "README.md"])
        with pytest.raises(UsageError, match="1 to"):
            pipeline.predict([])


def test_the_command_prints_boxes(predict, plan, examples):
    result = predict(examples / "rocket.jpg")
    with serfer.open(plan, workers="inprocess") as pipeline:
        [image] = pipeline.predict([examples / "rocket.jpg"])
    assert result.code == 0
    for box in image.boxes:
        left, top, right, bottom = box.box
        assert (
            f"{box.score:.2%}  {box.label}  {right - left:.0f} x {bottom - top:.0f} at {left:.0f}, {top:.0f}"
            in result.out
        )
    none = predict(examples / "rocket.jpg", "--min-score", "1")
    assert (none.code, "no boxes" in none.out) == (0, True)


def test_as_json_and_as_a_coco_data_set(predict, examples):
    paths = [examples / "rocket.jpg", examples / "coffee.png"]
    lines = [json.loads(line) for line in predict(*paths, "--json").lines]
    assert [line["kind"] for line in lines] == ["boxes", "boxes"]
    assert [*lines[0]["images"][0]] == ["name", "height", "width", "boxes"]
    value = json.loads(predict(*paths, "--coco").out)
    assert [image["file_name"] for image in value["images"]] == [str(path) for path in paths]
    assert [category["name"] for category in value["categories"]] == [*CLASSES]
    boxes = [(image, box["index"] + 1) for image, line in enumerate(lines, 1) for box in line["images"][0]["boxes"]]
    assert [(box["image_id"], box["category_id"]) for box in value["annotations"]] == boxes
    assert [box["id"] for box in value["annotations"]] == [*range(1, len(boxes) + 1)]


def test_boxes_are_drawn(predict, examples, tmp_path):
    assert predict(examples / "rocket.jpg", "--draw", tmp_path / "one.jpg").code == 0
    assert predict(examples / "rocket.jpg", examples / "coffee.png", "--draw", tmp_path / "several").code == 0
    with Image.open(examples / "rocket.jpg") as given, Image.open(tmp_path / "several" / "rocket.png") as picture:
        assert picture.size == given.size
        assert np.any(np.asarray(picture) != np.asarray(given.convert("RGB")))
    with Image.open(tmp_path / "one.jpg") as picture:
        assert picture.format == "JPEG"
    again = predict(examples / "rocket.jpg", "--draw", tmp_path / "several")
    assert (again.code, "rocket.png exists" in again.err) == (3, True)


def test_images_that_differ_in_their_suffix_are_drawn_side_by_side(predict, examples, tmp_path):
    (tmp_path / "given").mkdir()
    with Image.open(examples / "rocket.jpg") as image:
        for name in ("rocket.jpg", "rocket.png"):
            image.save(tmp_path / "given" / name)
    assert predict(tmp_path / "given", "--draw", tmp_path / "drawn").code == 0
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == {"rocket.png", "rocket-2.png"}


def test_outputs_whose_size_depends_on_the_image_are_said_to_have_that_size(tmp_path, examples):
    onnx.save(suppressed_onnx(gathered=True), tmp_path / "nms.onnx")
    whole_plan(tmp_path / "nms.onnx", out=tmp_path / "plan", preprocess=LETTERBOX)
    with serfer.open(tmp_path / "plan", workers="inprocess") as pipeline:
        [image] = pipeline.predict([examples / "rocket.jpg"])
        bounds = {tensor.name: tensor.dims for tensor in pipeline.plan.output_tensors}
        forms = {form.name: form.metadata().shape for form in signature_of(pipeline.plan, ApiLimits()).gives}
    shapes = {output.name: output.shape for output in image.outputs}
    most = bounds["found_boxes"][0]
    assert (bounds["found_boxes"], forms["found_boxes"]) == ((most, 4), [-1, -1, 4])
    assert shapes["found_boxes"] == (*shapes["found_scores"], 4)
    assert shapes["found_scores"] < (most,)


@pytest.mark.parametrize(
    "arguments", [("coffee.png", "--draw", "one.png"), ("--draw", "one.gif"), ("--coco", "--json"), ("--coco",)]
)
def test_options_that_do_not_fit(predict, plan, classifier, examples, monkeypatch, arguments):
    monkeypatch.chdir(examples)
    predict("rocket.jpg", *arguments, plan=classifier if arguments == ("--coco",) else plan).complains(2)


def test_explain_says_what_the_boxes_are(serfer_here, plan):
    assert "boxes of 3 classes as yolov8 has them, in output0" in serfer_here("explain", plan).out


@pytest.fixture
def file(tmp_path):
    """The detector's file with the metadata that ultralytics writes."""
    model = detector_onnx()
    names = str(dict(enumerate(CLASSES)))
    onnx.helper.set_model_props(model, {"stride": "32", "task": "detect", "names": names})
    onnx.save(model, tmp_path / "detector.onnx")
    return tmp_path / "detector.onnx"


def test_a_file_whose_metadata_are_a_detectors_gives_boxes_at_once(serfer_here, file, examples):
    told = serfer_here("predict", file, examples / "rocket.jpg", "--workers", "inprocess", "--json")
    assert told.code == 0, told.err
    value = json.loads(told.out)
    assert value["kind"] == "boxes"
    assert {box["label"] for box in value["images"][0]["boxes"]} <= {*CLASSES}
    assert f"{SIZE} x {SIZE} pixels" in told.err
    thresholds = ("--output", "boxes,score=0.9,iou=0.3", "--workers", "inprocess", "--json")
    fewer = json.loads(serfer_here("predict", file, examples / "rocket.jpg", *thresholds).out)["images"][0]["boxes"]
    assert 0 < len(fewer) < len(value["images"][0]["boxes"])


def test_what_is_said_of_outputs_counts_and_other_outputs_are_left_as_they_are(file, tmp_path):
    assert serfer.split(file, out=tmp_path / "plan", grids="1").detection == DetectionHead("yolov8", ("output0",), 3)
    assert serfer.split(file, out=tmp_path / "plan", grids="1", activation="none").detection is None
    model = onnx.load(file)
    onnx.helper.set_model_props(model, {"stride": "32", "task": "classify", "names": "{0: 'a'}"})
    onnx.save(model, file)
    assert serfer.split(file, out=tmp_path / "plan", grids="1").detection is None


@pytest.mark.parametrize("command", ["split", "split --whole", "map-plan --size any", "serve", "predict", "run"])
def test_oriented_detector_is_refused_as_boxes_in_every_command(serfer_here, file, examples, tmp_path, command):
    model = onnx.load(file)
    onnx.helper.set_model_props(model, {"stride": "32", "task": "obb", "names": str(dict(enumerate(CLASSES)))})
    onnx.save(model, file)
    images = [examples / "rocket.jpg"] if command in ("predict", "run") else []
    out = [] if command in ("predict", "serve") else ["--out", tmp_path / "out"]
    told = serfer_here(*command.split(), file, *images, *out, "--output", "boxes")
    assert (told.code, "task obb" in told.err.splitlines()[-1]) == (3, True)
    if command == "split":
        with pytest.warns(PlanWarning, match="obb"):
            assert serfer.whole_plan(file, out=tmp_path / "plan").detection is None


@pytest.mark.parametrize("command", ["map --network", "map-plan --size any"])
@pytest.mark.parametrize("sides", [("H", "W"), (SIZE, SIZE)], ids=["any size", "one size"])
def test_oriented_detector_has_no_map_because_of_its_boxes(serfer_here, file, examples, tmp_path, command, sides):
    model = onnx.load(file)
    onnx.helper.set_model_props(model, {"stride": "32", "task": "obb", "names": str(dict(enumerate(CLASSES)))})
    for dim, side in zip(model.graph.input[0].type.tensor_type.shape.dim[2:], sides, strict=True):
        dim.Clear()
        setattr(dim, "dim_param" if isinstance(side, str) else "dim_value", side)
    onnx.save(model, file)
    images = [examples / "rocket.jpg"] if command.startswith("map ") else []
    told = serfer_here(*command.split(), file, *images, "--out", tmp_path / "out")
    assert (told.code, "task obb" in told.err.splitlines()[-1]) == (3, True)


def test_split_names_the_input_and_outputs_that_may_be_boxes_and_are_not_read_as_such(serfer_here, file, tmp_path):
    def lines(*output):
        told = serfer_here("split", file, "--whole", "--out", tmp_path / "plan", *output)
        return told.code, f"{SIZE} x {SIZE} pixels" in told.err, "--output boxes:yolov8" in told.err

    assert lines() == (0, True, False)  # by its metadata it is a detector
    model = onnx.load(file)
    onnx.helper.set_model_props(model, {})
    onnx.save(model, file)
    assert lines() == (0, True, True)
    assert lines("--output", "none") == (0, True, False)


@pytest.mark.parametrize("gathered", [True, False])
def test_a_file_that_ends_in_suppression_gives_its_own_boxes_of_each_image(gathered, tmp_path, examples):
    file, paths = tmp_path / "net.onnx", [examples / "rocket.jpg", examples / "coffee.png"]
    onnx.save(suppressed_onnx(gathered=gathered), file)
    given = {"preprocess": LETTERBOX, "labels": CLASSES, "activation": "boxes,score=0"}
    plan = whole_plan(file, None, tmp_path / "plan", **given)
    assert (plan.detection.family, len(plan.detection.outputs)) == ("nms" if gathered else "selected", 4)
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    with serfer.open(tmp_path / "plan", workers="inprocess") as pipeline:
        pixels = pipeline.pixels(paths)
        found = pipeline.predict(paths)
    for image, own in zip(found, pixels, strict=True):
        first, *others = session.run(None, {"images": (own.astype(np.float32) / 255).transpose(2, 0, 1)[None]})
        scores, classes = others if gathered else (others[1][0][first[0, :, 1], first[0, :, 2]], first[0, :, 1])
        assert sorted(box.index for box in image.boxes) == sorted(classes.tolist())
        assert sorted(box.score for box in image.boxes) == pytest.approx(sorted(scores.tolist()), abs=1e-5)
    assert len({len(image.boxes) for image in found}) == 2  # each image has a number of its own
