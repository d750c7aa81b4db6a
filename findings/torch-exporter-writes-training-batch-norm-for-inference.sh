#!/usr/bin/env bash
# torch 2.13.0's ONNX exporter keeps a module's mode where it meets Dropout: in training it writes training_mode 1, and outputs are random.
# BatchNorm in training is normalised by the batch in torch, and the exporter writes a BatchNormalization without training_mode, which
# uses the running statistics: another function, with no warning. ONNX has training_mode for both operators, and one expects it in both.
# (A network that adapts to its batch on purpose, or that was left in training by mistake, meets this.)
#
# Seen on 2026-11-30, a batch of mean 5 and deviation 3:
#   Dropout      training_mode written: True
#   BatchNorm2d  training_mode written: False  mean of the output: torch 0.00, ONNX Runtime 4.98
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

import onnx
import onnxruntime
import torch
from onnx import numpy_helper

logging.disable()
warnings.simplefilter("ignore")
torch.manual_seed(0)
x = torch.randn(64, 2, 8, 8) * 3 + 5


def export(module):
    program = torch.onnx.export(module.train(), (x,), dynamo=True, verbose=False)
    return program.model_proto


def writes_training_mode(model, operator):
    [node] = [node for node in model.graph.node if node.op_type == operator]
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    constants |= {node.output[0]: numpy_helper.to_array(node.attribute[0].t) for node in model.graph.node if node.op_type == "Constant"}
    flags = [attribute.i for attribute in node.attribute if attribute.name == "training_mode"]
    return any(flags) or (operator == "Dropout" and len(node.input) == 3 and bool(constants[node.input[2]]))


dropout, norm = export(torch.nn.Dropout(0.5)), export(torch.nn.BatchNorm2d(2))
onnx.checker.check_model(norm)
session = onnxruntime.InferenceSession(norm.SerializeToString())
[read] = session.run([session.get_outputs()[0].name], {session.get_inputs()[0].name: x.numpy()})
expected = torch.nn.BatchNorm2d(2).train()(x).mean().item()
written = writes_training_mode(dropout, "Dropout"), writes_training_mode(norm, "BatchNormalization")
print("Dropout      training_mode written:", written[0])
print(f"BatchNorm2d  training_mode written: {written[1]}  mean of the output: torch {abs(expected):.2f}, ONNX Runtime {read.mean():.2f}")

assert written == (True, False) and abs(expected) < 1e-4 and read.mean() > 4.5
EOF
