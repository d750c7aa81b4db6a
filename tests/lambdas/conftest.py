import pytest

from serfer.lambdas.worker import Worker
from serfer.storage.memory import MemoryStore


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def worker(plan, directory, store):
    """A worker of the plan in the directory of the file's tests."""
    return Worker(plan, directory, store, "here", threads=1, init_ms=12.5)
