#!/usr/bin/env bash
# scaled_dot_product_attention of torch 2.13.0 answers zeros for a query whose whole row of the mask is hidden, as a padded batch has.
# Exported at opset 18 or 20, the same module answers the mean of all values where the mask is boolean, and NaN where it is -inf;
# at opset 23, where ONNX has Attention, zeros again. So the opset decides what a padded row gives; one expects zeros at each.
#
# Seen on 2026-11-30, the second of two queries is hidden from everything, values (3, 1) and (2, 7):
#   boolean mask  torch [0.0, 0.0]  opset 18 [2.5, 4.0]  opset 20 [2.5, 4.0]  opset 23 [0.0, 0.0]
#   -inf mask     torch [0.0, 0.0]  opset 18 [nan, nan]  opset 20 [nan, nan]  opset 23 [0.0, 0.0]
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
from torch.nn.functional import scaled_dot_product_attention

logging.disable()
warnings.simplefilter("ignore")


class Attention(torch.nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, values):
        return scaled_dot_product_attention(values, values, values, attn_mask=self.mask)


values = torch.tensor([[[[3.0, 1.0], [2.0, 7.0]]]])
seen = {}
for name, mask in (
    ("boolean mask", torch.tensor([[True, True], [False, False]])),
    ("-inf mask", torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]])),
):
    module = Attention(mask)
    rows = {"torch": module(values)[0, 0, 1].tolist()}
    for opset in (18, 20, 23):
        program = torch.onnx.export(module, (values,), dynamo=True, verbose=False, opset_version=opset)
        session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
        [read] = session.run(None, {session.get_inputs()[0].name: values.numpy()})
        rows[f"opset {opset}"] = read[0, 0, 1].round(3).tolist()
    print(f"{name:12} ", "  ".join(f"{source} {row}" for source, row in rows.items()))
    seen[name] = [str(row) for row in rows.values()]

zeros, mean, nans = "[0.0, 0.0]", "[2.5, 4.0]", "[nan, nan]"
assert seen == {"boolean mask": [zeros, mean, mean, zeros], "-inf mask": [zeros, nans, nans, zeros]}
EOF
