"""Small detectors as ONNX files, with what ultralytics' and YOLOX's exports have behind their heads."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support.onnx_graph import Graph

STRIDES = (8, 16, 32)
CLASSES, BINS, ANCHORS = 3, 4, 3
CHANNELS = {"yolov8": 4 * BINS + CLASSES, "yolox": 5 + CLASSES, "yolov5": ANCHORS * (5 + CLASSES)}


class _Network(Graph):
    def conv(self, x, before, after, kernel=3, stride=1, deviation=0.25):
        weight = self.normal(after, before, kernel, kernel, deviation=deviation)
        pads = [kernel // 2] * 4
        return self.op("Conv", x, weight, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)

    def act(self, x):
        return self.op("Mul", x, self.op("Sigmoid", x))

    def ints(self, *values):
        return self.constant(np.array(values, np.int64))

    def floats(self, values):
        return self.constant(np.asarray(values, np.float32))


def save(path, size, family="yolov8", *, attention=False, tail=None, channels=3, metadata=None):
    """Write a detector for images of `size`, rows and columns; weights are the same for every size.

    It has `attention` before its heads, or `tail` behind its predictions; `metadata` are those of the file.
    """
    net, height, width = _Network(), *size
    x = net.act(net.conv("images", channels, 8, 3, 2))
    x = net.act(net.conv(x, 8, 8, 3, 2))
    c8 = net.act(net.conv(x, 8, 8, 3, 2))
    c16 = net.act(net.conv(c8, 8, 8, 3, 2))
    c32 = net.act(net.conv(c16, 8, 8, 3, 2))
    if attention:
        c32 = net.op("Mul", c32, net.op("Sigmoid", net.op("GlobalAveragePool", c32)))
    up = net.op("Resize", c32, "", net.floats([1, 1, 2, 2]), mode="nearest", nearest_mode="floor",
                coordinate_transformation_mode="asymmetric")  # fmt: skip
    p16 = net.act(net.conv(net.op("Concat", up, c16, axis=1), 16, 8))
    maps, count = (c8, p16, c32), CHANNELS[family]
    heads = [net.conv(each, 8, count, 1, deviation=0.8) for each in maps]
    sizes = [(height // stride, width // stride) for stride in STRIDES]
    cells = [np.stack(np.meshgrid(np.arange(cols), np.arange(rows)), -1).reshape(-1, 2) for rows, cols in sizes]
    strides = np.concatenate(
        [np.full(rows * cols, stride) for stride, (rows, cols) in zip(STRIDES, sizes, strict=True)]
    )
    places = np.concatenate(cells)
    last = {"yolov8": _yolov8, "yolov5": _yolov5, "yolox": _yolox}[family](net, heads, sizes, cells, places, strides)
    if tail is not None:
        last = net.op(tail, last, net.ints(5), outputs=2, axis=2)[0]
    net.op("Identity", last, output="output0")
    image = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, channels, height, width])
    output = helper.make_tensor_value_info("output0", TensorProto.FLOAT, None)
    graph = helper.make_graph(net.nodes, "detector", [image], [output], net.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, path)
    return path


def _yolov8(net, heads, _sizes, _cells, places, strides):
    flat = [net.op("Reshape", each, net.ints(1, CHANNELS["yolov8"], -1)) for each in heads]
    box, scores = net.op("Split", net.op("Concat", *flat, axis=2), net.ints(4 * BINS, CLASSES), outputs=2, axis=1)
    bins = net.op("Transpose", net.op("Reshape", box, net.ints(1, 4, BINS, -1)), perm=[0, 2, 1, 3])
    mean = net.floats(np.arange(BINS).reshape(1, BINS, 1, 1))
    sides = net.op("Conv", net.op("Softmax", bins, axis=1), mean, kernel_shape=[1, 1])
    before, after = net.op("Split", net.op("Reshape", sides, net.ints(1, 4, -1)), net.ints(2, 2), outputs=2, axis=1)
    anchors = net.floats(places.T[None] + 0.5)
    low, high = net.op("Sub", anchors, before), net.op("Add", anchors, after)
    centre = net.op("Div", net.op("Add", low, high), net.floats(2))
    boxes = net.op("Mul", net.op("Concat", centre, net.op("Sub", high, low), axis=1), net.floats(strides[None]))
    return net.op("Concat", boxes, net.op("Sigmoid", scores), axis=1)


def _yolov5(net, heads, sizes, cells, _places, _strides):
    tables = []
    for each, (rows, cols), grid, stride in zip(heads, sizes, cells, STRIDES, strict=True):
        five = net.op("Reshape", each, net.ints(1, ANCHORS, 5 + CLASSES, rows, cols))
        values = net.op("Sigmoid", net.op("Transpose", five, perm=[0, 1, 3, 4, 2]))
        xy, wh, rest = net.op("Split", values, net.ints(2, 2, 1 + CLASSES), outputs=3, axis=4)
        offset = net.floats(grid.reshape(1, 1, rows, cols, 2) - 0.5)
        xy = net.op("Mul", net.op("Add", net.op("Mul", xy, net.floats(2)), offset), net.floats(stride))
        anchors = net.floats(stride * np.array([[1, 2], [2, 1], [3, 3]]).reshape(1, ANCHORS, 1, 1, 2))
        twice = net.op("Mul", wh, net.floats(2))
        wh = net.op("Mul", net.op("Mul", twice, twice), anchors)
        tables.append(net.op("Reshape", net.op("Concat", xy, wh, rest, axis=4), net.ints(1, -1, 5 + CLASSES)))
    return net.op("Concat", *tables, axis=1)


def _yolox(net, heads, _sizes, _cells, _places, _strides):
    flat = []
    for each in heads:
        box, rest = net.op("Split", each, net.ints(4, 1 + CLASSES), outputs=2, axis=1)
        joined = net.op("Concat", box, net.op("Sigmoid", rest), axis=1)
        flat.append(net.op("Reshape", joined, net.ints(1, CHANNELS["yolox"], -1)))
    return net.op("Transpose", net.op("Concat", *flat, axis=2), perm=[0, 2, 1])
