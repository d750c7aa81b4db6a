#!/usr/bin/env bash
# Resize of ONNX by scales maps output pixels to input pixels by the scale, also where the size, rounded down, stays the same: 8 pixels by
# 1.1 are 8 pixels. The reference evaluator of onnx 1.23.2 does so. ONNX Runtime 1.32.0, OpenVINO 2026.4.1 and OpenCV 5.0.0 return the
# input as it is, though the first two follow the scale from 10 pixels on (11). One expects the last pixels to be read at 6 and not at 7.
#
# Seen on 2026-11-30, a ramp of 8 and of 10 pixels by 1.1, nearest; the last four pixels:
#   8   reference [4, 4, 5, 6]  ONNX Runtime [4, 5, 6, 7]  OpenVINO [4, 5, 6, 7]  OpenCV [4, 5, 6, 7]
#   10  reference [6, 7, 8, 9]  ONNX Runtime [6, 7, 8, 9]  OpenVINO [6, 7, 8, 9]  OpenCV [6, 7, 8, 9]
# and linear:
#   8   reference [3.6, 4.5, 5.4, 6.3]  ONNX Runtime [4, 5, 6, 7]  OpenVINO [4, 5, 6, 7]
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


def resized(width, mode):
    x = np.tile(np.arange(width, dtype=np.float32), (1, 1, 4, 1))
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode=mode)
    shapes = (("x", x.shape), ("y", (1, 1, 4, int(width * 1.1))))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes]
    scales = numpy_helper.from_array(np.array([1, 1, 1, 1.1], np.float32), "s")
    graph = helper.make_graph([node], "g", values[:1], values[1:], [scales])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), "resize.onnx")
    read = {
        "reference": ReferenceEvaluator("resize.onnx").run(None, {"x": x})[0],
        "ONNX Runtime": onnxruntime.InferenceSession("resize.onnx").run(None, {"x": x})[0],
        "OpenVINO": openvino.Core().compile_model("resize.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({"x": x})[0],
    }
    if mode == "nearest":
        network = cv2.dnn.readNetFromONNX("resize.onnx")
        network.setInput(x)
        read["OpenCV"] = network.forward()
    read = {name: np.round(values[0, 0, 0, -4:].astype(float), 1).tolist() for name, values in read.items()}
    print(f"{mode} {width:2}", " ".join(f"{name} {values}" for name, values in read.items()))
    return list(read.values())


assert len(set(map(tuple, resized(10, "nearest")))) == 1
nearest, linear = resized(8, "nearest"), resized(8, "linear")
assert nearest[0] == [4, 4, 5, 6] and linear[0] == [3.6, 4.5, 5.4, 6.3]
assert all(values == [4, 5, 6, 7] for values in nearest[1:] + linear[1:])
EOF
