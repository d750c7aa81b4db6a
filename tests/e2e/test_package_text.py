"""Text networks that a package ships: each image is computed at the size that the package's own code gives it."""

import os
import subprocess
import sys

import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image

import serfer
from tests.package_networks import OPENCV, RAPIDOCR, unpacked

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
    file, paths = package / f"{OCR}PP-OCRv4_det_infer.onnx", []
    for name, box in (("chelsea.png", (0, 0, 451, 300)), ("coffee.png", (50, 0, 250, 400)), ("rocket.jpg", None)):
        paths.append(tmp_path / f"{len(paths)}.png")  # which every decoder reads alike
        with Image.open(examples / name) as image:
            image.convert("RGB").crop(box or (0, 0, *image.size)).save(paths[-1])
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
