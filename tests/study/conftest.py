"""A small plan and a cache that the tests of the study share with those of the benchmarks."""

from tests.bench.conftest import directory, lean, settings

__all__ = ["directory", "lean", "settings"]
