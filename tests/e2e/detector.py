"""A small detector with a YOLOv8 head, which splits in a second."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

import serfer
from tests.e2e.small import PREPROCESS
from tests.splitter.models import Net

SIZE = 64
CLASSES = ("cat", "dog", '<b>"bird"</b>')
CELLS = 8 * 8 + 4 * 4 + 2 * 2
_COLUMNS = 4 + len(CLASSES)


def detector_onnx():
    """Cells of strides 8, 16 and 32, each with a box and scores of classes: output0 (N, 7, 84)."""
    random, net = np.random.default_rng(3), Net(3, SIZE, SIZE)
    net.constant(random.normal(0, 0.1, (8, 3, 8, 8)).astype(np.float32), "w")
    net.constant(random.normal(0, 1.0, (_COLUMNS, 8, 1, 1)).astype(np.float32), "h")
    for name, value in (("flat", [0, _COLUMNS, -1]), ("size", np.float32(SIZE)), ("parts", [4, len(CLASSES)])):
        net.constant(value, name)
    net.op("Conv", "images", "w", output="c8", kernel_shape=[8, 8], strides=[8, 8])
    net.op("AveragePool", "c8", output="c16", kernel_shape=[2, 2], strides=[2, 2])
    net.op("AveragePool", "c16", output="c32", kernel_shape=[2, 2], strides=[2, 2])
    for stride in (8, 16, 32):
        net.op("Conv", f"c{stride}", "h", output=f"h{stride}", kernel_shape=[1, 1])
        net.op("Reshape", f"h{stride}", "flat", output=f"f{stride}")
    net.op("Concat", "f8", "f16", "f32", output="all", axis=2)
    net.op("Sigmoid", "all", output="shares")
    net.op("Split", "shares", "parts", output="box", axis=1)
    net.nodes[-1].output.append("scores")
    net.op("Mul", "box", "size", output="pixels")
    net.op("Concat", "pixels", "scores", output="output0", axis=1)
    return net.model("output0", name="images", dims=("N", _COLUMNS, CELLS))


def suppressed_onnx(*, gathered):
    """Return the detector for one image, with NonMaxSuppression behind it, and what that selects or its indices."""
    model = detector_onnx()
    graph = model.graph
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    constants = {
        "most": np.array([20]),
        "iou": np.array([0.4], dtype=np.float32),
        "least": np.array([0.3], dtype=np.float32),
        "half": np.array(0.5, dtype=np.float32),
        "first": np.array([0]),
        "kinds": np.array([1]),
        "places": np.array([2]),
        "pair": np.array([1, 2]),
    }
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    nodes = [
        helper.make_node("Transpose", ["pixels"], ["rows"], perm=[0, 2, 1]),
        helper.make_node("Split", ["rows"], ["middle", "sides"], axis=2, num_outputs=2),
        helper.make_node("Mul", ["sides", "half"], ["halves"]),
        helper.make_node("Sub", ["middle", "halves"], ["least_corner"]),
        helper.make_node("Add", ["middle", "halves"], ["most_corner"]),
        helper.make_node("Concat", ["least_corner", "most_corner"], ["boxes"], axis=2),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["selected"]),
        helper.make_node("Unsqueeze", ["selected", "first"], ["indices"]),
        helper.make_node("Squeeze", ["boxes", "first"], ["all_boxes"]),
        helper.make_node("Squeeze", ["scores", "first"], ["all_scores"]),
        helper.make_node("Gather", ["selected", "places"], ["place"], axis=1),
        helper.make_node("GatherND", ["all_boxes", "place"], ["found_boxes"]),
        helper.make_node("Gather", ["selected", "pair"], ["kind_and_place"], axis=1),
        helper.make_node("GatherND", ["all_scores", "kind_and_place"], ["found_scores"]),
        helper.make_node("Gather", ["selected", "kinds"], ["kind"], axis=1),
        helper.make_node("Squeeze", ["kind", "kinds"], ["found_labels"]),
    ]
    graph.node.extend(nodes)
    del graph.output[:]
    outputs = [("found_boxes", 1, ["M", 4]), ("found_scores", 1, ["M"]), ("found_labels", 7, ["M"])]
    if not gathered:
        outputs = [("indices", 7, [1, "M", 3]), ("boxes", 1, [1, CELLS, 4]), ("scores", 1, [1, len(CLASSES), CELLS])]
    for name, kind, dims in outputs:
        graph.output.append(helper.make_tensor_value_info(name, kind, dims))
    onnx.checker.check_model(model)
    return model


def split_detector(directory, **settings):
    """Split the detector into `directory`/plan; return that path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "detector.onnx"
    onnx.save(detector_onnx(), path)
    chosen = {"grids": "1", "preprocess": PREPROCESS, "labels": CLASSES, "activation": "boxes", **settings}
    serfer.split(path, out=directory / "plan", **chosen)
    return directory / "plan"
