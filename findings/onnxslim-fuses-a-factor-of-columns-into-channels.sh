#!/usr/bin/env bash
# onnxslim 0.1.98 fuses a Mul by constants behind a Conv into its weights. A vector of n factors broadcasts along the columns of the image;
# where the Conv has n output channels, onnxslim takes it for factors of channels, so a network is changed at the one width that equals
# its channels, and is left as it is at others. It checks nothing; one expects the fusion for the shape (n, 1, 1) alone.
#
# Seen on 2026-11-30, a Conv of 4 channels of ones, factors 1, 2, 3, 4 along the columns:
#   4 columns, first pixels of the channels: as written [1.0, 1.0, 1.0, 1.0], onnxslim [1.0, 2.0, 3.0, 4.0]
#   4 columns, first row of channel 0:       as written [1.0, 2.0, 3.0, 4.0], onnxslim [1.0, 1.0, 1.0, 1.0]
#   5 columns, factors 1 to 5: equal
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check onnxslim==0.1.98 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
pip freeze
python <<'EOF'
from copy import deepcopy

import numpy as np
import onnxruntime
import onnxslim
from onnx import TensorProto, helper, numpy_helper


def run(columns):
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Mul", ["c", "factors"], ["y"])]
    constants = {"w": np.ones((4, 1, 1, 1), np.float32), "factors": np.arange(1, columns + 1, dtype=np.float32)}
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    sizes = (("x", (1, 1, 3, columns)), ("y", (1, 4, 3, columns)))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in sizes)
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    image = {"x": np.ones((1, 1, 3, columns), np.float32)}
    models = (model, onnxslim.slim(deepcopy(model)))
    return [onnxruntime.InferenceSession(changed.SerializeToString()).run(None, image)[0] for changed in models]


written, slim = run(4)
print(f"4 columns, first pixels of the channels: as written {written[0, :, 0, 0].tolist()}, onnxslim {slim[0, :, 0, 0].tolist()}")
print(f"4 columns, first row of channel 0:       as written {written[0, 0, 0].tolist()}, onnxslim {slim[0, 0, 0].tolist()}")
assert (written == np.arange(1, 5)).all() and (slim == np.arange(1, 5)[:, None, None]).all()
written, slim = run(5)
print("5 columns, factors 1 to 5:", "equal" if np.array_equal(written, slim) else "other")
assert np.array_equal(written, slim)
EOF
