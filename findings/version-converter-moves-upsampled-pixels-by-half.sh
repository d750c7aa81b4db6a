#!/usr/bin/env bash
# onnx 1.23.2's version converter turns Upsample of opset 9 into Resize and sets its mode alone. Upsample reads pixels at x / scale
# (asymmetric), Resize of opset 11 and later at (x + 0.5) / scale - 0.5 unless told otherwise: a linear Upsample gives other values, with
# no warning. PyTorch wrote opset 9 for years. One expects coordinate_transformation_mode to be written, which gives the same values again.
#
# Seen on 2026-11-30, a row 0, 1, 2, 3 by 2, linear:
#   opset 9                         [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.0]
#   converted to 20                 [0.0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.0]  {'mode': 'linear'}
#   converted, and asymmetric set   [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.0]
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
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, version_converter

node = helper.make_node("Upsample", ["x", "s"], ["y"], mode="linear")
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", (1, 1, 1, 4)), ("y", (1, 1, 1, 8))))
scales = numpy_helper.from_array(np.array([1, 1, 1, 2], np.float32), "s")
graph = helper.make_graph([node], "g", [x], [y], [scales])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4)


def row(model):
    image = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": image})[0].ravel().tolist()


converted = version_converter.convert_version(model, 20)
[resize] = [node for node in converted.graph.node if node.op_type == "Resize"]
attributes = {attribute.name: helper.get_attribute_value(attribute).decode() for attribute in resize.attribute}
before, after = row(model), row(converted)
resize.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
mended = row(converted)
print("opset 9                       ", before)
print("converted to 20               ", after, "", attributes)
print("converted, and asymmetric set ", mended)

assert attributes == {"mode": "linear"}
assert before == mended == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3] and after == [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3]
EOF
