import shutil
from functools import cache

import numpy as np
import pytest

from serfer.splitter import build
from serfer.splitter.network import source as loading
from serfer.splitter.split import split
from serfer.splitter.tiling.from_onnx import from_onnx


@pytest.fixture(scope="session")
def zoo():
    """Return a function (name, height, width) to (source, sample, graph): each network is exported once a session."""

    @cache
    def export(name, height, width):
        sample = np.random.default_rng(3).standard_normal((2, 3, height, width), dtype=np.float32)
        source, _ = loading.load(name, sample)
        return source, sample, from_onnx(source.onnx, height, width)

    return lambda name, height=224, width=224: export(name, height, width)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """A directory for what is large: it goes when the tests end, while pytest keeps others for three runs."""
    path = tmp_path_factory.mktemp("shelf")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def zoo_plan(zoo, shelf):
    """Return a function (name, grids) to (plan, directory), by way of split() itself but for the export."""
    known = {}

    def get(name, grids):
        if name not in known:
            source, sample, _ = zoo(name)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(build, "load", lambda model, _: (source, sample) if model == name else None)
                known[name] = split(name, out=shelf / name, grids=grids), shelf / name
        return known[name]

    return get
