#!/usr/bin/env bash
# MaxPool with auto_pad SAME_LOWER has ceil(size / stride) outputs along an axis: 3 for 5 by 2. onnx 1.23.2's shape inference and
# ONNX Runtime 1.32.0 say so; onnx's reference evaluator gives 2, of windows without any padding. It is right for SAME_UPPER, and for
# AveragePool with either, so a runtime checked against it looks wrong for this one operator.
#
# Seen on 2026-11-30, 5 x 5 numbers from 0, windows 2 x 2, stride 2:
#   MaxPool      SAME_LOWER  inferred [1, 1, 3, 3]  ONNX Runtime [1, 1, 3, 3]  reference [1, 1, 2, 2]
#   MaxPool      SAME_UPPER  inferred [1, 1, 3, 3]  ONNX Runtime [1, 1, 3, 3]  reference [1, 1, 3, 3]
#   AveragePool  SAME_LOWER  inferred [1, 1, 3, 3]  ONNX Runtime [1, 1, 3, 3]  reference [1, 1, 3, 3]
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
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

image = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)


def outputs(operator, auto_pad):
    node = helper.make_node(operator, ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], auto_pad=auto_pad)
    x, y = helper.make_tensor_value_info("x", TensorProto.FLOAT, image.shape), helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output[0].type.tensor_type.shape.dim
    runtime = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": image})[0]
    reference = ReferenceEvaluator(model).run(None, {"x": image})[0]
    shapes = [dim.dim_value for dim in inferred], list(runtime.shape), list(reference.shape)
    print(f"{operator:12} {auto_pad}  inferred {shapes[0]}  ONNX Runtime {shapes[1]}  reference {shapes[2]}")
    assert shapes[0] == shapes[1] == [1, 1, 3, 3]
    return runtime, reference


for operator, auto_pad in (("MaxPool", "SAME_UPPER"), ("AveragePool", "SAME_LOWER")):
    assert np.array_equal(*outputs(operator, auto_pad))
runtime, reference = outputs("MaxPool", "SAME_LOWER")
assert runtime[0, 0].tolist() == [[0, 2, 4], [10, 12, 14], [20, 22, 24]]
assert reference[0, 0].tolist() == [[12, 14], [22, 24]]
EOF
