"""A map plan of a small network, and what `serfer map` should make of an image by it: the network on the whole."""

import tempfile
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import rasterio

import serfer
from serfer.core.geometry import Span
from serfer.core.plan import Preprocess
from serfer.core.plan.windows import AxisWindow, AxisWindows
from serfer.mapping.opened import _images, _plans
from tests.mapping.networks import run
from tests.support.onnx_graph import Graph

WINDOW, HALO = 16, 2
PREPROCESS = Preprocess(
    resize=None, interpolation="bilinear", channels="RGB", scale=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25)
)


def network():
    """An ONNX file of two convolutions, so that pixels of the result depend on two around them, for any size."""
    graph = Graph()
    first = graph.op("Conv", "image", graph.normal(4, 3, 3, 3), graph.normal(4), pads=[1] * 4)
    graph.op("Conv", graph.op("Relu", first), graph.normal(2, 4, 3, 3), graph.normal(2), output="map", pads=[1] * 4)
    return graph.model({"map": 2}).SerializeToString()


def axis(count):
    """The windows along an axis of `count` times WINDOW pixels: the first, those between, the last."""
    size = count * WINDOW
    windows = []
    for number in range(count):
        written = Span(number * WINDOW, (number + 1) * WINDOW)
        read = Span(max(0, written.start - HALO), min(size, written.stop + HALO))
        kind = 0 if number == 0 else 2 if number == count - 1 else 1
        windows.append(AxisWindow(kind, read, written))
    return AxisWindows(size, size, tuple(windows), start=0.0)


def make_map_plan(directory, rows=(3, 4), cols=(5, 3), preprocess=PREPROCESS):
    """Write a map plan for images of `rows` windows by `cols` windows; the smallest is compared in one piece."""
    sizes = [(WINDOW * height, WINDOW * width) for height, width in product(rows, cols)]
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder, "dense.onnx")).write_bytes(network())
        serfer.map_plan(path, sizes, directory, window=WINDOW, preprocess=preprocess)


HEIGHT, WIDTH = 64, 80


def close_opened():
    _plans.cache_clear()
    _images.cache_clear()


def map_command(image, plan, out, *options):
    return ("map", image, "--plan", plan, "--out", out, "--workers", "inprocess", *options)


def normal(image, scale=1 / 255, missing=None):
    """What the network gets of a whole image, (1, bands, rows, cols)."""
    mean, std = (np.array(each, np.float32)[:, None, None] for each in (PREPROCESS.mean, PREPROCESS.std))
    values = (image.astype(np.float32) * np.float32(scale) - mean) / std
    if missing is not None:
        values[:, missing] = 0
    return values[None]


def expected(image, scale=1 / 255, missing=None):
    return run(network(), normal(image, scale, missing))[0]


def read(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(path) as dataset:
            return dataset.read()


def assert_equal(one, other):
    assert one.shape == other.shape
    assert np.abs(one - other).max() <= 1e-5 * np.ptp(other)
