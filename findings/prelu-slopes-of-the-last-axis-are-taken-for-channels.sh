#!/usr/bin/env bash
# PRelu of ONNX broadcasts its slopes as numpy does: a vector of two goes along the last axis, the columns of an image. Where the image
# has as many channels as columns, OpenVINO 2026.4.1 and OpenCV 5.0.0 apply the vector along the channels instead, with no word;
# ONNX Runtime 1.32.0 and the reference evaluator follow ONNX. So a network that is right at most widths is wrong at one.
#
# Seen on 2026-11-30, -1 everywhere, slopes [0.1, 0.5], first row of each channel without its sign:
#   3 channels, 2 columns: ONNX Runtime, reference and OpenVINO [[0.1, 0.5], [0.1, 0.5], [0.1, 0.5]]
#   2 channels, 2 columns: ONNX Runtime and reference [[0.1, 0.5], [0.1, 0.5]], OpenVINO and OpenCV [[0.1, 0.1], [0.5, 0.5]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check openvino==2026.4.1 opencv-python-headless==5.0.0.93 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
pip freeze
python <<'EOF'
import cv2
import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator


def rows(channels):
    x = -np.ones((1, channels, 2, 2), np.float32)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name in "xy"]
    slopes = numpy_helper.from_array(np.array([0.1, 0.5], np.float32), "s")
    graph = helper.make_graph([helper.make_node("PRelu", ["x", "s"], ["y"])], "g", values[:1], values[1:], [slopes])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), "prelu.onnx")
    read = {
        "ONNX Runtime": onnxruntime.InferenceSession("prelu.onnx").run(None, {"x": x})[0],
        "reference": ReferenceEvaluator("prelu.onnx").run(None, {"x": x})[0],
        "OpenVINO": openvino.Core().compile_model("prelu.onnx", "CPU")({"x": x})[0],
    }
    if channels == 2:
        network = cv2.dnn.readNetFromONNX("prelu.onnx")
        network.setInput(x)
        read["OpenCV"] = network.forward()
    read = {name: np.round(-values[0, :, 0].astype(float), 3).tolist() for name, values in read.items()}
    print(f"{channels} channels, 2 columns:", "  ".join(f"{name} {values}" for name, values in read.items()))
    return read


columns = [0.1, 0.5]
assert all(values == [columns] * 3 for values in rows(3).values())
two = rows(2)
assert two["ONNX Runtime"] == two["reference"] == [columns] * 2
assert two["OpenVINO"] == two["OpenCV"] == [[0.1, 0.1], [0.5, 0.5]]
EOF
