#!/usr/bin/env bash
# torch.floor_divide of floats in torch 2.13.0 takes the exact quotient of the two floats: 0.5 // 0.1 is 4, for the float nearest to 0.1 is
# above it. Its ONNX exporter writes Div and Floor, which round the quotient to 5.0 first, so a grid or bin index is one higher in the file.
# numpy's floor_divide is with torch. One expects the exporter to write what the module computes, as it does for negative integers.
#
# Seen on 2026-11-30, divided by 0.1:
#   x             [0.3, 0.5, 1.5, 2.5, -0.5]
#   torch         [3.0, 4.0, 14.0, 24.0, -5.0]
#   numpy         [3.0, 4.0, 14.0, 24.0, -5.0]
#   ONNX Runtime  [3.0, 5.0, 15.0, 25.0, -5.0]  of ['Div', 'Floor']
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

logging.disable()
warnings.simplefilter("ignore")


class Bins(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, x):
        return torch.floor_divide(x, self.width)


def export(module, x):
    program = torch.onnx.export(module, (x,), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    [read] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return read.tolist(), [node.op_type for node in program.model.graph]


x = torch.tensor([0.3, 0.5, 1.5, 2.5, -0.5])
expected = Bins(0.1)(x).tolist()
by_numpy = np.floor_divide(x.numpy(), np.float32(0.1)).tolist()
read, operators = export(Bins(0.1), x)
print("x            ", [round(value, 1) for value in x.tolist()])
print("torch        ", expected)
print("numpy        ", by_numpy)
print("ONNX Runtime ", read, " of", operators)
whole = torch.tensor([-7, 7, -1])
assert export(Bins(2), whole)[0] == Bins(2)(whole).tolist() == [-4, 3, -1]

assert expected == by_numpy and operators == ["Div", "Floor"]
assert expected[1:4] == [4, 14, 24] and read[1:4] == [5, 15, 25]
EOF
