#!/usr/bin/env bash
# torch 2.13.0's ONNX exporter writes `interpolate(mode="nearest")` as one Resize. Mode "nearest-exact", which Resize covers too
# (nearest_mode round_prefer_ceil), becomes a GatherND with the indices of every output pixel: 16 bytes each, so a file without a single
# weight grows with the image, to 4 MB for 256 x 256 pixels by 2. Tools that look for Resize find none.
#
# Seen on 2026-11-30, kilobytes of the file, rounded down:
#   8 x 8      nearest 1 ['Resize']  nearest-exact 6 ['Transpose', 'GatherND', 'Transpose']
#   32 x 32    nearest 1 ['Resize']  nearest-exact 68 ['Transpose', 'GatherND', 'Transpose']
#   256 x 256  nearest 1 ['Resize']  nearest-exact 4198 ['Transpose', 'Unsqueeze', 'Unsqueeze', 'Concat', 'GatherND', 'Transpose']
#   a Resize with round_prefer_ceil gives torch's pixels: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0 numpy==2.4.6
pip freeze
python <<'EOF'
import logging
import warnings

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

logging.disable()
warnings.simplefilter("ignore")


class Doubled(torch.nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.mode = mode

    def forward(self, x):
        return torch.nn.functional.interpolate(x, scale_factor=2.0, mode=self.mode)


for size in (8, 32, 256):
    read = {}
    for mode in ("nearest", "nearest-exact"):
        program = torch.onnx.export(Doubled(mode), (torch.zeros(1, 1, size, size),), dynamo=True, verbose=False)
        read[mode] = len(program.model_proto.SerializeToString()), [node.op_type for node in program.model.graph]
    (plain, operators), (exact, exact_operators) = read.values()
    print(f"{size} x {size}  nearest {plain // 1000} {operators}  nearest-exact {exact // 1000} {exact_operators}")
    assert operators == ["Resize"] and plain < 2000
    assert "GatherND" in exact_operators and "Resize" not in exact_operators and exact > 2 * size * 2 * size * 16

image = torch.rand(1, 1, 8, 8)
node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="nearest", nearest_mode="round_prefer_ceil")
values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 1, "h", "w")) for name in "xy"]
scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "s")
graph = helper.make_graph([node], "g", values[:1], values[1:], [scales])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
[resized] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": image.numpy()})
same = np.array_equal(resized, Doubled("nearest-exact")(image).numpy())
print("a Resize with round_prefer_ceil gives torch's pixels:", same)
assert same
EOF
