import http.server
import re
import socket
import threading
from contextlib import contextmanager

import pytest

from serfer.core.errors import StoreUnavailableError, ValueTooLargeError
from serfer.local.servers.redis import RedisServer
from serfer.storage import open_store
from serfer.storage.exchange import START, Message
from serfer.storage.redis.errors import failure
from tests.support.redis62 import Redis62Server, has_redis62

PASSWORD = "hush-hush"  # noqa: S105  of servers that end with the test


@pytest.fixture
def server():
    with RedisServer(password=PASSWORD) as server:
        yield server


@contextmanager
def answering(answer, *, first=False):
    """Listen on a free port; send each client `answer` once it has said something, then close, or with None wait.

    With `first` it is sent at once.
    """
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
                    if not first:
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


@pytest.fixture
def web_port():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent) as web:
        thread = threading.Thread(target=web.serve_forever, args=(0.01,))
        thread.start()
        yield web.server_port
        web.shutdown()
        thread.join()


class Silent(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass


class TestNoRedisThere:
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
        says = failure(TimeoutError("timed out"), "connecting")
        assert "cannot be reached in time: are host and port in --store right" in says

    def test_an_http_server(self, web_port):
        says = refusal(at(web_port))
        assert f"127.0.0.1:{web_port} " in says  # it answers a page without a head, or closes
        assert "does not speak Redis's protocol" in says or "it is not a Redis server" in says
        assert "--store" in says

    @pytest.mark.parametrize("login", [f":{PASSWORD}@", ""])
    @pytest.mark.parametrize(
        ("answer", "quoted"),
        [
            (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "HTTP/1.1 400 Bad Request"),
            (b'HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n<?xml version="1.0"?>', "HTTP/1.1 400 Bad Request"),
            (b"220 mail.example ESMTP\r\n", "220 mail.example ESMTP"),
            *((answer, "") for answer in (b"$x\r\n", b"-MOVED\r\n", b"*1\r\n" * 10_000)),
        ],
    )
    def test_another_protocol(self, answer, quoted, login):
        with answering(answer) as port:
            says = refusal(f"redis://{login}127.0.0.1:{port}")
        assert f"127.0.0.1:{port} does not speak Redis's protocol" in says
        assert quoted in says

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            (b"", ["closed the connection", "--store"]),
            (None, ["does not answer in time", "check --store", "socket_timeout=SECONDS"]),
        ],
    )
    def test_a_server_that_closes_or_says_nothing(self, answer, words):
        with answering(answer) as port:
            says = refusal(at(port, "?socket_timeout=0.2"))
        assert f"127.0.0.1:{port} {words[0]}" in says
        assert all(word in says for word in words), says


class TestLogin:
    @pytest.mark.parametrize(
        ("login", "means"),
        [
            (f":not-{PASSWORD}@", "refused the login: correct user and password in --store"),
            (f"nobody:{PASSWORD}@", "refused the login"),
            ("", "wants a password: write redis://[USER]:PASSWORD@HOST:PORT in --store"),
        ],
    )
    def test_a_wrong_login(self, server, login, means):
        assert f"127.0.0.1:{server.port} {means}" in refusal(f"redis://{login}127.0.0.1:{server.port}")

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
    @pytest.mark.parametrize(
        ("setting", "value", "means"),
        [
            ("requirepass", "", "has no password: leave it out of --store"),
            ("maxmemory", "1", r"is full \(maxmemory\).*--store"),
            ("maxclients", "1", "has no connection free.*raise its maxclients"),
        ],
    )
    def test_a_setting_of_the_server(self, server, setting, value, means):
        with open_store(server.url) as store:
            store.execute([("CONFIG", "SET", setting, value)])
            says = refusal(server.url)
        assert re.search(f"127.0.0.1:{server.port} {means}", says), says

    @pytest.mark.parametrize("kind", [RedisServer, pytest.param(Redis62Server, marks=has_redis62)])
    def test_script_on_a_full_server_says_so(self, kind):
        """Redis before 7 hides the reason behind its own words on the script."""
        with kind(password=PASSWORD) as server, open_store(server.url) as store:
            store.execute([("CONFIG", "SET", "maxmemory", "1")])
            says = refusal(server.url, lambda store: store.coordination().compare_and_set("k", None, b"x", 60))
        assert f"127.0.0.1:{server.port} is full (maxmemory)" in says

    @pytest.mark.parametrize("login", [f":{PASSWORD}@", ""])
    @pytest.mark.parametrize("size", [1, 8_000_000])
    def test_a_server_that_refuses_a_connection_before_a_word_is_quoted(self, login, size):
        with answering(b"-ERR max number of clients reached\r\n", first=True) as port:
            says = refusal(f"redis://{login}127.0.0.1:{port}", lambda store: store.put("k", bytes(size), 60))
        assert "has no connection free (max number of clients reached): raise its maxclients" in says

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

    def test_all_our_connections_are_taken(self, server):
        with (
            open_store(server.url + "?max_connections=1&timeout=0.05") as store,
            store._commands.sent([("PING",)]) as read,
        ):
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
