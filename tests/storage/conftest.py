import time

import pytest

from serfer.local.servers.redis import RedisServer
from serfer.storage import open_store


class Clock:
    """The time of day, which a test may move on."""

    ahead = 0.0

    def __call__(self):
        return time.time() + self.ahead


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def expire(clock):
    def wait(_key):
        clock.ahead += 0.05

    return wait


@pytest.fixture(scope="module")
def server():
    with RedisServer() as server:
        yield server


@pytest.fixture
def url(server):
    return server.url


@pytest.fixture
def store(url):
    with open_store(url) as store:
        yield store


@pytest.fixture
def aws_keys(monkeypatch, tmp_path):
    """Credentials of AWS, without a configuration file."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "c0ffee" * 6)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
