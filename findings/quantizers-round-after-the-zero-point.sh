#!/usr/bin/env bash
# ONNX defines QuantizeLinear as round(x / scale), a half to the even number, plus the zero point. OpenVINO 2026.4.1 and OpenCV 5.0.0
# add the zero point first: with an odd one, every half goes to the other neighbour. ONNX Runtime and the reference evaluator follow
# the definition, so a calibrated network is off by a whole step wherever activations are multiples of half a scale.
# One expects the order of rounding to be the same in all, as it is with an even zero point.
#
# Seen on 2026-11-30, [0.5, 1.5, 2.5, 3.5] quantized with scale 1 and dequantized:
#   zero point 4: ONNX Runtime [0, 2, 2, 4]  reference [0, 2, 2, 4]  OpenVINO [0, 2, 2, 4]  OpenCV [0, 2, 2, 4]
#   zero point 3: ONNX Runtime [0, 2, 2, 4]  reference [0, 2, 2, 4]  OpenVINO [1, 1, 3, 3]  OpenCV [1, 1, 3, 3]
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

x = np.array([[0.5, 1.5, 2.5, 3.5]], np.float32)


def quantized(zero_point):
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name in "xy"]
    constants = {"s": np.array(1, np.float32), "z": np.array(zero_point, np.uint8)}
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(c, name) for name, c in constants.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), "q.onnx")
    network = cv2.dnn.readNetFromONNX("q.onnx")
    network.setInput(x)
    read = {
        "ONNX Runtime": onnxruntime.InferenceSession("q.onnx").run(None, {"x": x})[0],
        "reference": ReferenceEvaluator("q.onnx").run(None, {"x": x})[0],
        "OpenVINO": openvino.Core().compile_model("q.onnx", "CPU")({"x": x})[0],
        "OpenCV": network.forward(),
    }
    read = {name: values.ravel().astype(int).tolist() for name, values in read.items()}
    print(f"zero point {zero_point}:", "  ".join(f"{name} {values}" for name, values in read.items()))
    return read


assert set(map(tuple, quantized(4).values())) == {(0, 2, 2, 4)}
odd = quantized(3)
assert odd["ONNX Runtime"] == odd["reference"] == [0, 2, 2, 4] and odd["OpenVINO"] == odd["OpenCV"] == [1, 1, 3, 3]
EOF
