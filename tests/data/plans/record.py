"""Record a plan of today's format with an input and its answer: `.venv/bin/python tests/data/plans/record.py`.

Weights and input are small whole numbers, so sums are exact and the answer is the same bit by bit on every processor.
Run it when FORMAT grows, and keep plan.json of the format before.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn

import serfer
from serfer.core.plan import FORMAT


def network():
    torch.manual_seed(0)
    layers = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4)),
        *(nn.Flatten(), nn.Linear(16, 4)),
    )
    for parameter in layers.parameters():
        parameter.data = torch.randint(-2, 3, parameter.shape).float()
    return layers.eval()


if __name__ == "__main__":
    place = Path(__file__).parent / f"v{FORMAT}"
    batch = np.random.default_rng(0).integers(0, 8, (2, 3, 16, 16)).astype(np.float32)
    serfer.split(network(), batch, place, grids=("2x2", "1x2", "col2"), activation="none")
    with serfer.open(place) as pipeline:
        np.save(place / "answer.npy", pipeline.run(batch))
    np.save(place / "input.npy", batch)
