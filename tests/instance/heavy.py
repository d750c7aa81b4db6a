"""A network of 20 MB that computes next to nothing: its memory is seen in a process."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import serfer
from tests.e2e.small import CLASSES, LABELS, PREPROCESS, SIZE

HIDDEN = 1500
WEIGHTS = (3 * SIZE * SIZE + CLASSES) * HIDDEN * 4
"""Bytes of its weights, but for a few."""


def split_heavy(directory):
    """Split the network into `directory`/plan, and return that path."""
    random = np.random.default_rng(0)
    weights = {
        "w1": random.normal(0, 0.02, (3 * SIZE * SIZE, HIDDEN)),
        "b1": np.zeros(HIDDEN),
        "w2": random.normal(0, 0.1, (HIDDEN, CLASSES)),
        "b2": np.zeros(CLASSES),
    }
    nodes = [
        helper.make_node("Flatten", ["input"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w1", "b1"], ["h"], "fc1"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["logits"], "fc2"),
    ]
    graph = helper.make_graph(
        nodes,
        "heavy",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), directory / "h.onnx"
    )
    chosen = {"preprocess": PREPROCESS, "labels": LABELS, "activation": "softmax"}
    serfer.split(str(directory / "h.onnx"), out=directory / "plan", grids=[(1, 1)], stages=1, **chosen)
    return directory / "plan"
