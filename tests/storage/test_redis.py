import mmap
import os
import signal
import time

import pytest
import redis

from serfer.core.errors import StoreError, StoreUnavailableError, UsageError, ValueTooLargeError
from serfer.local.servers.redis import RedisServer
from storage import open_store
from storage.contract import CoordinationContract, StoreContract


@pytest.fixture(scope="module")
def server():
    with RedisServer() as server:
        yield server


class RawRedis:
    """A server's strings, by redis-py's client."""

    def __init__(self, client):
        self.client = client

    def get(self, key):
        return self.client.get(key), self.client.pttl(key) / 1000

    def put(self, key, value, ttl):
        self.client.set(key, value, px=round(ttl * 1000))


class TestRedis(StoreContract, CoordinationContract):
    @pytest.fixture
    def store(self, server):
        with open_store(server.url) as store:
            yield store

    @pytest.fixture
    def expire(self, store):
        def wait(key):
            deadline = time.monotonic() + 5
            while (left_ms := store.execute([("PTTL", key)])[0]) != -2:  # -2: gone
                assert 0 <= left_ms <= 50
                assert time.monotonic() < deadline

        return wait

    @pytest.fixture
    def raw(self, server):
        with redis.Redis.from_url(server.url) as client:
            yield RawRedis(client)

    def test_one_connection_serves_calls_in_turn(self, store, key):
        for _ in range(10):
            store.put(key, b"x", 1)
        assert len(store._node._pool._connections) == 1

    def test_threads_wait_for_a_free_connection(self, server, key):
        with open_store(server.url + "?max_connections=1") as store:
            StoreContract().test_readers_see_whole_values_while_writers_overwrite(store, key)
            assert len(store._node._pool._connections) == 1

    def test_value_beyond_the_limit(self, store, key):
        with (
            mmap.mmap(-1, 512 * 1024 * 1024 + 1) as huge,  # never touched, so it takes no memory
            memoryview(huge) as view,
            pytest.raises(ValueTooLargeError, match=key),
        ):
            store.put(key, view, 1)

    def test_a_refusal_leaves_the_connection_usable(self, store, key):
        store.execute([("LPUSH", key, "x"), ("PEXPIRE", key, 60_000)])
        with pytest.raises(StoreError, match="WRONGTYPE"):
            store.get(key)
        assert store.exists([key]) == [True]

    def test_full_server_is_unavailable(self, key):
        with RedisServer() as server, open_store(server.url) as store:
            store.execute([("CONFIG", "SET", "maxmemory", "1")])
            with pytest.raises(StoreUnavailableError, match="maxmemory"):
                store.put(key, b"x", 60)

    def test_server_gone(self, key):
        with RedisServer() as server, open_store(server.url) as store:
            store.put(key, b"x", 60)
            server.stop()
            self._check_unavailable(lambda: store.get(key), server)
            self._check_unavailable(lambda: store.put(key, bytes(100_000), 60), server)

    def test_idle_connection_that_the_server_closed_is_renewed(self, store, server, key):
        store.put(key, b"x", 60)
        with open_store(server.url) as other:
            assert other.execute([("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")])[0] >= 1
        assert store.get(key) == b"x"

    def test_wrong_password(self, server):
        wrong = server.url.replace("redis://:", "redis://:wrong")
        with open_store(wrong) as store:
            self._check_unavailable(lambda: store.exists(["k"]), server)
        with open_store(f"redis://127.0.0.1:{server.url.rpartition(':')[2]}") as store:
            self._check_unavailable(lambda: store.exists(["k"]), server)

    def test_server_that_does_not_answer(self, server):
        with open_store(server.url + "?socket_timeout=0.05") as store:
            os.kill(server.pid, signal.SIGSTOP)
            try:
                self._check_unavailable(lambda: store.get("k"), server)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert store.exists(["k"]) == [False]

    @pytest.mark.parametrize(
        "url",
        [
            "redis://:hush/hush@host/0",
            "redis://:hush@host?colour=red",
            "redis://:hush@host?protocol=9",
            "redis://:hush@host:x",
            "rediss://:hush@host?ssl_cert_reqs=hush",
        ],
    )
    def test_malformed_url_is_refused_without_its_password(self, url):
        with pytest.raises(UsageError) as caught:
            open_store(url)
        assert "hush" not in str(caught.value)

    def _check_unavailable(self, ask, server):
        with pytest.raises(StoreUnavailableError) as caught:
            ask()
        password, _, where = server.url.removeprefix("redis://:").partition("@")
        assert where.removesuffix("/0") in str(caught.value)
        assert password not in str(caught.value)
        assert password not in repr(caught.value.__cause__)
