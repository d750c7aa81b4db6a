"""A small plan and a cache that all benchmarks share: functions' packages are built once."""

import pytest

from serfer.settings import Settings
from tests.caches import new_cache
from tests.e2e.small import GRIDS, split_small


@pytest.fixture(scope="session")
def settings(tmp_path_factory):
    return Settings(cache_dir=new_cache(tmp_path_factory))


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    """Four tiles, four tiles, one; what is handed on rides along."""
    return split_small(tmp_path_factory.mktemp("small"), grids=GRIDS)


@pytest.fixture(scope="session")
def lean(tmp_path_factory):
    """Two tiles and one: three cold starts make a query."""
    return split_small(tmp_path_factory.mktemp("lean"), grids=[(1, 2), (1, 1)])
