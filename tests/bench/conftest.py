"""A small plan and a cache that all benchmarks share: functions' packages are built once."""

from tests.e2e.conftest import cache, lean, plan, settings, single

directory = plan
__all__ = ["cache", "directory", "lean", "plan", "settings", "single"]
