import mmap
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from serfer.core.errors import StoreError, StoreUnavailableError, UsageError, ValueTooLargeError
from serfer.local.servers.redis import RedisServer
from serfer.storage import open_store
from serfer.storage.contract import CoordinationContract, ExchangeContract, StoreContract
from serfer.storage.exchange import START, Message
from tests.support.redis62 import Redis62Server, has_redis62

FORKING = """
import os, sys
from contextlib import nullcontext
from serfer.storage import open_store
with open_store(sys.argv[1] + "?max_connections=1&timeout=1") as store:
    mine = store.execute([("CLIENT", "ID")])
    pool = store._commands._pool
    with {"idle": nullcontext(), "in use": store._commands.sent([("PING",)]), "locked": pool._free}[sys.argv[2]]:
        if not (child := os.fork()):
            theirs = [store.execute([("CLIENT", "ID")]) for _ in range(2)]
            os._exit(mine in theirs or theirs[0] != theirs[1])
    code = os.waitpid(child, 0)[1]
    again = store.execute([("CLIENT", "ID")])
print("another in the child," if code == 0 else "the same in the child,", again == mine)
"""


class RawRedis:
    def __init__(self, client):
        self.client = client

    def get(self, key):
        return self.client.get(key), self.client.pttl(key) / 1000

    def put(self, key, value, ttl):
        self.client.set(key, value, px=round(ttl * 1000))


@pytest.fixture
def expire(store):
    def wait(key):
        deadline = time.monotonic() + 5
        while (left_ms := store.execute([("PTTL", key)])[0]) != -2:  # -2: gone
            assert 0 <= left_ms <= 50
            assert time.monotonic() < deadline

    return wait


class RedisContract(StoreContract):
    @pytest.fixture
    def raw(self, server):
        with redis.Redis.from_url(server.url) as client:
            yield RawRedis(client)

    def test_server_gone(self, key):
        with RedisServer() as server, open_store(server.url) as store:
            store.put(key, b"x", 60)
            server.stop()
            _check_unavailable(lambda: store.get(key), server)
            _check_unavailable(lambda: store.put(key, bytes(100_000), 60), server)

    def test_server_that_does_not_answer(self, server):
        with open_store(server.url + "?socket_timeout=0.05") as store:
            os.kill(server.pid, signal.SIGSTOP)
            try:
                _check_unavailable(lambda: store.get("k"), server)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert store.exists(["k"]) == [False]

    def test_one_connection_serves_calls_in_turn_unless_the_server_closed_it(self, store, server, key):
        first = _connections(store)
        for _ in range(10):
            store.put(key, b"x", 60)
        assert _connections(store) == first
        with open_store(server.url) as other:
            assert other.execute([("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")])[0] >= 1
        assert store.get(key) == b"x"


class TestRedis(RedisContract, CoordinationContract):
    def test_threads_wait_for_a_free_connection(self, server, store, key):
        first = _connections(store)
        with open_store(server.url + "?max_connections=1") as bounded:
            StoreContract().test_readers_see_whole_values_while_writers_overwrite(bounded, key)
        assert _connections(store) == first + 1

    def test_a_connection_in_use_while_the_store_closes_answers_and_is_closed_then(self, server, store):
        with store._commands.sent([("CLIENT", "ID")]) as read:
            store.close()
            [number] = read()
        with open_store(server.url) as watch:
            _until(lambda: b"id=%d " % number not in watch.execute([("CLIENT", "LIST")])[0])
        assert store.exists(["k"]) == [False]

    @pytest.mark.parametrize("state", ["idle", "in use", "locked"])
    def test_a_forked_process_leaves_its_parents_connections_alone(self, server, state):
        # In a process of its own: this one may have reserved more addresses for ONNX Runtime than can be forked.
        command = [sys.executable, "-c", FORKING, server.url, state]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        same = state != "in use"  # whose reply nobody has read
        assert (done.returncode, done.stdout) == (0, f"another in the child, {same}\n"), done.stderr

    def test_a_connection_that_cannot_be_opened_takes_no_place_of_another(self):
        with RedisServer() as server, open_store(server.url + "?max_connections=1&timeout=0") as store:
            server.stop()
            for _ in range(2):
                with pytest.raises(StoreUnavailableError, match="cannot be reached"):
                    store.get("k")

    def test_value_beyond_the_limit(self, store, key):
        with (
            mmap.mmap(-1, 512 * 1024 * 1024 + 1) as huge,  # never touched, so it takes no memory
            memoryview(huge) as view,
            pytest.raises(ValueTooLargeError, match=key),
        ):
            store.put(key, view, 1)

    @pytest.mark.hostile
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


@has_redis62
class TestRedis62(RedisContract, CoordinationContract):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls):
        with Redis62Server() as server:
            yield server


@has_redis62
class TestRedis62Exchange(ExchangeContract):
    @pytest.fixture
    def url(self):
        with Redis62Server() as server:
            yield server.url


class TestRedisExchange(ExchangeContract):
    @pytest.fixture
    def url(self, server):
        return server.url + "?max_connections=1"

    def test_threads_that_wait_in_turn_share_a_connection(self, store, exchange, key):
        first = _connections(store)
        for _ in range(3):
            with ThreadPoolExecutor(1) as thread:
                thread.submit(exchange.receive, key, START, 0.01).result()
        assert _connections(store) == first + 1

    def test_closing_gives_connections_back(self, key):
        with RedisServer() as server, open_store(server.url) as watch, open_store(server.url) as store:
            exchange = store.exchange()
            with ThreadPoolExecutor(4) as threads:
                for _ in range(2):  # first idle connections, then ones that wait
                    waits = [threads.submit(exchange.receive, key, START, 0.3) for _ in range(4)]
                    _until(lambda: _clients(watch) == 5)
                    exchange.close()
                    assert [wait.result() for wait in waits] == [[]] * 4
                    _until(lambda: _clients(watch) == 1)
                assert exchange.receive(key, START, 0) == []
                exchange.close()
                _until(lambda: _clients(watch) == 1)

    @pytest.mark.parametrize("messages", [[], [b"x"]])
    def test_a_wait_longer_than_the_socket_timeout(self, server, key, messages):
        with open_store(server.url + "?socket_timeout=0.5") as store, ThreadPoolExecutor(1) as thread:
            exchange = store.exchange()
            started = time.monotonic()
            waiting = thread.submit(exchange.receive, key, START, 30 if messages else 0.8)
            time.sleep(0.8)
            exchange.send([Message(key, value) for value in messages], 60)
            assert [message.value for message in waiting.result()] == messages
            assert 0.8 <= time.monotonic() - started < 5
            exchange.close()

    def test_server_gone_and_back(self, key):
        with RedisServer() as server, open_store(server.url) as store:
            exchange = store.exchange()
            assert exchange.receive(key, START, 0) == []
            with ThreadPoolExecutor(1) as thread:
                waiting = thread.submit(exchange.receive, key, START, 30)
                time.sleep(0.1)  # until it waits
                server.stop()
                _check_unavailable(waiting.result, server)
            _check_unavailable(lambda: exchange.receive(key, START, 1), server)
            _check_unavailable(lambda: exchange.send([Message(key, b"x")], 60), server)
            password = server.url.removeprefix("redis://:").partition("@")[0]
            with RedisServer(server.port, password):
                exchange.send([Message(key, b"x")], 60)
                assert [message.value for message in exchange.receive(key, START, 30)] == [b"x"]
            exchange.close()

    def test_server_that_does_not_answer(self, server, key):
        with open_store(server.url + "?socket_timeout=0.1") as store, ThreadPoolExecutor(1) as thread:
            exchange = store.exchange()
            waiting = thread.submit(exchange.receive, key, START, 30)
            time.sleep(0.1)  # until it waits
            os.kill(server.pid, signal.SIGSTOP)
            try:
                _check_unavailable(waiting.result, server)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert exchange.receive(key, START, 0) == []
            exchange.close()

    def test_a_wait_whose_server_becomes_a_replica(self, key):
        with RedisServer() as server, open_store(server.url) as store, ThreadPoolExecutor(1) as thread:
            exchange = store.exchange()
            waiting = thread.submit(exchange.receive, key, START, 30)
            time.sleep(0.1)  # until it waits
            store.execute([("REPLICAOF", "127.0.0.1", 1)])
            _check_unavailable(waiting.result, server)
            exchange.close()

    def test_every_message_and_the_time_to_live_are_one_request(self, store, exchange, key):
        before = store.execute([("INFO", "stats")])[0]
        exchange.send([Message(f"{key}:{number}", bytes(100_000)) for number in range(3)], 60)
        after = store.execute([("INFO", "stats")])[0]
        assert _processed(after) - _processed(before) == 1 + 6
        assert all(50_000 < left_ms <= 60_000 for left_ms in store.execute([("PTTL", f"{key}:{n}") for n in range(3)]))

    def test_a_value_is_not_an_inbox(self, store, exchange, key):
        store.put(key, b"x", 60)
        with pytest.raises(StoreError, match="WRONGTYPE"):
            exchange.receive(key, START, 0)
        with pytest.raises(StoreError, match="WRONGTYPE"):
            exchange.send([Message(key, b"x")], 60)


def _check_unavailable(ask, server):
    with pytest.raises(StoreUnavailableError) as caught:
        ask()
    password, _, where = server.url.removeprefix("redis://:").partition("@")
    assert where.removesuffix("/0") in str(caught.value)
    assert password not in str(caught.value)
    assert password not in repr(caught.value.__cause__)


def _clients(store):
    return len(store.execute([("CLIENT", "LIST", "TYPE", "normal")])[0].splitlines())


def _processed(info):
    return int(info.partition(b"total_commands_processed:")[2].split()[0])


def _connections(store):
    return int(store.execute([("INFO", "stats")])[0].partition(b"total_connections_received:")[2].split()[0])


def _until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
