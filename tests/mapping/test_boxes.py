"""Boxes of whole images: those of the detector that ONNX Runtime runs on all of the image, decoded as they are."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import serfer as package
from serfer.core.detections import Boxes, decoded, without_overlaps
from serfer.core.errors import ModelError, PlanError, UsageError
from serfer.core.frame_decoder import FrameDecoder, Head
from serfer.core.geometry import Rect, Span
from serfer.core.plan import DetectionHead
from serfer.mapping.box_files import GEOGRAPHIC, IN_PIXELS, BoxedImage, write_boxes
from serfer.mapping.input import PaddedSource
from serfer.raster import Georeference, open_raster
from tests.mapping.detectors import save
from tests.mapping.networks import run
from tests.mapping.plans import map_command
from tests.raster.files import UTM, WHERE, pixels, write, write_scans

HEIGHT, WIDTH = 403, 517
PADDED = (416, 544)
FRAME = (192, 256)
GREY = 114
ULTRALYTICS = {"stride": "32", "names": "{0: 'ant', 1: 'bee', 2: 'cow'}", "task": "detect", "imgsz": "[192, 256]"}


def expected(path, image, family, head, value=0.0):
    """Return the boxes that the detector at `path`, written again for the padded image, gives of an image."""
    height, width = image.shape[1:]
    size = tuple(-(-side // 32) * 32 for side in (height, width))
    whole = save(path.with_name("whole.onnx"), size, family)
    padded = np.full((1, 3, *size), value, np.float32)
    padded[0, :, :height, :width] = image
    return best(decoded(head, [run(whole, padded)[0]], size), head, height, width)


def best(boxes, head, height=HEIGHT, width=WIDTH):
    boxes = boxes[boxes.scores >= head.min_score]
    boxes = boxes[np.argsort(-boxes.scores, kind="stable")]
    boxes = boxes[without_overlaps(boxes, head.max_iou, len(boxes))]
    corners = np.clip(boxes.corners, 0, [width, height, width, height])
    return Boxes(corners, boxes.scores, boxes.classes)[(corners[:, :2] < corners[:, 2:]).all(axis=1)]


def check_coco(path, boxes):
    found = json.loads(path.read_text())["annotations"]
    scores = np.array([each["score"] for each in found])
    assert len(found) == len(boxes) > 100
    assert (np.diff(scores) <= 0).all()
    corners = np.array([each["bbox"] for each in found])
    corners[:, 2:] += corners[:, :2]
    nearest = np.abs(corners[:, None] - boxes.corners).max(axis=2).argmin(axis=1)
    assert len({*nearest.tolist()}) == len(boxes)
    boxes = boxes[nearest]  # scores that are nearly equal are not in one order
    assert np.abs(corners - boxes.corners).max() < 0.011  # two decimals
    assert np.abs(scores - boxes.scores).max() < 1e-5
    assert [each["category_id"] for each in found] == (boxes.classes + 1).tolist()


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return save(tmp_path_factory.mktemp("detector") / "detector.onnx", FRAME, metadata=ULTRALYTICS)


@pytest.fixture(scope="module")
def detector_plan(network, tmp_path_factory):
    """A plan of a file that says by itself that it is a detector, how its images are padded, and its classes."""
    directory = tmp_path_factory.mktemp("detector") / "plan"
    package.map_plan(network, "any", directory, window=24)
    return directory


@pytest.fixture
def size():
    return HEIGHT, WIDTH


@pytest.fixture
def command(image, detector_plan):
    return ("map", image, "--plan", detector_plan, "--workers", "inprocess", "--set", "min_score=0.7", "--out")


@pytest.mark.exact
def test_boxes_are_those_of_the_detector_on_the_whole_image(serfer, report_of, command, network, tmp_path):
    head = DetectionHead("yolov8", ("output0",), 3, min_score=0.7)
    boxes = expected(network, pixels(HEIGHT, WIDTH) / np.float32(255), "yolov8", head, GREY / 255)
    report = report_of(*command, tmp_path / "boxes.json")
    [result] = report["results"]
    assert (result["boxes"], result["height"], result["width"]) == (len(boxes), HEIGHT, WIDTH)
    assert report["windows"] == 9
    check_coco(tmp_path / "boxes.json", boxes)
    coco = json.loads((tmp_path / "boxes.json").read_text())
    assert coco["images"] == [{"id": 1, "file_name": "image.tif", "height": HEIGHT, "width": WIDTH}]
    assert [each["name"] for each in coco["categories"]] == ["ant", "bee", "cow"]
    done = serfer(*command, tmp_path / "boxes.geojson")
    assert f"{len(boxes):,} boxes" in done.out
    collection = json.loads((tmp_path / "boxes.geojson").read_text())
    assert (collection["type"], collection["coordinates"]) == ("FeatureCollection", GEOGRAPHIC)
    first = collection["features"][0]["properties"]
    assert first["label"] == ["ant", "bee", "cow"][boxes.classes[0]]
    assert first["box"] == pytest.approx(boxes.corners[0], abs=0.006)
    assert not [*tmp_path.glob("*.parts")]


@pytest.mark.exact
def test_boxes_of_windows_in_any_order_are_those_of_serfer_map(report_of, command, image, detector_plan, tmp_path):
    report_of(*command, tmp_path / "boxes.json")
    windows = package.windows(image, detector_plan, boxes=True)
    boxes = windows.choose_boxes(window.run() for window in windows[::-1])
    check_coco(tmp_path / "boxes.json", boxes[boxes.scores >= 0.7])
    assert [len(group) for group in windows.groups()] == [1] * len(windows)
    with pytest.raises(UsageError, match="among what all 9 windows"):
        windows.choose_boxes([])
    maps = package.windows(image, detector_plan)
    given = package.windows((HEIGHT, WIDTH), detector_plan)  # the padding is not given
    for name, part in maps[8].run().items():
        pixels_read = pixels(HEIGHT, WIDTH)[:, *given[8].reads.slices]
        np.testing.assert_array_equal(given[8].compute(pixels_read)[name], part)


def test_one_plan_has_the_boxes_of_images_of_any_size(serfer, detector_plan, network, tmp_path):
    head = DetectionHead("yolov8", ("output0",), 3, min_score=0.7)
    sizes = {"a": (HEIGHT + 1, WIDTH), "b": (385, 257), "c": (130, 700), "small": (90, 300)}
    scans = write_scans(tmp_path / "scans", sizes)
    command = map_command(scans, detector_plan, tmp_path / "boxes", "--set=min_score=0.7", "--set=suffix=.json")
    serfer(*command).ends(1, "takes heights and widths of 128 pixels or more that are multiples of 32")
    assert not (tmp_path / "boxes" / "small.json").exists()
    for name in ("a", "b", "c"):
        values = pixels(*sizes[name]) / np.float32(255)
        boxes = expected(network, values, "yolov8", head, GREY / 255)
        check_coco(tmp_path / "boxes" / f"{name}.json", boxes)


@pytest.mark.exact
@pytest.mark.parametrize("family", ["yolov5", pytest.param("yolox", marks=pytest.mark.weekly)])
def test_boxes_of_other_families_are_those_of_the_whole_image(serfer, tmp_path, family):
    values = pixels(HEIGHT, WIDTH) / np.float32(255)
    image = write(tmp_path / "image.tif", values)
    network, plan, out = save(tmp_path / "net.onnx", FRAME, family), tmp_path / "plan", tmp_path / "boxes.json"
    planned = serfer(
        *("map-plan", network, "--size", f"{HEIGHT}x{WIDTH}", "--set", "window=24", "--out", plan),
        *("--set", f"output=boxes:{family},score=0.6,iou=0.3"),
    ).ends(0)
    assert f"boxes of 3 classes of the whole image, as {family} has them, of a score of 0.6 or more" in planned.out
    assert serfer(*map_command(image, plan, out)).code == 0
    head = DetectionHead(family, ("output0",), 3, min_score=0.6, max_iou=0.3)
    check_coco(out, expected(network, values, family, head))


class Detector(nn.Module):
    """A module that makes its grid of the image's size, as YOLO's does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = lambda before: nn.Sequential(nn.Conv2d(before, 8, 3, 2, 1), nn.SiLU())  # noqa: E731 - short
        self.layers = nn.ModuleList([nn.Sequential(layer(3), layer(8), layer(8)), layer(8), layer(8)])
        self.heads = nn.ModuleList(nn.Conv2d(8, 6, 1) for _ in range(3))

    def forward(self, image):
        maps, x = [], image
        for each in self.layers:
            x = each(x)
            maps.append(x)
        maps[1] = maps[1] + nn.functional.interpolate(maps[2], scale_factor=2.0)
        tables = []
        for head, each, stride in zip(self.heads, maps, (8, 16, 32), strict=True):
            y = head(each)
            down, across = torch.meshgrid(torch.arange(y.shape[2]), torch.arange(y.shape[3]), indexing="ij")
            places = torch.stack([across, down])[None] + 0.5
            parts = [(places + y[:, :2]) * stride, y[:, 2:4].exp() * stride, (4 * y[:, 4:]).sigmoid()]
            tables.append(torch.cat(parts, 1).flatten(2))
        return torch.cat(tables, 2)


@pytest.mark.exact
@pytest.mark.weekly
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter, about torch
def test_boxes_of_a_module_are_those_of_the_module_on_the_whole_image(tmp_path):
    network, values = Detector().eval(), pixels(HEIGHT, WIDTH) / np.float32(255)
    image = write(tmp_path / "image.tif", values)
    package.map_plan(network, [(HEIGHT, WIDTH)], tmp_path / "plan", window=24, output="boxes:yolov8,score=0.5")
    package.map(image, tmp_path / "plan", tmp_path / "boxes.json")
    padded = np.zeros((1, 3, *PADDED), np.float32)
    padded[0, :, :HEIGHT, :WIDTH] = values
    with torch.no_grad():
        output = network(torch.from_numpy(padded))[0].numpy()
    head = DetectionHead("yolov8", ("output",), 2, min_score=0.5)
    check_coco(tmp_path / "boxes.json", best(decoded(head, [output], PADDED), head))


def test_a_map_of_boxes_that_was_stopped_goes_on_with_the_same_thresholds(serfer, report_of, command, tmp_path):
    assert serfer(*command, tmp_path / "whole.json").code == 0
    out = tmp_path / "boxes.json"
    stopped = serfer(*command, out, "--max-cost-usd=3e-6", "--set=force=true", "--set=concurrency=1", "--json").ends(1)
    computed = stopped.report["computed"]
    assert 0 < computed < 9
    serfer(*command, out, "--set", "min_score=0.8").ends(3, "options.min_score was 0.7, and is 0.8 now")
    part = next((tmp_path / "boxes.json.parts").glob("c.0.0.*"))
    part.write_bytes(part.read_bytes()[:-9])
    report = report_of(*command, out)
    assert report["resumed"] == computed - 1
    assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_windows_without_data_have_no_boxes(serfer, detector_plan, tmp_path):
    values = np.maximum(pixels(HEIGHT, WIDTH), 1)
    values[:, :, :230] = 0
    image = write(tmp_path / "image.tif", values, nodata=0)
    out = tmp_path / "boxes.geojson"
    done = serfer(*map_command(image, detector_plan, out, "--json", "--set=min_score=0.7"))
    assert done.report["empty"] == 3
    collection = json.loads(out.read_text())
    assert collection["coordinates"] == IN_PIXELS
    assert min(each["properties"]["box"][0] for each in collection["features"]) > 90


def test_more_candidates_than_memory_holds_are_refused_with_the_option(serfer, command, tmp_path, monkeypatch):
    monkeypatch.setattr("serfer.mapping.boxes.MOST_CANDIDATES", 100)
    serfer(*command, tmp_path / "boxes.json").ends(
        2, "more than 100 boxes have at least the least score: give a higher min_score"
    )
    assert not (tmp_path / "boxes.json").exists()


def test_what_goes_with_boxes_and_what_does_not_is_said(serfer, map_image, command, detector_plan, image, tmp_path):
    assert serfer(*command, tmp_path / "maps.tif").code == 2  # --min-score
    map_image(image, detector_plan, tmp_path / "maps.npy")
    shapes = [np.load(path).shape for path in sorted(tmp_path.glob("maps.*.npy"))]
    assert sorted(shapes) == [(19, 13, 17), (19, 26, 34), (19, 52, 68)]  # the heads of the padded image
    (detector_plan / "decoder.onnx").rename(detector_plan / "away.onnx")
    try:
        assert "options of serfer map, min_score" in serfer("describe", detector_plan, "--output", "boxes").err
        assert "decoder.onnx is missing" in serfer(*command, tmp_path / "boxes.json").err
    finally:
        (detector_plan / "away.onnx").rename(detector_plan / "decoder.onnx")


@pytest.mark.parametrize(
    ("given", "output", "reason"),
    [
        ({"attention": True}, "boxes:yolov8", r"\(GlobalAveragePool\) cannot be split: it looks at the whole image"),
        ({"tail": "TopK"}, "boxes:yolov8", r"\(TopK\) cannot be split: it keeps the best boxes of an image.*nms=None"),
        ({}, "boxes:end2end", "are not those of a detector of the family end2end"),
        ({}, "boxes:yolov8,most=20", "most=N is for single images"),
        ({}, "softmax", "--output is boxes, of a detector"),
    ],
)
def test_detectors_that_no_windows_can_have_are_refused_by_name(tmp_path, given, output, reason):
    network = save(tmp_path / "net.onnx", FRAME, **given)
    with pytest.raises((ModelError, UsageError), match=reason):
        package.map_plan(network, [(HEIGHT, WIDTH)], tmp_path / "plan", output=output)
    assert not (tmp_path / "plan").exists()


CLASSES, CELLS = 2, {8: 3, 16: 5}
HEAD = DetectionHead("yolov5", ("table",), CLASSES)
HEADS = [Head("fine", 7, 8), Head("coarse", 7, 16)]


def table(maps):
    """Return boxes of two maps of strides 8 and 16, centres counted from the cell, as YOLOv5's decoder has them."""
    rows = []
    for head in HEADS:
        values = maps[head.name][0]
        down, across = np.indices(values.shape[1:])
        places = np.stack([across + values[0], down + values[1]]) * head.stride
        sides = np.exp(values[2:4]) * head.stride
        rows.append(np.concatenate([places, sides, 1 / (1 + np.exp(-values[4:]))]).reshape(7, -1).T)
    return [np.concatenate(rows)[None]]


@given(
    size=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    frame=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    cut=st.tuples(st.integers(0, 7), st.integers(0, 7)),
    seed=st.integers(0, 9),
)
@settings(deadline=None, max_examples=40)
def test_windows_decoded_by_frames_have_the_boxes_of_the_whole(size, frame, cut, seed):
    random = np.random.default_rng(seed)
    image = (16 * size[0], 16 * size[1])
    maps = {
        each.name: random.normal(0, 1, (1, 7, *(side // each.stride for side in image))).astype(np.float32)
        for each in HEADS
    }
    decoder = FrameDecoder(HEAD, HEADS, (16 * frame[0], 16 * frame[1]), table)
    edges = [sorted({0, min(place, side), side}) for place, side in zip(cut, size, strict=True)]
    found = [np.empty((0, 7))]
    for top, bottom in zip(edges[0], edges[0][1:], strict=False):
        for left, right in zip(edges[1], edges[1][1:], strict=False):
            scales = {each.name: 16 // each.stride for each in HEADS}
            part = {
                name: maps[name][:, :, top * scale : bottom * scale, left * scale : right * scale]
                for name, scale in scales.items()
            }
            found.append(decoder.candidates(part, (16 * top, 16 * left), image, 0.3))
    got = np.concatenate(found)
    got = got[np.argsort(got[:, 6])]
    whole = decoded(HEAD, [table(maps)[0][0]], image)
    kept = np.flatnonzero(whole.scores >= 0.3)
    assert got[:, 6].tolist() == kept.tolist()
    assert np.allclose(got[:, :4], whole.corners[kept], atol=1e-3)
    assert np.allclose(got[:, 4], whole.scores[kept])
    assert got[:, 5].tolist() == whole.classes[kept].tolist()


def test_boxes_that_depend_on_other_cells_are_not_decoded_by_frames():
    def centred(maps):
        [rows] = table(maps)
        rows[..., :2] -= rows[..., :2].mean(axis=1, keepdims=True)
        return [rows]

    with pytest.raises(PlanError, match="depend on more than the cell"):
        FrameDecoder(HEAD, HEADS, (32, 48), centred).places  # noqa: B018 - measured there


def test_rings_are_counterclockwise_and_lie_at_longitude_and_latitude(tmp_path):
    boxes = Boxes(np.array([[10.0, 20.0, 30.0, 60.0]]), np.array([0.5]), np.array([7]))
    for georeference, first in ((Georeference(UTM, tuple(WHERE)[:6]), (13.5, 52.3)), (Georeference(), (10, 20))):
        image = BoxedImage("a.tif", 100, 200, (), georeference)
        write_boxes(tmp_path / "a.geojson", ".geojson", boxes, image)
        [feature] = json.loads((tmp_path / "a.geojson").read_text())["features"]
        [ring] = feature["geometry"]["coordinates"]
        x, y = np.array(ring).T
        assert ring[0] == ring[-1]
        assert (x[:-1] * y[1:] - x[1:] * y[:-1]).sum() > 0
        assert ring[0] == pytest.approx(first, abs=0.1)
        assert feature["properties"] == {"class": 7, "label": "7", "score": 0.5, "box": [10, 20, 30, 60]}


def test_a_padded_image_has_its_own_pixels_and_the_value_beyond_them(tmp_path):
    values = pixels(20, 30)
    with open_raster(write(tmp_path / "image.tif", values)) as source:
        padded = PaddedSource(source, (32, 32), [GREY] * 3)
        whole = np.full((3, 32, 32), GREY, np.uint8)
        whole[:, :20, :30] = values
        for rect in (Rect.whole(32, 32), Rect(Span(3, 9), Span(4, 20)), Rect(Span(25, 32), Span(31, 32))):
            assert np.array_equal(padded.read(rect), whole[:, *rect.slices])
