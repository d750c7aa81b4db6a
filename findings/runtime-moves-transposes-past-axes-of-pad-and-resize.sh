#!/usr/bin/env bash
# Pad and Resize of ONNX take the axes that they change from opset 18 on, such as the two of an image. Between two Transposes, as behind a
# LayerNormalization of channels, ONNX Runtime 1.32.0 moves the first one to the end and puts the amounts in the order of the new axes, as if
# there were an amount for each axis. So at its default level of optimisation it refuses a valid network while it is loaded or run, and
# gives another shape where all axes are listed in an order of their own. One expects levels of optimisation to differ by rounding.
# Without optimisation, and in the reference evaluator of onnx 1.23.2, all is as written.
#
# Seen on 2026-11-30, an image of 5 x 6 and 3 channels, channels last around the operator:
#   Pad rows, columns by 1      off (1, 7, 8, 3)    basic refused          all refused
#   Pad axes 0, 1, 3, 2         off (1, 6, 7, 3)    basic (1, 6, 6, 4)     all (1, 6, 6, 4)
#   Resize rows, columns by 2   off (1, 10, 12, 3)  basic (1, 10, 12, 3)   all refused
#   Resize to 10 x 12           off (1, 10, 12, 3)  basic (1, 10, 12, 3)   all refused
#   Resize axes 0, 1, 3, 2      off (1, 5, 12, 3)   basic (1, 5, 12, 3)    all (1, 10, 6, 3)
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

image = np.random.default_rng(0).standard_normal((1, 5, 6, 3)).astype(np.float32)
turned = np.array([0, 1, 3, 2])
CASES = (  # name, kind, what it reads and its attributes, and the shapes without optimisation, with basic ones and with all
    ("Pad rows, columns by 1", "Pad", ["t", np.array([1, 1, 1, 1]), "", np.array([2, 3])], {}, (1, 7, 8, 3), None, None),
    ("Pad axes 0, 1, 3, 2", "Pad", ["t", np.array([0, 0, 1, 0, 0, 0, 0, 1]), "", turned], {}, (1, 6, 7, 3), (1, 6, 6, 4), (1, 6, 6, 4)),
    ("Resize rows, columns by 2", "Resize", ["t", "", np.array([2, 2], np.float32)], {"axes": [2, 3]}, *[(1, 10, 12, 3)] * 2, None),
    ("Resize to 10 x 12", "Resize", ["t", "", "", np.array([10, 12])], {"axes": [2, 3]}, *[(1, 10, 12, 3)] * 2, None),
    ("Resize axes 0, 1, 3, 2", "Resize", ["t", "", np.array([1, 1, 2, 1], np.float32)], {"axes": turned}, *[(1, 5, 12, 3)] * 2, (1, 10, 6, 3)),
)


def model(kind, inputs, attributes):
    constants = [numpy_helper.from_array(value, f"c{place}") for place, value in enumerate(inputs) if isinstance(value, np.ndarray)]
    names = [f"c{place}" if isinstance(value, np.ndarray) else value for place, value in enumerate(inputs)]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node(kind, names, ["u"], **attributes),
        helper.make_node("Transpose", ["u"], ["y"], perm=[0, 2, 3, 1]),
    ]
    values = [helper.make_tensor_value_info(*value) for value in (("x", TensorProto.FLOAT, image.shape), ("y", TensorProto.FLOAT, [None] * 4))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def run(model, level):
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    try:
        return ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": image})[0].shape
    except Exception:
        return None


levels = ort.GraphOptimizationLevel
for name, kind, inputs, attributes, *expected in CASES:
    written = model(kind, inputs, attributes)
    seen = [run(written, level) for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC, levels.ORT_ENABLE_ALL)]
    print(f"{name:26}", *(f"{level} {shape or 'refused'} " for level, shape in zip(("off", "basic", "all"), seen)))
    assert ReferenceEvaluator(written).run(None, {"x": image})[0].shape == seen[0] and seen == expected
EOF
