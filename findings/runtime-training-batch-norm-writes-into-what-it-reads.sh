#!/usr/bin/env bash
# BatchNormalization of ONNX with training_mode 1 reads a running mean and variance and returns new ones. ONNX Runtime 1.32.0 writes the new
# ones over the old ones where an operator reads them on: over a constant of the session, which a second run then starts from, or over the
# array that the caller gave. One expects a session to be a function of its inputs, and to leave these alone. With the new mean and variance
# as outputs of the graph all is as expected, and so it is in the reference evaluator of onnx 1.23.2.
#
# Seen on 2026-11-30, images of mean 4, a mean of 0 before, momentum 0.5, at every level of optimisation; the new mean, run by run:
#   mean is a constant, read on by Neg: ONNX Runtime [2.0, 3.0, 3.5]  reference [2.0, 2.0, 2.0]
#   mean is given, read on by Neg:      ONNX Runtime [2.0, 3.0, 3.5]  the array that was given, of zeros, is now 3.5
#   mean is given, an output:           ONNX Runtime [2.0, 2.0, 2.0]  the array that was given, of zeros, is now 0.0
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

images = np.full((2, 1, 3, 3), 4, np.float32)


def model(*, constant, read_on):
    constants = {"scale": 1, "bias": 0, "variance": 1} | ({"mean": 0} if constant else {})
    nodes = [
        helper.make_node("BatchNormalization", ["x", "scale", "bias", "mean", "variance"], ["y", "m", "v"], training_mode=1, momentum=0.5),
        helper.make_node("Neg", ["m"], ["less"]),
    ]
    inputs = [("x", images.shape)] + ([] if constant else [("mean", [1])])
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs]
    output = helper.make_tensor_value_info("less" if read_on else "m", TensorProto.FLOAT, [1])
    tensors = [numpy_helper.from_array(np.array([value], np.float32), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes if read_on else nodes[:1], "g", inputs, [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def three_runs(session, feeds):
    return [abs(float(session.run(None, feeds)[0][0])) for _ in range(3)]


for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"):
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    for case in ({"constant": True, "read_on": True}, {"constant": False, "read_on": True}, {"constant": False, "read_on": False}):
        mean = np.zeros(1, np.float32)
        feeds = {"x": images} | ({} if case["constant"] else {"mean": mean})
        given = model(**case)
        runs = three_runs(ort.InferenceSession(given.SerializeToString(), options), feeds)
        print(level, case, "ONNX Runtime", runs, "the given array is now", float(mean[0]))
        assert runs == ([2, 3, 3.5] if case["read_on"] else [2, 2, 2])
        assert mean[0] == (3.5 if case["read_on"] and not case["constant"] else 0)
        mean[:] = 0
        reference = three_runs(ReferenceEvaluator(given), feeds)
        print("reference", reference)
        assert reference == [2, 2, 2] and mean[0] == 0
EOF
