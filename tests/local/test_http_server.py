"""The lean HTTP server under clients that boto3 is not: in pieces, pipelined, too large, malformed."""

import asyncio
import errno
import gc
import logging
import socket
import warnings
from contextlib import suppress

import pytest

from serfer.local import acceptor
from serfer.local.acceptor import Acceptor, Shortage
from serfer.local.lambda_.http_server import HEAD_LIMIT, HttpServer
from serfer.pipeline import event_loop as loops
from serfer.pipeline.event_loop import new_event_loop

LIMIT = 1000


def talk(*sent, until_close=False, replies=1):
    """Send the pieces one by one to an echoing server and return what comes back."""

    def echo(exchange):
        exchange.reply(413 if exchange.oversize else 200, exchange.body, {"X-Target": exchange.target})

    async def run():
        server = HttpServer(echo, lambda _: LIMIT)
        port = server.listen("127.0.0.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for piece in sent:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if until_close:
                return await reader.read()
            return b"".join([await one_reply(reader) for _ in range(replies)])
        finally:
            server.close()
            writer.close()
            await asyncio.sleep(0)

    return loops.run(asyncio.wait_for(run(), 10))


async def one_reply(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")), 0)
    return head + await reader.readexactly(length)


@pytest.mark.hostile
@pytest.mark.parametrize("late", [False, True])
def test_a_connection_that_is_accepted_as_the_server_closes_is_closed(late):
    """Another process's, such as that of a worker which starts as its service stops: the client sees the end."""

    async def run():
        server = HttpServer(lambda exchange: exchange.reply(200), lambda _: LIMIT)
        signal, other = socket.socketpair()
        client = socket.create_connection(("127.0.0.1", server.listen("127.0.0.1")), timeout=10)
        with signal, other, client:
            # The loop finds both ready at once, in this order: what it accepts has not started when the server closes.
            loop, closed = asyncio.get_running_loop(), asyncio.Event()

            def close():
                loop.remove_reader(other)
                if late:
                    loop.call_soon(server.close)
                    loop.call_soon(closed.set)
                else:
                    server.close()
                    closed.set()

            loop.add_reader(other, close)
            signal.send(b"x")
            await closed.wait()
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""
            assert server.connections == set()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        loops.run(run())
        gc.collect()
    assert [str(each.message) for each in caught] == []


@pytest.mark.hostile
def test_answers_on_a_kept_connection_do_not_wait_for_the_clients_ack():
    timings = []

    def look(exchange):
        accepted = exchange._connection._transport.get_extra_info("socket")
        timings.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        exchange.reply(200)

    async def run():
        server = HttpServer(look, lambda _: LIMIT)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.listen("127.0.0.1"))
        writer.write(post(b""))
        await one_reply(reader)
        server.close()
        writer.close()

    loops.run(asyncio.wait_for(run(), 10))
    assert timings == [1]


def post(body, *headers):
    host = [] if any(header.startswith(b"Host") for header in headers) else [b"Host:"]
    return b"\r\n".join([b"POST /a HTTP/1.1", b"content-LENGTH: %d" % len(body), *host, *headers, b"", body])


@pytest.mark.hostile
def test_a_request_may_come_byte_by_byte():
    request = post(b"hello", b"X-Other:  padded ")
    answer = talk(*(request[i : i + 1] for i in range(len(request))))
    assert answer == b"HTTP/1.1 200 OK\r\nX-Target: /a\r\nContent-Length: 5\r\n\r\nhello"


@pytest.mark.hostile
def test_pipelined_requests_are_answered_in_order():
    answer = talk(post(b"one") + post(b"two") + post(b"") + post(b"three"), replies=4)
    assert [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200 OK\r\n")[1:]] == [
        b"one",
        b"two",
        b"",
        b"three",
    ]


@pytest.mark.hostile
def test_a_body_beyond_the_limit_is_dropped_and_the_connection_kept():
    answer = talk(post(b"x" * 500_000) + post(b"next"), replies=2)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"\r\n\r\nnext")


@pytest.mark.hostile
def test_expect_100_continue_is_answered():
    head, body = post(b"hello", b"Expect: 100-continue").split(b"\r\n\r\n")
    assert talk(head + b"\r\n\r\n", body, replies=2).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
    head = post(b"x" * 2000, b"Expect: 100-continue").split(b"\r\n\r\n")[0]
    assert talk(head + b"\r\n\r\n", until_close=True).startswith(b"HTTP/1.1 413 ")


@pytest.mark.hostile
def test_a_client_that_wants_one_answer_gets_the_connection_closed():
    assert talk(post(b"bye", b"Connection: close"), until_close=True).endswith(b"bye")
    assert talk(b"GET /a HTTP/1.0\r\n\r\n", until_close=True).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost:\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost:\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * HEAD_LIMIT, 431),
    ],
)
def test_unsupported_requests_are_refused(request_, status):
    answer = talk(request_, until_close=True)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close" in answer


@pytest.mark.hostile
@pytest.mark.parametrize("header", [b"Origin: https://evil.example", b"Host: evil.example", b"Host: evil.example:80"])
def test_browser_requests_are_refused(header):
    assert talk(post(b"{}", header), until_close=True).startswith(b"HTTP/1.1 403 ")
    url = post(b"{}").replace(b" /a", b" http://evil.example/a")
    assert talk(url, until_close=True).startswith(b"HTTP/1.1 403 ")


@pytest.mark.hostile
@pytest.mark.parametrize("host", [b"127.0.0.1:4000", b"localhost", b"localhost:4000"])
def test_this_machines_own_names_are_served(host):
    assert talk(post(b"{}", b"Host: " + host)).startswith(b"HTTP/1.1 200 ")


PATIENCE = 60.0
SAID = "connections wait to be accepted: Too many open files (raise the limit: ulimit -n)"


class Greeter(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"hello")
        transport.close()


@pytest.fixture(params=[asyncio.new_event_loop, new_event_loop], ids=["asyncio", "ours"])
def play(request):
    """Run a scene with an acceptor on a loop of each kind."""

    def played(scene):
        async def run():
            listener = socket.create_server(("127.0.0.1", 0))
            accepting = Acceptor(listener, Greeter)
            asyncio.get_running_loop().set_exception_handler(lambda _, context: pytest.fail(str(context)))
            try:
                await asyncio.wait_for(scene(accepting, listener.getsockname()), PATIENCE)
            finally:
                accepting.close()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(run())

    return played


@pytest.fixture
def short(monkeypatch):
    """Have no descriptors for the next so many connections; yields the tries."""
    tries, accept = [], socket.socket.accept

    def refuse(count):
        def short(listener):
            tries.append(listener)
            if len(tries) <= count:
                raise OSError(errno.EMFILE, "Too many open files")
            return accept(listener)

        monkeypatch.setattr(socket.socket, "accept", short)
        return tries

    return refuse


async def greeted(address):
    reader, writer = await asyncio.open_connection(*address)
    try:
        return await reader.read()
    finally:
        writer.close()


def test_without_descriptors_connections_wait_and_the_log_says_so_once(play, short, monkeypatch, caplog):
    monkeypatch.setattr(acceptor, "PAUSE_S", 0.0)
    tries = short(5)

    async def scene(_, address):
        assert await greeted(address) == b"hello"
        assert await greeted(address) == b"hello"

    play(scene)
    assert len(tries) >= 7
    assert [record.getMessage() for record in caplog.records] == [SAID]


def test_closing_while_accepting_pauses_leaves_nothing(play, short):
    tries = short(1000)

    async def scene(accepting, address):
        with socket.create_connection(address):
            while not tries:  # noqa: ASYNC110 - it says nothing of it
                await asyncio.sleep(0)
            accepting.close()
            accepting.close()
            assert accepting._pause.cancelled()

    play(scene)


def test_a_closed_port_refuses_and_a_connection_that_was_accepted_before_goes_on(play):
    async def scene(accepting, address):
        with socket.create_connection(address, PATIENCE) as client:
            while not accepting._starting:  # noqa: ASYNC110 - same
                await asyncio.sleep(0)
            accepting.close()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*address)
            assert await asyncio.to_thread(client.recv, 5) == b"hello"

    play(scene)


def test_connections_that_start_are_waited_for(play):
    async def scene(accepting, address):
        with socket.create_connection(address, PATIENCE):
            while not accepting._starting:  # noqa: ASYNC110 - same
                await asyncio.sleep(0)
            starting = [*accepting._starting]
            accepting.close()
            await accepting.settled()
            assert all(task.done() for task in starting)
            await accepting.settled()  # there are none

    play(scene)


def test_a_shortage_is_logged_once_in_ten_seconds(caplog):
    caplog.set_level(logging.WARNING)
    times = iter([0.0, 0.0, 1.0, 9.9, 10.0, 10.0])
    shortage = Shortage(lambda: next(times))
    for _ in range(4):
        shortage.log(OSError(errno.EMFILE, "Too many open files"))
    assert [record.getMessage() for record in caplog.records] == [SAID] * 2
