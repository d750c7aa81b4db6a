"""Small ONNX networks of all weights one, whose receptive fields show in what they make of an image of one row."""

from dataclasses import dataclass, field

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


@dataclass
class Network:
    """A network that is written operator by operator, (N, channels, H, W) in and (N, 1, H, W) out."""

    channels: int = 1
    nodes: list = field(default_factory=list)
    constants: list = field(default_factory=list)

    def _add(self, kind, inputs, **attributes):
        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def _constant(self, values):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def conv(self, source, kernel=(1, 1), stride=(1, 1), pads=(0, 0, 0, 0), channels=1):
        weights = self._constant(np.full((1, channels, *kernel), 1 / (channels * np.prod(kernel)), np.float32))
        return self._add("Conv", [source, weights], strides=[*stride], pads=[*pads], kernel_shape=[*kernel])

    def pool(self, source, kernel, stride, pads=(0, 0, 0, 0)):
        return self._add("MaxPool", [source], kernel_shape=[*kernel], strides=[*stride], pads=[*pads])

    def crop(self, source, top=0, left=0, bottom=0, right=0):
        last = np.iinfo(np.int64).max
        stops = [-cut or last for cut in (bottom, right)]
        bounds = [self._constant(np.array(each, np.int64)) for each in ([top, left], stops, [2, 3])]
        return self._add("Slice", [source, *bounds])

    def enlarge(self, source, factor, mode="nearest"):
        scales = self._constant(np.array([1, 1, factor, factor], np.float32))
        nearest = {"nearest_mode": "floor"} if mode == "nearest" else {}
        how = "asymmetric" if mode == "nearest" else "half_pixel"
        return self._add("Resize", [source, "", scales], mode=mode, coordinate_transformation_mode=how, **nearest)

    def add(self, one, other):
        return self._add("Add", [one, other])

    def save(self, path):
        """Write the network, whose output is the last operator's."""
        last = self.nodes[-1].output[0]
        shapes = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", count, f"{name}h", f"{name}w"])
            for name, count in (("image", self.channels), (last, 1))
        ]
        graph = helper.make_graph(self.nodes, "net", shapes[:1], shapes[1:], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        path.write_bytes(model.SerializeToString())
        return path


def run(path, images):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"image": images})[0]


def rows_read(path, height, width, axis=0, channels=1):
    """Return the first row (or column) of the image that each of the result reads, and the one after its last."""
    size = (height, width)[axis]
    images = np.zeros((size, channels, height, width), np.float32)
    for row in range(size):
        np.moveaxis(images, 2 + axis, 0)[row, row] = 1
    seen = (run(path, images) != 0).any(axis=(1, 3 - axis))  # rows of the image, rows of the result
    return [(np.flatnonzero(each).min(), np.flatnonzero(each).max() + 1) for each in seen.T]
