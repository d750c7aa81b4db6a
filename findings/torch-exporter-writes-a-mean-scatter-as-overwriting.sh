#!/usr/bin/env bash
# torch 2.13.0's ONNX exporter takes `scatter_reduce(..., "mean")`, which ScatterElements of ONNX has no reduction for, and writes
# reduction "none": the value scattered last stays, where the module gives the mean. No warning, and the file runs. "sum" is right.
# One expects what other operators without a translation get, a ConversionError.
#
# Seen on 2026-11-30, 2, 4 and 9 scattered to the first of two tens:
#   mean, include_self=True   torch [6.25, 10.0]  ONNX Runtime [9.0, 10.0]  reductions ['none']
#   mean, include_self=False  torch [5.0, 10.0]  ONNX Runtime [9.0, 10.0]  reductions ['none', 'none']
#   sum, include_self=True    torch [25.0, 10.0]  ONNX Runtime [25.0, 10.0]  reductions ['add']
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


class Scatter(torch.nn.Module):
    def __init__(self, reduction, include_self):
        super().__init__()
        self.reduction, self.include_self = reduction, include_self

    def forward(self, values):
        tens = torch.full((2,), 10.0)
        return tens.scatter_reduce(0, torch.tensor([0, 0, 0]), values, self.reduction, include_self=self.include_self)


def outputs(reduction, include_self):
    module, values = Scatter(reduction, include_self), torch.tensor([2.0, 4.0, 9.0])
    program = torch.onnx.export(module, (values,), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    [read] = session.run(None, {session.get_inputs()[0].name: values.numpy()})
    written = [node.attributes["reduction"].value for node in program.model.graph if node.op_type == "ScatterElements"]
    torchs = module(values).tolist()
    print(f"{reduction}, include_self={include_self}  torch {torchs}  ONNX Runtime {read.tolist()}  reductions {written}")
    return torchs, read.tolist()


assert outputs("mean", True) == ([6.25, 10], [9, 10])
assert outputs("mean", False) == ([5, 10], [9, 10])
assert outputs("sum", True) == ([25, 10], [25, 10])
EOF
