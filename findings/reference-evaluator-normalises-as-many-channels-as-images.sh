#!/usr/bin/env bash
# LRN in onnx 1.23.2's reference evaluator: the sums of squares over neighbouring channels are made for as many channels as the batch has
# images; the others are divided by the bias alone. One image of six channels is normalised in its first channel only, six copies of it
# rightly. One expects an image's output not to depend on the batch, and the evaluator to be what runtimes are compared with.
# ONNX Runtime 1.32.0 gives each image the same, in any batch.
#
# Seen on 2026-11-30, channels 1 to 6, size 3, alpha 3, beta 1, bias 1:
#   ONNX Runtime          [0.167, 0.133, 0.1, 0.078, 0.064, 0.097]
#   reference, 1 image    [0.167, 2.0, 3.0, 4.0, 5.0, 6.0]
#   reference, 3 images   [0.167, 0.133, 0.1, 4.0, 5.0, 6.0]
#   reference, 6 images   [0.167, 0.133, 0.1, 0.078, 0.064, 0.097]
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

node = helper.make_node("LRN", ["x"], ["y"], size=3, alpha=3.0, beta=1.0, bias=1.0)
values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", 6, 1, 1)) for name in "xy"]
model = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]), opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
onnx.checker.check_model(model)
channels = np.arange(1, 7, dtype=np.float32).reshape(1, 6, 1, 1)


def last_image(evaluator, images):
    [y] = evaluator.run(None, {"x": np.repeat(channels, images, axis=0)})
    return np.round(y[-1].ravel().astype(float), 3).tolist()


session = onnxruntime.InferenceSession(model.SerializeToString())
expected = last_image(session, 1)
assert last_image(session, 6) == expected
print("ONNX Runtime        ", expected)
for images in (1, 3, 6):
    read = last_image(ReferenceEvaluator(model), images)
    print(f"reference, {images} image{'s' * (images > 1):3}", read)
    assert read == expected[:images] + [4.0, 5.0, 6.0] * (images == 3) + [2.0, 3.0, 4.0, 5.0, 6.0] * (images == 1)
EOF
