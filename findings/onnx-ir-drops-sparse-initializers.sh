#!/usr/bin/env bash
# ONNX files may hold constants as sparse tensors (sparse_initializer, since IR version 5). onnx_ir 1.1.0, which torch's exporter and
# onnxscript build on, loads such a file without them, logs that "the model is invalid", and saves a graph whose node reads a name that
# nothing defines. The original passes onnx' checker and runs. One expects them kept, made dense, or refused.
#
# Seen on 2026-11-30:
#   as written        1 sparse initializers, ONNX Runtime [1.0, 0.0, 0.0, 2.0]
#   loaded and saved  0 sparse initializers, 0 dense, ONNX Runtime refuses it
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check onnx-ir==1.1.0 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
pip freeze
python <<'EOF'
import numpy as np
import onnx
import onnx_ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

values = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
indices = numpy_helper.from_array(np.array([0, 3], np.int64), "")
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (4,)) for name in "xy")
sparse = helper.make_sparse_tensor(values, indices, [4])
graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], sparse_initializer=[sparse])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), "sparse.onnx")
onnx.checker.check_model("sparse.onnx")
onnx_ir.save(onnx_ir.load("sparse.onnx"), "saved.onnx")


def run(path):
    return onnxruntime.InferenceSession(path).run(None, {"x": np.zeros(4, np.float32)})[0].tolist()


written, saved = onnx.load("sparse.onnx").graph, onnx.load("saved.onnx").graph
read = run("sparse.onnx")
print(f"as written        {len(written.sparse_initializer)} sparse initializers, ONNX Runtime {read}")
try:
    after = run("saved.onnx")
except InvalidArgument:
    after = "refuses it"
print(f"loaded and saved  {len(saved.sparse_initializer)} sparse initializers, {len(saved.initializer)} dense, ONNX Runtime {after}")

assert read == [1, 0, 0, 2] and len(written.sparse_initializer) == 1
assert not saved.sparse_initializer and not saved.initializer and after == "refuses it"
EOF
