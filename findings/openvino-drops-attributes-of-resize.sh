#!/usr/bin/env bash
# OpenVINO 2026.4.1 loads ONNX files whose Resize has `antialias`, `exclude_outside` or `keep_aspect_ratio_policy`, and runs them as if
# the attribute were not there: other values, and with the last another shape. Attributes that it lacks elsewhere, as half_pixel_symmetric,
# are refused when the file is loaded; one expects the same of these. ONNX Runtime 1.32.0 agrees with the reference evaluator on all.
#
# Seen on 2026-11-30, an image of 13 x 11:
#   antialias                 as without the attribute: True  differs from ONNX Runtime by 1.40
#   exclude_outside           as without the attribute: True  differs from ONNX Runtime by 0.12
#   keep_aspect_ratio_policy  as without the attribute: True  shape [1, 1, 20, 20], ONNX Runtime [1, 1, 24, 20]
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
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

image = np.random.default_rng(0).standard_normal((1, 1, 13, 11)).astype(np.float32)
core = openvino.Core()


def save(size, **attributes):
    node = helper.make_node("Resize", ["x", "", "", "s"], ["y"], axes=[2, 3], **attributes)
    x, y = helper.make_tensor_value_info("x", TensorProto.FLOAT, image.shape), helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(np.array(size, np.int64), "s")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), "resize.onnx")


def run_openvino():
    return core.compile_model("resize.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({"x": image})[0]


cases = (
    ("antialias", 1, {"mode": "linear"}, (5, 4)),
    ("exclude_outside", 1, {"mode": "cubic"}, (22, 18)),
    ("keep_aspect_ratio_policy", "not_smaller", {"mode": "linear"}, (20, 20)),
)
for attribute, value, mode, size in cases:
    save(size, **mode)
    without = run_openvino()
    save(size, **mode, **{attribute: value})
    read = run_openvino()
    expected = onnxruntime.InferenceSession("resize.onnx").run(None, {"x": image})[0]
    assert np.allclose(expected, ReferenceEvaluator("resize.onnx").run(None, {"x": image})[0], atol=1e-5)
    same = np.array_equal(read, without)
    if read.shape == expected.shape:
        difference = abs(read - expected).max()
        seen = f"differs from ONNX Runtime by {difference:.2f}"
    else:
        difference, seen = 1, f"shape {list(read.shape)}, ONNX Runtime {list(expected.shape)}"
    print(f"{attribute:25} as without the attribute: {same}  {seen}")
    assert same and difference > 0.1
EOF
