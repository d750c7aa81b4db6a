"""Record a plan of a format with an input and its answer: `.venv/bin/python tests/data/plans/record.py 7`.

Weights and input are small whole numbers, so sums are exact and the answer is the same bit by bit on every processor.
Run it when there is a new format, and keep the plans of those that are still read.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import serfer


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


CHANNELS = {5: 4, 6: 4, 7: 64}
"""Of the second map: tensors of more than 1 kB lie in a function's weights file, and only 7 has such."""
GRIDS = ("2x2", "1x2", "col2")
OPTIONS = {
    5: {"grids": GRIDS, "weights": "zip"},
    6: {"grids": ("2x1", "2x1", "1"), "gang": "always", "weights": "zip"},
    7: {"grids": GRIDS, "weights": "fetched"},
    8: {"grids": ("2x2", "1")},
}
"""What makes a plan of each format: 5 has no gangs, 6 has, both with all weights in zips, which 7 fetches; the network
of 8 does not classify."""

if __name__ == "__main__":
    number = int(sys.argv[1])
    place = Path(__file__).parent / f"v{number}"
    batch = np.random.default_rng(0).integers(0, 8, (2, 3, 16, 16)).astype(np.float32)
    torch.manual_seed(0)
    model = Dense().eval() if number not in CHANNELS else network(CHANNELS[number])
    plan = serfer.split(model, batch, place, activation="none", **OPTIONS[number])
    if plan.format != number:
        sys.exit(f"the plan has format {plan.format}: other options make one of format {number}")
    with serfer.open(place) as pipeline:
        answer = pipeline.run(batch)
    if isinstance(answer, dict):
        np.savez(place / "answer.npz", **answer)
    else:
        np.save(place / "answer.npy", answer)
    np.save(place / "input.npy", batch)
