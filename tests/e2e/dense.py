"""A small network with outputs of several forms, which splits in a second."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import serfer
from tests.e2e.small import PREPROCESS, SIZE

OUTPUTS = {
    "scores": ("float32", (5, SIZE, SIZE)),
    "classes": ("int64", (SIZE, SIZE)),
    "head/depth": ("float32", (1, SIZE, SIZE)),
    "embedding": ("float32", (5,)),
}
"""Their types and shapes for one image."""


def dense_onnx(names=tuple(OUTPUTS)):
    """Two convolutions, and of their maps scores, the class of each position, a map of one channel, and a vector."""
    random = np.random.default_rng(0)
    weights = {
        "w1": random.normal(0, 0.3, (8, 3, 3, 3)),
        "w2": random.normal(0, 0.3, (5, 8, 3, 3)),
        "w3": random.normal(0, 0.3, (1, 5, 1, 1)),
    }
    nodes = {
        "scores": [
            helper.make_node("Conv", ["input", "w1"], ["c1"], "conv1", kernel_shape=[3, 3], pads=[1] * 4),
            helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
            helper.make_node("Conv", ["r1", "w2"], ["scores"], "conv2", kernel_shape=[3, 3], pads=[1] * 4),
        ],
        "classes": [helper.make_node("ArgMax", ["scores"], ["classes"], "argmax", axis=1, keepdims=0)],
        "head/depth": [helper.make_node("Conv", ["scores", "w3"], ["head/depth"], "conv3", kernel_shape=[1, 1])],
        "embedding": [
            helper.make_node("GlobalAveragePool", ["scores"], ["pooled"], "pool"),
            helper.make_node("Flatten", ["pooled"], ["embedding"], "flatten"),
        ],
    }
    types = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    graph = helper.make_graph(
        [node for name, made in nodes.items() if name in ("scores", *names) for node in made],
        "dense",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info(name, types[OUTPUTS[name][0]], ["N", *OUTPUTS[name][1]]) for name in names],
        [
            numpy_helper.from_array(value.astype(np.float32), name)
            for name, value in weights.items()
            if name != "w3" or "head/depth" in names
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def split_dense(directory, names=tuple(OUTPUTS), **settings):
    """Split the network with the outputs of `names` into `directory`/plan; return that path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "dense.onnx"
    onnx.save(dense_onnx(names), path)
    chosen = {"grids": "2x2", "preprocess": PREPROCESS, **settings}
    serfer.split(path, out=directory / "plan", **chosen)
    return directory / "plan"
