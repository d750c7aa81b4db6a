"""Record plans with an input and its answer: `.venv/bin/python tests/data/plans/record.py`.

Weights and input are small whole numbers, so sums are exact and the answer is the same bit by bit on every processor.
Run it when there is a new format. `format-7` is a plan of an earlier one, which is refused.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from torch import nn

import serfer

PLACE = Path(__file__).parent


def network(channels):
    torch.manual_seed(0)
    layers = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, channels, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4)),
        *(nn.Flatten(), nn.Linear(4 * channels, 4)),
    )
    for parameter in layers.parameters():
        parameter.data = torch.randint(-2, 3, parameter.shape).float()
    return layers.eval()


class Dense(nn.Module):
    """A map of five classes, the best of them at each position, and a vector."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 8, 3, padding=1, stride=2)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last = nn.Conv2d(8, 5, 1)
        for parameter in self.parameters():
            parameter.data = torch.randint(-2, 3, parameter.shape).float()

    def forward(self, images):
        full = self.first(images).relu()
        half = self.down(full).relu()
        scores = self.last(torch.cat([full, self.up(half)], 1))
        return {"scores": scores, "classes": scores.argmax(1), "half": half}


GRIDS = ("2x2", "1x2", "col2")
PLANS = {
    "stages": (4, {"grids": GRIDS, "weights": "zip"}),
    "gang": (4, {"grids": ("2x1", "2x1", "1"), "gang": "always", "weights": "zip"}),
    "fetched": (64, {"grids": GRIDS, "weights": "fetched"}),
    "dense": (None, {"grids": ("2x2", "1")}),
}
"""By name the channels of the second map and the options: of stages, of a gang, of weights that functions fetch (only
tensors of more than 1 kB lie in a function's weights file), and of a network with several outputs."""


def split(name, place):
    """Split a network for a plan as recorded, for queries that are all warm."""
    channels, options = PLANS[name]
    torch.manual_seed(0)
    model = network(channels) if channels else Dense().eval()
    return serfer.split(model, images(), place, activation="none", cold_share=0, **options)


def images():
    return np.random.default_rng(0).integers(0, 8, (2, 3, 16, 16)).astype(np.float32)


def record(name):
    place, batch = PLACE / name, images()
    shutil.rmtree(place, ignore_errors=True)
    split(name, place)
    with serfer.open(place) as pipeline:
        answer = pipeline.run(batch)
    if isinstance(answer, dict):
        np.savez(place / "answer.npz", **answer)
    else:
        np.save(place / "answer.npy", answer)
    np.save(place / "input.npy", batch)


if __name__ == "__main__":
    for each in PLANS:
        record(each)
