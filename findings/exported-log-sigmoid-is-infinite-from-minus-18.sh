#!/usr/bin/env bash
# torch 2.13.0 computes LogSigmoid without overflow: -20 gives -20. Its ONNX exporter writes Sigmoid and then Log, and ONNX Runtime 1.32.0
# computes Sigmoid by a formula that is exactly 0 from about -18 on, where float32 still holds 1.5e-8 (torch's own Sigmoid does, to -88).
# So the exported loss or score is already wrong by 0.8 at -17 and minus infinity from -18 on; one expects it to hold to -88 at least.
#
# Seen on 2026-11-30:
#   x                  [-10.0, -17.0, -18.0, -20.0, -50.0]
#   torch              [-10.0, -17.0, -18.0, -20.0, -50.0]
#   torch, in two      [-10.0, -17.0, -18.0, -20.0, -50.0]
#   ONNX Runtime       [-10.0, -16.2, -inf, -inf, -inf]  of ['Sigmoid', 'Log']
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

import onnxruntime
import torch

logging.disable()
warnings.simplefilter("ignore")
x = torch.tensor([-10.0, -17.0, -18.0, -20.0, -50.0])
module = torch.nn.LogSigmoid()
program = torch.onnx.export(module, (x,), dynamo=True, verbose=False)
session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
[read] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
operators = [node.op_type for node in program.model.graph]


def rounded(values):
    return [round(value, 1) for value in values.tolist()]


print("x            ", x.tolist())
print("torch        ", rounded(module(x)))
print("torch, in two", rounded(torch.sigmoid(x).log()))
print("ONNX Runtime ", rounded(read), " of", operators)

assert operators == ["Sigmoid", "Log"]
assert rounded(module(x)) == rounded(torch.sigmoid(x).log()) == x.tolist()
assert abs(read[0] + 10) < 0.01 and read[1] > -16.5 and (read[2:] == -float("inf")).all()
EOF
