import pytest

from tests.client.unasync import CLIENT, SOURCES, blocking, twin


@pytest.mark.parametrize("source", SOURCES)
def test_the_client_that_blocks_is_the_one_for_asyncio_without_await(source):
    path = CLIENT / source
    assert twin(path).read_text() == blocking(path), "run .venv/bin/python tests/client/unasync.py"
