#!/usr/bin/env bash
# Resize of ONNX in cubic mode between two Transposes, as exporters write the bicubic resizing of an image with channels last. ONNX Runtime
# 1.32.0 enlarges it, and refuses to reduce it at its default level of optimisation: there it moves the first Transpose behind the smaller
# image, where it costs less, and has no cubic Resize of channels last. With basic optimisation, with none, or with antialias, the same
# file runs, and equals the reference evaluator of onnx 1.23.2. One expects a file to run at all levels or at none.
#
# Seen on 2026-11-30, an image of 8 x 8 and 3 channels:
#   by 2.0             off runs      basic runs      all runs
#   by 0.5             off runs      basic runs      all refused
#   by 0.5 antialias   off runs      basic runs      all runs
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
pip freeze
python <<'EOF'
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

image = np.random.default_rng(0).standard_normal((1, 8, 8, 3)).astype(np.float32)


def resized(factor, **attributes):
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Resize", ["t", "", "s"], ["u"], mode="cubic", **attributes),
        helper.make_node("Transpose", ["u"], ["y"], perm=[0, 2, 3, 1]),
    ]
    shapes = (("x", image.shape), ("y", (1, int(8 * factor), int(8 * factor), 3)))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes]
    scales = numpy_helper.from_array(np.array([1, 1, factor, factor], np.float32), "s")
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [scales])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    reference = None if attributes else ReferenceEvaluator(model).run(None, {"x": image})[0]
    seen = {}
    for name, level in (("off", "ORT_DISABLE_ALL"), ("basic", "ORT_ENABLE_BASIC"), ("all", "ORT_ENABLE_ALL")):
        options = ort.SessionOptions()
        options.graph_optimization_level, options.log_severity_level = getattr(ort.GraphOptimizationLevel, level), 4
        try:
            read = ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": image})[0]
        except Exception:
            seen[name] = "refused"
        else:
            assert reference is None or np.abs(read - reference).max() < 1e-5
            seen[name] = "runs"
    print("by", factor, *attributes, " ", *(f"{name} {what:8}" for name, what in seen.items()))
    return list(seen.values())


assert resized(2.0) == ["runs"] * 3
assert resized(0.5) == ["runs", "runs", "refused"]
assert resized(0.5, antialias=1) == ["runs"] * 3
EOF
