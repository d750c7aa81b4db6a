"""A network of 20 MB that computes next to nothing: its memory is seen in a process."""

import serfer
from tests.e2e.small import CLASSES, LABELS, PREPROCESS, SIZE
from tests.splitter.models import Net

HIDDEN = 1500
WEIGHTS = (3 * SIZE * SIZE + CLASSES) * HIDDEN * 4
"""Bytes of its weights, but for a few."""


def split_heavy(directory):
    """Split the network into `directory`/plan, and return that path."""
    net = Net(3, SIZE, SIZE)
    hidden = net.op("Relu", net.linear(net.flat("x"), 3 * SIZE * SIZE, HIDDEN))
    model = net.save(directory, net.linear(hidden, HIDDEN, CLASSES), dims=("N", CLASSES))
    chosen = {"preprocess": PREPROCESS, "labels": LABELS, "activation": "softmax"}
    serfer.split(str(model), out=directory / "plan", grids=[(1, 1)], stages=1, **chosen)
    return directory / "plan"
