import pytest

from serfer.storage import open_store


@pytest.fixture
def store():
    with open_store("memory://") as opened:
        yield opened
