"""Small ONNX networks of all weights one, whose receptive fields show in what they make of an image of one row."""

import numpy as np
import onnxruntime

from tests.support.onnx_graph import Graph


class Network(Graph):
    """A network of one output, (N, channels, H, W) in and (N, 1, H, W) out."""

    def __init__(self, channels=1):
        super().__init__()
        self.channels = channels

    def conv(self, source, kernel=(1, 1), stride=(1, 1), pads=(0, 0, 0, 0), channels=1):
        weights = self.constant(np.full((1, channels, *kernel), 1 / (channels * np.prod(kernel)), np.float32))
        return self.op("Conv", source, weights, strides=[*stride], pads=[*pads], kernel_shape=[*kernel])

    def pool(self, source, kernel, stride, pads=(0, 0, 0, 0)):
        return self.op("MaxPool", source, kernel_shape=[*kernel], strides=[*stride], pads=[*pads])

    def crop(self, source, top=0, left=0, bottom=0, right=0):
        last = np.iinfo(np.int64).max
        stops = [-cut or last for cut in (bottom, right)]
        bounds = [self.constant(np.array(values, np.int64)) for values in ([top, left], stops, [2, 3])]
        return self.op("Slice", source, *bounds)

    def enlarge(self, source, factor, mode="nearest"):
        scales = self.constant(np.array([1, 1, factor, factor], np.float32))
        nearest = {"nearest_mode": "floor"} if mode == "nearest" else {}
        how = "asymmetric" if mode == "nearest" else "half_pixel"
        return self.op("Resize", source, "", scales, mode=mode, coordinate_transformation_mode=how, **nearest)

    def add(self, one, other):
        return self.op("Add", one, other)

    def save(self, path):
        return super().save(path, {self.nodes[-1].output[0]: 1}, channels=self.channels, opset=18)


def run_all(network, images):
    """Return all outputs of a network, by its file or its bytes, for images (N, C, H, W)."""
    session = onnxruntime.InferenceSession(network, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: images})


def run(network, images):
    return run_all(network, images)[0]


def rows_read(path, height, width, axis=0, channels=1):
    """Return the first row (or column) of the image that each of the result reads, and the one after its last."""
    size = (height, width)[axis]
    images = np.zeros((size, channels, height, width), np.float32)
    for row in range(size):
        np.moveaxis(images, 2 + axis, 0)[row, row] = 1
    seen = (run(path, images) != 0).any(axis=(1, 3 - axis))  # rows of the image, rows of the result
    return [(np.flatnonzero(each).min(), np.flatnonzero(each).max() + 1) for each in seen.T]
