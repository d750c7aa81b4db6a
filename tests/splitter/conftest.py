import numpy as np
import pytest

from splitter import load as loading
from splitter.graph import from_onnx


@pytest.fixture(scope="session")
def zoo():
    """Return a function (name, height, width) to (source, sample, graph): each network is exported once a session."""
    known = {}

    def get(name, height=224, width=224):
        if (name, height, width) not in known:
            sample = np.random.default_rng(3).standard_normal((2, 3, height, width), dtype=np.float32)
            source, _ = loading.load(name, sample)
            known[name, height, width] = (source, sample, from_onnx(source.onnx, height, width))
        return known[name, height, width]

    return get
