"""What `serfer map` should make of an image: the network on the whole of it."""

import warnings

import numpy as np
import onnxruntime
import rasterio

from tests.mapping.plans import PREPROCESS, network

HEIGHT, WIDTH = 64, 80


def expected(image, scale=1 / 255, missing=None):
    """The network on the whole image, (bands, rows, cols)."""
    mean, std = (np.array(each, np.float32)[:, None, None] for each in (PREPROCESS.mean, PREPROCESS.std))
    values = (image.astype(np.float32) * np.float32(scale) - mean) / std
    if missing is not None:
        values[:, missing] = 0
    session = onnxruntime.InferenceSession(network(), providers=["CPUExecutionProvider"])
    return session.run(None, {"image": values[None]})[0][0]


def read(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(path) as dataset:
            return dataset.read()


def assert_equal(one, other):
    assert one.shape == other.shape
    assert np.abs(one - other).max() <= 1e-5 * np.ptp(other)
