#!/usr/bin/env bash
# An ONNX file may define operators of its own as functions (torch's exporter and onnxscript write such files). onnx 1.23.2's version
# converter returns the model without them and with their calls: no error, no warning, and the file no longer loads. Inlining them first
# works. One expects the functions' bodies to be converted, or the model to be refused.
#
# Seen on 2026-11-30, a function of one ReduceMean, opset 17:
#   as written            1 functions, calls ['Mean']  ONNX Runtime [[2.5]]
#   converted to 18       0 functions, calls ['Mean']  ONNX Runtime Fail
#   converted to 21       0 functions, calls ['Mean']  ONNX Runtime Fail
#   inlined, then to 21   0 functions, calls ['ReduceMean']  ONNX Runtime [[2.5]]
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
from onnx import TensorProto, helper, inliner, version_converter
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
body = [helper.make_node("ReduceMean", ["a"], ["b"], axes=[1], keepdims=1)]
function = helper.make_function("own", "Mean", ["a"], ["b"], body, opsets[:1])
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", (1, 4)), ("y", (1, 1))))
graph = helper.make_graph([helper.make_node("Mean", ["x"], ["y"], domain="own")], "g", [x], [y])
model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8)
onnx.checker.check_model(model)


def report(name, model):
    image = {"x": np.array([[1, 2, 3, 4]], np.float32)}
    try:
        read = onnxruntime.InferenceSession(model.SerializeToString()).run(None, image)[0].tolist()
    except Fail:
        read = "Fail"
    calls = [node.op_type for node in model.graph.node if node.op_type != "Constant"]
    print(f"{name:21} {len(model.functions)} functions, calls {calls}  ONNX Runtime {read}")
    return len(model.functions), read


assert report("as written", model) == (1, [[2.5]])
for version in (18, 21):
    assert report(f"converted to {version}", version_converter.convert_version(model, version)) == (0, "Fail")
inlined = inliner.inline_local_functions(model)
assert report("inlined, then to 21", version_converter.convert_version(inlined, 21)) == (0, [[2.5]])
EOF
