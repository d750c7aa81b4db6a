#!/usr/bin/env bash
# MaxPool with auto_pad SAME_UPPER and stride 1 keeps the size, whatever its dilations: ONNX' shape inference, its reference evaluator and
# OpenVINO 2026.4.1 give 8 x 8 of 8 x 8. ONNX Runtime 1.32.0 pads for the window without its dilations and returns 6 x 6.
# The session states 8 x 8, and a warning while it runs is the only sign.
# A dilated Conv with SAME_UPPER is refused by ONNX Runtime; one expects either that or the right shape here.
#
# Seen on 2026-11-30:
#   reference (1, 1, 8, 8)  OpenVINO (1, 1, 8, 8)  ONNX Runtime: stated [1, 1, 8, 8]  returned (1, 1, 6, 6)
#   equal to the middle of the reference's: True  with explicit pads: (1, 1, 8, 8) True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check openvino==2026.4.1 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
pip freeze
python <<'EOF'
import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

image = np.random.default_rng(0).standard_normal((1, 1, 8, 8)).astype(np.float32)


def save(**padding):
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], dilations=[2, 2], **padding)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, image.shape) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]), opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model, strict_mode=True), "pool.onnx")


save(auto_pad="SAME_UPPER")
reference = ReferenceEvaluator("pool.onnx").run(None, {"x": image})[0]
openvino_read = openvino.Core().compile_model("pool.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({"x": image})[0]
session = onnxruntime.InferenceSession("pool.onnx")
read = session.run(None, {"x": image})[0]
save(pads=[2, 2, 2, 2])
explicit = onnxruntime.InferenceSession("pool.onnx").run(None, {"x": image})[0]
stated = session.get_outputs()[0].shape
middle = np.array_equal(read[0, 0], reference[0, 0, 1:-1, 1:-1])
print("reference", reference.shape, " OpenVINO", openvino_read.shape, " ONNX Runtime: stated", stated, " returned", read.shape)
print("equal to the middle of the reference's:", middle, " with explicit pads:", explicit.shape, np.array_equal(explicit, reference))

assert np.array_equal(reference, openvino_read) and np.array_equal(explicit, reference)
assert stated == [1, 1, 8, 8] and read.shape == (1, 1, 6, 6) and middle
EOF
