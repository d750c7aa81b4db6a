"""Modules of torch: run, and exported to ONNX once, where a test is not of the export, which takes a second or more."""

import warnings

import torch


def for_any_size(net, file):
    """Write a module that takes three channels to an ONNX file for images of any height and width; return it."""
    free = {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of torch's exporter, about torch
        program = torch.onnx.export(
            net.eval(), (torch.zeros(1, 3, 64, 64),), dynamo=True, verbose=False, dynamic_shapes=(free,)
        )
    program.save(file)
    return file


def run_module(module, batch):
    with torch.inference_mode():
        return module.eval()(torch.from_numpy(batch)).numpy()
