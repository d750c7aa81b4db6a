"""A small detector with a YOLOv8 head, which splits in a second."""

import numpy as np
import onnx
from onnx import helper

import serfer
from tests.e2e.small import PREPROCESS
from tests.splitter.models import Net

SIZE = 64
CLASSES = ("cat", "dog", '<b>"bird"</b>')
CELLS = 8 * 8 + 4 * 4 + 2 * 2
_COLUMNS = 4 + len(CLASSES)


def detector_onnx():
    """Cells of strides 8, 16 and 32, each with a box and scores of classes: output0 (N, 7, 84)."""
    return _net().model("output0", name="images", dims=("N", _COLUMNS, CELLS))


def _net(**batch):
    random, net = np.random.default_rng(3), Net(3, SIZE, SIZE, **batch)
    net.constant(random.normal(0, 0.1, (8, 3, 8, 8)).astype(np.float32), "w")
    net.constant(random.normal(0, 1.0, (_COLUMNS, 8, 1, 1)).astype(np.float32), "h")
    for name, value in (("flat", [0, _COLUMNS, -1]), ("size", np.float32(SIZE)), ("parts", [4, len(CLASSES)])):
        net.constant(value, name)
    net.op("Conv", "images", "w", output="s8", kernel_shape=[8, 8], strides=[8, 8])
    net.op("AveragePool", "s8", output="s16", kernel_shape=[2, 2], strides=[2, 2])
    net.op("AveragePool", "s16", output="s32", kernel_shape=[2, 2], strides=[2, 2])
    for stride in (8, 16, 32):
        net.op("Conv", f"s{stride}", "h", output=f"h{stride}", kernel_shape=[1, 1])
        net.op("Reshape", f"h{stride}", "flat", output=f"f{stride}")
    net.op("Concat", "f8", "f16", "f32", output="all", axis=2)
    net.op("Sigmoid", "all", output="shares")
    net.op("Split", "shares", "parts", output="box", others=["scores"], axis=1)
    net.op("Mul", "box", "size", output="pixels")
    net.op("Concat", "pixels", "scores", output="output0", axis=1)
    return net


def suppressed_onnx(*, gathered):
    """Return the detector for one image, with NonMaxSuppression behind it, and what that selects or its indices."""
    net = _net(batch=1)
    most, first, kinds, places, pair = (net.constant(np.array(value)) for value in ([20], [0], [1], [2], [1, 2]))
    iou, least, half = (net.constant(np.array(value, np.float32)) for value in ([0.4], [0.3], 0.5))
    rows = net.op("Transpose", "pixels", perm=[0, 2, 1])
    middle = net.op("Split", rows, others=["sides"], axis=2, num_outputs=2)
    halves = net.op("Mul", "sides", half)
    net.op("Concat", net.op("Sub", middle, halves), net.op("Add", middle, halves), output="boxes", axis=2)
    selected = net.op("NonMaxSuppression", "boxes", "scores", most, iou, least)
    net.op("Unsqueeze", selected, first, output="indices")
    boxes, scores = (net.op("Squeeze", tensor, first) for tensor in ("boxes", "scores"))
    net.op("GatherND", boxes, net.op("Gather", selected, places, axis=1), output="found_boxes")
    net.op("GatherND", scores, net.op("Gather", selected, pair, axis=1), output="found_scores")
    net.op("Squeeze", net.op("Gather", selected, kinds, axis=1), kinds, output="found_labels")
    outputs = [("found_boxes", 1, ["M", 4]), ("found_scores", 1, ["M"]), ("found_labels", 7, ["M"])]
    if not gathered:
        outputs = [("indices", 7, [1, "M", 3]), ("boxes", 1, [1, CELLS, 4]), ("scores", 1, [1, len(CLASSES), CELLS])]
    model = net.model("output0", name="images", dims=(1, _COLUMNS, CELLS))
    del model.graph.output[:]
    model.graph.output.extend(helper.make_tensor_value_info(*output) for output in outputs)
    onnx.checker.check_model(model)
    return model


def split_detector(directory, **settings):
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "detector.onnx"
    onnx.save(detector_onnx(), path)
    chosen = {"grids": "1", "preprocess": PREPROCESS, "labels": CLASSES, "activation": "boxes", **settings}
    serfer.split(path, out=directory / "plan", **chosen)
    return directory / "plan"
