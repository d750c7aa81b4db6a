#!/usr/bin/env bash
# RoiAlign of ONNX with mode "max" and one sample in each bin: the largest of one interpolated value should be that value, which is what
# mode "avg" gives. ONNX Runtime 1.32.0 and the reference evaluator give less: the largest of the four products of a neighbour and its
# weight, before they are summed. OpenVINO 2026.4.1 gives the interpolated value, so the two runtimes differ by a factor of up to four.
#
# Seen on 2026-11-30, 5 x 5 numbers from 0, the box (0, 0, 4, 4), bins 1 x 2, one sample in each:
#   avg  ONNX Runtime [8.0, 10.0]  reference [8.0, 10.0]  OpenVINO [8.0, 10.0]
#   max  ONNX Runtime [2.75, 3.25]  reference [2.75, 3.25]  OpenVINO [8.0, 10.0]
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

image = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
constants = {"boxes": np.array([[0, 0, 4, 4]], np.float32), "batch": np.array([0], np.int64)}


def pooled(mode):
    node = helper.make_node("RoiAlign", ["x", *constants], ["y"], mode=mode, output_height=1, output_width=2, sampling_ratio=1)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", image.shape), ("y", (1, 1, 1, 2))))
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(value, name) for name, value in constants.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), "roi.onnx")
    read = {
        "ONNX Runtime": onnxruntime.InferenceSession("roi.onnx").run(None, {"x": image})[0],
        "reference": ReferenceEvaluator("roi.onnx").run(None, {"x": image})[0],
        "OpenVINO": openvino.Core().compile_model("roi.onnx", "CPU")({"x": image})[0],
    }
    read = {name: values.ravel().tolist() for name, values in read.items()}
    print(mode, "", "  ".join(f"{name} {values}" for name, values in read.items()))
    return read


assert all(values == [8, 10] for values in pooled("avg").values())
largest = pooled("max")
assert largest["OpenVINO"] == [8, 10]
# The neighbours of the left sample at (2, 1) minus half a pixel are 5, 6, 10, 11, each with the weight 1/4; of the right one the last is 13.
assert largest["ONNX Runtime"] == largest["reference"] == [11 / 4, 13 / 4]
EOF
