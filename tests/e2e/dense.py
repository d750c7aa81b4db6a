"""A small network with outputs of several forms, which splits in a second."""

import onnx

import serfer
from tests.e2e.small import PREPROCESS, SAME, SIZE, model_of
from tests.support.onnx_graph import Graph

OUTPUTS = {
    "scores": ("float32", (5, SIZE, SIZE)),
    "classes": ("int64", (SIZE, SIZE)),
    "head/depth": ("float32", (1, SIZE, SIZE)),
    "embedding": ("float32", (5,)),
}
"""Their types and shapes for one image."""


def dense_onnx(names=tuple(OUTPUTS)):
    """Two convolutions, and of their maps scores, the class of each position, a map of one channel, and a vector."""
    net = Graph()
    relu = net.op("Relu", net.op("Conv", "input", net.normal(8, 3, 3, 3), **SAME), output="relu1")
    scores = net.op("Conv", relu, net.normal(5, 8, 3, 3), output="scores", **SAME)
    if "classes" in names:
        net.op("ArgMax", scores, output="classes", axis=1, keepdims=0)
    if "head/depth" in names:
        net.op("Conv", scores, net.normal(1, 5, 1, 1), output="head/depth", kernel_shape=[1, 1])
    if "embedding" in names:
        net.op("Flatten", net.op("GlobalAveragePool", scores), output="embedding")
    return model_of(net, "dense", {name: OUTPUTS[name] for name in names})


def split_dense(directory, names=tuple(OUTPUTS), **settings):
    """Split the network with the outputs of `names` into `directory`/plan; return that path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "dense.onnx"
    onnx.save(dense_onnx(names), path)
    chosen = {"grids": "2x2", "preprocess": PREPROCESS, **settings}
    serfer.split(path, out=directory / "plan", **chosen)
    return directory / "plan"
