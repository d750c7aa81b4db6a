"""A small plan and a cache that the tests of the study share with those of the benchmarks, and a scenario's file."""

import pytest

from tests.bench.conftest import cache, directory, lean, settings
from tests.study.sim.worlds import TOML

__all__ = ["cache", "directory", "lean", "settings"]


@pytest.fixture
def scenario(tmp_path):
    """A file of two types of instances, the second of which has no spot price."""
    path = tmp_path / "two-types.toml"
    path.write_text(TOML)
    return path
