"""One way to compute a map as a process: an image file in, an array file out; a request as JSON is its one argument.

It reads, computes and writes as a user of the tool would, and prints as JSON how many seconds that took, which are
without the start of Python and imports.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import rasterio
import torch

from serfer_bench.mapping.images import normalised
from serfer_bench.mapping.peer_networks import network
from serfer_bench.mapping.peers import MONAI_ONNX, WHOLE

Run = Callable[[torch.Tensor], torch.Tensor]
Inferer = Callable[[torch.Tensor, Run], torch.Tensor]


def inferer(way: str, window: int) -> Inferer:
    """Return what runs a network on an image: at once, or in windows of MONAI, with its own defaults."""
    if way == WHOLE:
        return lambda image, run: run(image)
    from monai.inferers import sliding_window_inference  # type: ignore[import-not-found] # noqa: PLC0415 - no dependency

    return lambda image, run: sliding_window_inference(image, (window, window), sw_batch_size=1, predictor=run)


def model(way: str, name: str, file: str) -> Run:
    """Return a network: torch's module, or the session of a file for images of a window's size."""
    if way != MONAI_ONNX:
        return network(name)
    import onnxruntime  # noqa: PLC0415 - of one way alone

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    [given] = session.get_inputs()
    return lambda image: torch.from_numpy(session.run(None, {given.name: image.numpy()})[0])


def main(request: dict[str, Any]) -> dict[str, float]:
    """Compute a map; returns the seconds of reading, computing and writing it."""
    sys.path += request["packages"]
    infer = inferer(request["way"], request["window"])
    started = time.monotonic()
    with rasterio.open(request["image"]) as dataset:
        image = torch.from_numpy(normalised(dataset.read()))
    with torch.inference_mode():
        result = infer(image, model(request["way"], request["network"], request["model"]))
    np.save(request["out"], result[0].numpy())
    return {"seconds": time.monotonic() - started}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201 - what a process says
