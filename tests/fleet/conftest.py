import secrets

import pytest

from serfer.local.servers.redis import RedisServer
from serfer.storage import open_store


@pytest.fixture(scope="module")
def redis():
    with RedisServer() as server:
        yield server.url


@pytest.fixture(params=["memory", "file", "redis"])
def coordination(request, tmp_path):
    urls = {"memory": "memory://", "file": f"file://{tmp_path / 'store'}"}
    with open_store(urls.get(request.param) or request.getfixturevalue("redis")) as opened:
        yield opened.coordination()


@pytest.fixture
def key():
    return f"t:{secrets.token_hex(8)}"
