#!/usr/bin/env bash
# A 0 in the shape of ONNX' Reshape copies the dimension of its input. onnxoptimizer 0.4.2 bypasses a Reshape that feeds another one; where the
# second has zeros, they copy from another tensor then: (1, 4, 6) by (4, 1, -1) and (0, 0, -1) is (4, 1, 6), after it (1, 4, 6).
# The checker passes, and what is next computes over other axes. onnxslim 0.1.98 and onnxsim 0.8.1 keep the shape, as one expects.
#
# Seen on 2026-11-30:
#   as written     (4, 1, 6)  ['Reshape', 'Reshape']
#   onnxoptimizer  (1, 4, 6)  ['Reshape', 'Reshape'], the first without a reader
#   onnxslim       (4, 1, 6)  ['Reshape']
#   onnxsim        (4, 1, 6)  ['Reshape']
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check onnxoptimizer==0.4.2 onnxslim==0.1.98 onnxsim==0.8.1 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
pip freeze
python <<'EOF'
from copy import deepcopy

import numpy as np
import onnx
import onnxoptimizer
import onnxruntime
import onnxsim
import onnxslim
from onnx import TensorProto, helper, numpy_helper

nodes = [helper.make_node("Reshape", ["x", "first"], ["t"]), helper.make_node("Reshape", ["t", "second"], ["y"])]
shapes = {"first": [4, 1, -1], "second": [0, 0, -1]}
initializers = [numpy_helper.from_array(np.array(shape), name) for name, shape in shapes.items()]
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", (1, 4, 6)), ("y", ("a", "b", "c"))))
model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], initializers), opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

simplified = {
    "as written": model,
    "onnxoptimizer": onnxoptimizer.optimize(deepcopy(model), ["eliminate_consecutive_idempotent_ops"]),
    "onnxslim": onnxslim.slim(deepcopy(model)),
    "onnxsim": onnxsim.simplify(deepcopy(model))[0],
}
read = {}
for name, changed in simplified.items():
    onnx.checker.check_model(changed)
    session = onnxruntime.InferenceSession(changed.SerializeToString())
    read[name] = session.run(None, {"x": np.arange(24, dtype=np.float32).reshape(1, 4, 6)})[0].shape
    print(f"{name:14} {read[name]}  {[node.op_type for node in changed.graph.node]}")

assert read.pop("onnxoptimizer") == (1, 4, 6)
assert set(read.values()) == {(4, 1, 6)}
EOF
