import http.server
import re
import socket
import threading
from contextlib import contextmanager

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from serfer import storage
from serfer.core.errors import StoreUnavailableError, ValueTooLargeError
from serfer.local.servers.redis import RedisServer
from serfer.storage import open_store
from serfer.storage.exchange import START, Message
from serfer.storage.redis.errors import explained

PASSWORD = "hush-hush"  # noqa: S105  of servers that end with the test


@pytest.fixture(autouse=True, params=[False, True], ids=["redis-py", "worker"])
def in_worker(request, monkeypatch):
    monkeypatch.setattr(storage, "in_worker", request.param)


@pytest.fixture
def server():
    with RedisServer(password=PASSWORD) as server:
        yield server


@contextmanager
def answering(answer):
    """Listen on a free port; send each client `answer` once it has said something, then close, or with None wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        waiting = []

        def serve():
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                if answer is None:
                    waiting.append(client)
                    continue
                with client:
                    client.recv(1000)
                    client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for client in waiting:
                client.close()


def refusal(url, ask=lambda store: store.put("k", b"x", 60), error=StoreUnavailableError):
    with open_store(url) as store, pytest.raises(error) as caught:
        ask(store)
    says = str(caught.value)
    assert "\n" not in says
    assert PASSWORD not in says
    assert PASSWORD not in repr(caught.value.__cause__)
    return says


def at(port, options=""):
    return f"redis://:{PASSWORD}@127.0.0.1:{port}/0{options}"


class TestNobodyThere:
    def test_nothing_listens(self, server):
        server.stop()
        says = refusal(server.url)
        assert f"Redis at 127.0.0.1:{server.port} cannot be reached (Connection refused)" in says
        assert "are host and port in --store right?" in says

    def test_the_host_is_unknown(self):
        says = refusal(f"redis://:{PASSWORD}@no-such-host.invalid:6379")
        assert "no-such-host.invalid:6379 cannot be found (" in says
        assert "host and port in --store" in says

    def test_the_network_swallows_everything(self):
        error = RedisTimeoutError("Timeout connecting to server")
        error.__context__ = TimeoutError("timed out")
        says = str(explained(error, "host:1", "GET"))
        assert "Redis at host:1 cannot be reached in time: are host and port in --store right" in says


class TestSomebodyElseThere:
    def test_an_http_server(self):
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent) as web:
            thread = threading.Thread(target=web.serve_forever, args=(0.01,))
            thread.start()
            says = refusal(at(web.server_port))
            web.shutdown()
            thread.join()
        assert f"127.0.0.1:{web.server_port} " in says  # it answers a page without a head, or closes
        assert "does not speak Redis's protocol" in says or "it is not a Redis server" in says
        assert "--store" in says

    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
            b'HTTP/1.1 400 Bad Request\r\nServer: SeaweedFS\r\n\r\n<?xml version="1.0"?>',
            b"220 mail.example ESMTP\r\n",
        ],
    )
    def test_another_protocol(self, answer):
        with answering(answer) as port:
            says = refusal(at(port))
        assert f"127.0.0.1:{port} does not speak Redis's protocol" in says
        assert answer.split(b"\r\n")[0].decode() in says

    @pytest.mark.parametrize("login", [f":{PASSWORD}@", ""])
    @pytest.mark.parametrize("answer", [b"$x\r\n", b"-MOVED\r\n", b"*1\r\n" * 10_000])
    def test_no_reply_at_all(self, answer, login):
        with answering(answer) as port:
            assert "does not speak Redis's protocol" in refusal(f"redis://{login}127.0.0.1:{port}")

    def test_a_server_that_closes_at_once(self):
        with answering(b"") as port:
            says = refusal(at(port))
        assert f"127.0.0.1:{port} closed the connection" in says
        assert "--store" in says

    def test_a_server_that_says_nothing(self):
        with answering(None) as port:
            says = refusal(at(port, "?socket_timeout=0.2"))
        assert f"127.0.0.1:{port} does not answer in time" in says
        assert "check --store" in says
        assert "socket_timeout=SECONDS" in says


class Silent(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass


class TestLogin:
    def test_wrong_password(self, server):
        says = refusal(server.url.replace(PASSWORD, f"not-{PASSWORD}"))
        assert f"127.0.0.1:{server.port} refused the login: correct user and password in --store" in says

    def test_unknown_user(self, server):
        assert "refused the login" in refusal(server.url.replace("://:", "://nobody:"))

    def test_no_password(self, server):
        says = refusal(f"redis://127.0.0.1:{server.port}")
        assert f"127.0.0.1:{server.port} wants a password: write redis://[USER]:PASSWORD@HOST:PORT in --store" in says

    def test_a_password_too_many(self, server):
        with open_store(server.url) as store:
            store.execute([("CONFIG", "SET", "requirepass", "")])
        assert "has no password: leave it out of --store" in refusal(server.url)

    @pytest.mark.parametrize("rights", ["~* +get", "~other:* +@all"])
    def test_a_user_without_the_rights(self, server, rights):
        with open_store(server.url) as store:
            store.execute([("ACL", "SETUSER", "reader", "on", f">{PASSWORD}", *rights.split())])
        says = refusal(server.url.replace("://:", "://reader:"))
        assert re.search(rf"127\.0\.0\.1:{server.port} forbids it \(.*no permissions", says, re.IGNORECASE)
        commands = "+get +getrange +set +exists +del +eval +xadd +xread +pexpire"
        assert f"give the user in --store {commands} on the keys ~serfer:*" in says

    def test_the_rights_that_the_message_names_suffice(self, server):
        with open_store(server.url) as store:
            rights = "+get +getrange +set +exists +del +eval +xadd +xread +pexpire ~serfer:*"
            store.execute([("ACL", "SETUSER", "worker", "on", f">{PASSWORD}", *rights.split())])
        with open_store(server.url.replace("://:", "://worker:")) as store:
            store.put("serfer:k", b"xyz", 60)
            assert store.coordination().compare_and_set("serfer:k", None, b"new", 60) is None
            assert store.coordination().compare_and_set("serfer:l", None, b"new", 60)
            assert store.get("serfer:k", 1, 1) == b"y"
            assert store.get("serfer:k", 3) == b""
            assert store.exists(["serfer:k"]) == [True]
            exchange = store.exchange()
            exchange.send([Message("serfer:in", b"x")], 60)
            assert [message.value for message in exchange.receive("serfer:in", START, 30)] == [b"x"]
            store.delete(["serfer:k", "serfer:in"])
            exchange.close()


class TestTrouble:
    def test_no_memory_left(self, server):
        with open_store(server.url) as store:
            store.execute([("CONFIG", "SET", "maxmemory", "1")])
        says = refusal(server.url)
        assert f"127.0.0.1:{server.port} is full (maxmemory)" in says
        assert "--store" in says

    def test_a_replica(self, server):
        with RedisServer() as primary:
            with open_store(server.url) as store:
                store.execute([("REPLICAOF", "127.0.0.1", primary.port)])
            says = refusal(server.url)
        assert f"127.0.0.1:{server.port} is a read-only replica: name its primary in --store" in says

    @pytest.mark.parametrize(
        ("answer", "means"),
        [
            (b"-LOADING Redis is loading the dataset in memory\r\n", "is still loading its data: try again"),
            (b"-MASTERDOWN Link with MASTER is down\r\n", "is down (Link with MASTER is down"),
            (b"-CLUSTERDOWN The cluster is down\r\n", "says that its cluster is down"),
        ],
    )
    def test_it_is_not_ready(self, answer, means):
        with answering(answer) as port:
            says = refusal(f"redis://127.0.0.1:{port}")
        assert f"127.0.0.1:{port}" in says
        assert means in says

    def test_all_its_connections_are_taken(self, server):
        with open_store(server.url) as other:
            other.execute([("CONFIG", "SET", "maxclients", "1")])
            says = refusal(server.url)
        assert "has no connection free" in says
        assert "raise its maxclients" in says

    def test_all_our_connections_are_taken(self, server, monkeypatch):
        monkeypatch.setattr(storage, "in_worker", False)  # a worker takes what it needs
        with open_store(server.url + "?max_connections=1&timeout=0.05") as store, store._node.sent([("PING",)]) as read:
            with pytest.raises(StoreUnavailableError, match="no connection free: raise max_connections in --store"):
                store.get("k")
            assert read() == [b"PONG"]

    def test_a_server_that_takes_smaller_values(self, server):
        with open_store(server.url) as store:
            store.execute([("CONFIG", "SET", "proto-max-bulk-len", "1mb")])
        too_large = (ValueTooLargeError, StoreUnavailableError)  # the latter where it hangs up before we could read why
        says = refusal(server.url, lambda store: store.put("k", bytes(1_050_000), 60), too_large)
        assert f"127.0.0.1:{server.port} " in says
        assert "takes no value of that size" in says
        assert "its proto-max-bulk-len" in says
