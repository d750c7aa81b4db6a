"""Detectors that packages ship: boxes are those of the package's own code."""

import ast
import json
import os
import re
import subprocess
import sys

import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image, ImageDraw, ImageFont

import serfer
from serfer.core.plan import Pad, Preprocess
from tests.package_networks import DDDDOCR, ISBNX, NUDENET, OPENCV, RAPIDOCR, unpacked

THRESHOLDS = [(0.02, 0.45), (0.002, 1.0)]
"""Least scores and most overlaps: boxes as they are kept, and all that are decoded."""
SQUARE = Preprocess(None, "opencv-bilinear", "BGR", 1 / 255, (0.0,) * 3, (1.0,) * 3, Pad("square", 0))
DETECT = """
import json, sys
source = open(sys.argv[1], encoding="utf-8").read()
for usual, lower in ((">= 0.2:", ">= {0}:"), ("scores, 0.25, 0.45", "scores, {0}, {1}")):
    assert usual in source
    source = source.replace(usual, lower.format(*sys.argv[2:4]))
code = {"__name__": "detector", "__file__": sys.argv[1]}
exec(compile(source, sys.argv[1], "exec"), code)
detector = code["NudeDetector"]()
print(json.dumps([detector.detect(path) for path in sys.argv[4:]]))
"""
"""NudeNet's own detector with lower thresholds: no picture here has what it looks for."""

CORNER = Preprocess(None, "opencv-bilinear", "BGR", 1.0, (0.0,) * 3, (1.0,) * 3, Pad("corner", 114))
FIND_TEXT = """
import json, sys
from ddddocr import DdddOcr
detector = DdddOcr(det=True, show_ad=False)
print(json.dumps([detector.detection(open(path, "rb").read()) for path in sys.argv[1:]]))
"""

LETTERBOX = Preprocess(None, "bilinear", "RGB", 1 / 255, (0.0,) * 3, (1.0,) * 3, Pad("centre", 114))
FIND_NUMBERS = """
from __future__ import annotations
import ast, json, sys
from types import SimpleNamespace
import numpy as np, onnxruntime as ort
from PIL import Image
source = ast.parse(open(sys.argv[1], encoding="utf-8").read())
own = {"_nms_numpy", "Detector", "_preprocess", "_pick_boxes", "_scale_box"}
source.body = [node for node in source.body if getattr(node, "name", "") in own]
for node in source.body:
    if isinstance(node, ast.ClassDef):
        node.body = [method for method in node.body if getattr(method, "name", "") in own]
code = {"np": np, "Image": Image}
exec(compile(source, sys.argv[1], "exec"), code)
detector = code["Detector"]()
side = int(sys.argv[4])
settings = {"input_width": side, "input_height": side, "letterbox_color": "114,114,114", "padding": 0}
detector._config = SimpleNamespace(detector=SimpleNamespace(conf_threshold=float(sys.argv[3]), **settings))
session = ort.InferenceSession(sys.argv[2])
found = []
for path in sys.argv[5:]:
    image = Image.open(path)
    tensor, scale, x, y = detector._preprocess(image)
    [output] = session.run(None, {"images": tensor})
    placed = [
        (detector._scale_box(box, image_size=image.size, scale=scale, pad_x=x, pad_y=y), score, kind)
        for box, score, kind in detector._pick_boxes(output)
    ]
    found.append([item for item in placed if item[0]])
print(json.dumps(found))
"""
"""The methods of isbnx's detector that prepare images and read boxes, without what the others import."""


def run(code, arguments, *folders):
    """Return what a program says as JSON, whose imports are found in `folders` first."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    told = subprocess.run(command, check=True, capture_output=True, env=environment, timeout=600)
    return json.loads(told.stdout)


def overlap(one, other):
    """Return the intersection of two boxes (left, top, right, bottom) over their union."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    common = max(0, width) * max(0, height)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return common / (sum(areas) - common)


def saved(folder, images):
    """Write images as PNG, which every decoder reads alike; return their paths."""
    folder.mkdir()
    paths = [folder / f"{number}.png" for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        image.convert("RGB").save(path)
    return paths


def parts_of(examples, *parts):
    """Return examples by their names, each whole or cut to a box."""
    images = [(Image.open(examples / name), box) for name, box in parts]
    return [image.crop(box or (0, 0, *image.size)) for image, box in images]


@pytest.mark.weekly
def test_boxes_of_nudenet_are_those_of_its_own_code(examples, tmp_path):
    package, opencv = unpacked(NUDENET, tmp_path), unpacked(OPENCV, tmp_path)
    code, network = package / "nudenet" / "nudenet.py", package / "nudenet" / "320n.onnx"
    labels = ast.literal_eval(re.search(r"__labels = (\[.*?\])", code.read_text("utf-8"), re.DOTALL)[1])
    small = [("chelsea.png", (100, 0, 250, 300)), ("rocket.jpg", (0, 0, 61, 40))]
    images = parts_of(examples, ("rocket.jpg", None), ("coffee.png", None), *small)
    paths = saved(tmp_path / "pictures", images)
    example = np.zeros((1, 3, 320, 320), dtype=np.float32)
    for min_score, max_iou in THRESHOLDS:
        given = {
            "preprocess": SQUARE,
            "labels": labels,
            "activation": f"boxes,score={min_score},iou={max_iou},most=1000",
        }
        plan = serfer.split(network, example, tmp_path / "plan", grids="1", **given)
        assert plan.detection.family == "yolov8"
        with serfer.open(tmp_path / "plan", workers="inprocess") as pipeline:
            images = [pipeline.predict([path])[0] for path in paths]
        theirs = run(DETECT, (code, min_score, max_iou, *paths), opencv)
        assert any(theirs)
        for image, boxes in zip(images, theirs, strict=True):
            check(image, boxes, labels, max_iou)


def check(image, theirs, labels, max_iou):
    """Compare boxes: whatever NudeNet's class, its suppression leaves out what overlaps; and it truncates to pixels.

    It moves a box that begins outside of the image to its edge, and keeps its width: only its corner is compared.
    """
    kept = []
    for ours in image.boxes:
        if all(overlap(ours.box, other.box) <= max_iou for other in kept):
            kept.append(ours)
    assert len(kept) == len(theirs)
    for ours, box in zip(kept, theirs, strict=True):
        assert (labels[ours.index], ours.label) == (box["class"], box["class"])
        assert ours.score == pytest.approx(box["score"], abs=1e-5)
        left, top, right, bottom = ours.box
        x, y, width, height = box["box"]
        assert (x, y) == pytest.approx((left, top), abs=1)
        assert left == 0 or width == pytest.approx(right - left, abs=1)
        assert top == 0 or height == pytest.approx(bottom - top, abs=1)


def letters():
    """Draw pictures of a few letters, wide and high; the detector of ddddocr finds those."""
    random = np.random.default_rng(0)
    for width, height in [(300, 150), (150, 400), (833, 417)]:
        image = Image.new("RGB", (width, height), "white")
        draw = ImageDraw.Draw(image)
        for letter in "aKt7e":
            x, y = random.uniform(0.05, 0.75, 2) * (width, height)
            draw.text((x, y), letter, fill="black", font=ImageFont.load_default(min(width, height) / 5))
        yield image


@pytest.mark.weekly
def test_boxes_of_ddddocr_a_yolox_head_are_those_of_its_own_code(tmp_path):
    package, opencv = unpacked(DDDDOCR, tmp_path), unpacked(OPENCV, tmp_path)
    paths = saved(tmp_path / "pictures", [*letters()])
    theirs = run(FIND_TEXT, paths, package, opencv)
    network = package / "ddddocr" / "common_det.onnx"
    plan = serfer.split(
        network, out=tmp_path / "plan", grids="1", preprocess=CORNER, activation="boxes,score=0.1", labels=["text"]
    )
    assert plan.detection.family == "yolox"
    assert any(theirs)
    with serfer.open(tmp_path / "plan", workers="inprocess") as pipeline:
        for path, boxes in zip(paths, theirs, strict=True):
            [image] = pipeline.predict([path])
            assert [[int(side) for side in box.box] for box in image.boxes] == boxes


def pages():
    """Draw pages with numbers of books in letters and in bars, as high as wide, wide, and high."""
    random = np.random.default_rng(1)
    for width, height in [(640, 640), (801, 533), (415, 900)]:
        image = Image.new("L", (width, height), "white")
        draw = ImageDraw.Draw(image)
        left, top = 0.1 * width, 0.7 * height
        draw.text((left, top), "ISBN 978-7-111-12345-6", fill="black", font=ImageFont.load_default(height / 25))
        for x in range(60):
            if random.random() < 0.5:
                draw.rectangle((left + 3 * x, top + 0.08 * height, left + 3 * x + 2, top + 0.2 * height), fill="black")
        yield image


@pytest.mark.weekly
def test_boxes_of_isbnx_whose_network_keeps_the_best_itself_are_those_of_its_own_code(tmp_path):
    package = unpacked(ISBNX, tmp_path) / "isbnx"
    network, side, least = package / "model" / "best.onnx", 640, 0.01
    paths = saved(tmp_path / "pages", [*pages()])
    theirs = run(FIND_NUMBERS, (package / "detector.py", network, least, side, *paths))
    assert all(theirs)
    example = np.zeros((1, 3, side, side), dtype=np.float32)
    plan = serfer.split(
        network, example, tmp_path / "plan", preprocess=LETTERBOX, activation=f"boxes,score={least},iou=0.45"
    )
    assert plan.detection.family == "end2end"
    with serfer.open(tmp_path / "plan", workers="inprocess") as pipeline:
        for path, boxes in zip(paths, theirs, strict=True):
            [image] = pipeline.predict([path])
            assert [box.index for box in image.boxes] == [kind for _, _, kind in boxes]
            assert [box.score for box in image.boxes] == pytest.approx([score for _, score, _ in boxes], abs=1e-5)
            for box, (wanted, _, _) in zip(image.boxes, boxes, strict=True):
                assert box.box == pytest.approx(wanted, abs=1 + 1e-3)


OCR = "rapidocr_onnxruntime/models/ch_"
TOLERANCE = 1e-4
"""Of probabilities."""
PREPARE = """
import sys, types
from importlib.util import module_from_spec, spec_from_file_location
import cv2, numpy
for name in ("pyclipper", "shapely", "shapely.geometry"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["shapely.geometry"].Polygon = None
spec = spec_from_file_location("utils", sys.argv[1])
utils = module_from_spec(spec)
spec.loader.exec_module(utils)
for kind, limit, target, *paths in [sys.argv[2:]]:
    prepare = utils.DetPreProcess(int(limit), kind)
    numpy.savez(target, *(prepare(cv2.imread(path)) for path in paths))
"""
"""RapidOCR's own input of its text detection; what it makes of the answer needs more packages."""


@pytest.mark.weekly
@pytest.mark.parametrize(("kind", "side", "limit"), [("min", "shorter", 736), ("max", "longer", 300)])
def test_text_detection_sees_each_image_at_the_size_that_its_package_gives_it(kind, side, limit, examples, tmp_path):
    package, opencv = unpacked(RAPIDOCR, tmp_path), unpacked(OPENCV, tmp_path)
    file = package / f"{OCR}PP-OCRv4_det_infer.onnx"
    parts = [("chelsea.png", (0, 0, 451, 300)), ("coffee.png", (50, 0, 250, 400)), ("rocket.jpg", None)]
    paths = saved(tmp_path / "pictures", parts_of(examples, *parts))
    utils = file.parents[1] / "ch_ppocr_det" / "utils.py"
    command = [sys.executable, "-c", PREPARE, utils, kind, str(limit), tmp_path / "inputs.npz", *paths]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(opencv)}, timeout=600)
    half = (0.5,) * 3
    prepared = serfer.Preprocess(
        None, "opencv-bilinear", "BGR", 1 / 255, half, half, limit=serfer.SideLimit(side, limit)
    )
    sizes = "32..2016x32..2016,multiple=32,pixels=1600000"
    serfer.whole_plan(file, out=tmp_path / "plan", sizes=sizes, preprocess=prepared)
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    with serfer.open(tmp_path / "plan", store="memory://", workers="inprocess") as pipeline:
        for path, own in zip(paths, np.load(tmp_path / "inputs.npz").values(), strict=True):
            [wanted] = session.run(None, {session.get_inputs()[0].name: own})
            answer = pipeline.run(pipeline.pixels([path]))
            assert answer.shape == wanted.shape
            assert np.abs(answer - wanted).max() <= TOLERANCE
            [found] = pipeline.predict([path])
            assert found.outputs[0].shape == wanted.shape[1:]
