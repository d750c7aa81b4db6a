#!/usr/bin/env bash
# OpenCV 5.0.0's network module reads auto_pad SAME_LOWER of ONNX, which puts an odd pixel of padding before the image, and pads after
# it, as for SAME_UPPER: shapes are right, every value is of windows that are one pixel off. Conv, MaxPool and AveragePool alike, with
# the new engine and the classic one. One expects the attribute to be followed, as ONNX Runtime 1.32.0 does, or the file refused.
#
# Seen on 2026-11-30, 5 x 5 numbers from 0, windows of 2 x 2, stride 2, first row of the output:
#   MaxPool      SAME_LOWER  ONNX Runtime [0, 2, 4]  OpenCV [6, 8, 9]
#   MaxPool      SAME_UPPER  ONNX Runtime [6, 8, 9]  OpenCV [6, 8, 9]
#   AveragePool  SAME_LOWER  ONNX Runtime [0, 1.5, 3.5]  OpenCV [3, 5, 6.5]
#   Conv         SAME_LOWER  ONNX Runtime [0, 3, 7]  OpenCV [12, 20, 13]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check opencv-python-headless==5.0.0.93 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
pip freeze
python <<'EOF'
import cv2
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

image = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
weights = numpy_helper.from_array(np.ones((1, 1, 2, 2), np.float32), "w")


def outputs(operator, auto_pad):
    inputs = ["x", "w"] if operator == "Conv" else ["x"]
    node = helper.make_node(operator, inputs, ["y"], kernel_shape=[2, 2], strides=[2, 2], auto_pad=auto_pad)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, image.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 1, 3, 3))
    graph = helper.make_graph([node], "g", [x], [y], [weights] if operator == "Conv" else [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    content = model.SerializeToString()
    expected = onnxruntime.InferenceSession(content).run(None, {"x": image})[0]
    read = []
    for engine in (cv2.dnn.ENGINE_NEW, cv2.dnn.ENGINE_CLASSIC):
        network = cv2.dnn.readNetFromONNX(np.frombuffer(content, np.uint8), engine)
        network.setInput(image)
        read.append(network.forward())
    assert (read[0] == read[1]).all()
    rows = ("[" + ", ".join(f"{value:g}" for value in array[0, 0, 0]) + "]" for array in (expected, read[0]))
    print(f"{operator:12} {auto_pad}  ONNX Runtime {next(rows)}  OpenCV {next(rows)}")
    return expected, read[0]


for operator in ("MaxPool", "AveragePool", "Conv"):
    upper, upper_read = outputs(operator, "SAME_UPPER")
    lower, lower_read = outputs(operator, "SAME_LOWER")
    assert (upper == upper_read).all() and (lower_read == upper).all() and (lower != upper).any()
EOF
