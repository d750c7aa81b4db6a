import asyncio
import json
import queue
import re
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest
from starlette.requests import Request

from serfer.api.auth.hosts import HostCheck
from serfer.api.http.problems import Problem
from serfer.api.http.protocol import limited_protocol
from serfer.api.requests import disconnected
from serfer.core.http1 import MOST_HEADERS
from tests.support.served import running

PATIENCE = 60.0  # s
LARGE = bytes(16 * 1024 * 1024)  # more than the kernel keeps for a connection
GOOD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = GOOD[:-2] + b"Connection: close\r\n\r\n"
CHUNKED = b"POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
SIZED = b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\n"
WAIT = GOOD.replace(b"/", b"/wait", 1)
active, counted, protocols = set(), [], {}
written, told, released = threading.Event(), queue.Queue(), asyncio.Semaphore(0)


async def application(scope, receive, send):
    """Answer /read with the length of the body, /large at length, and the rest without looking at the body."""
    if scope["path"] == "/large":
        headers = [(b"content-length", b"%d" % (2 * len(LARGE)))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": LARGE, "more_body": True})
        await send({"type": "http.response.body", "body": LARGE})  # waits until the first half is taken
        written.set()
        return
    if scope["path"] in WATCHED:
        await WATCHED[scope["path"]](scope, receive, send)
        return
    if scope["path"] == "/release":
        released.release()
    if scope["path"].startswith("/host"):
        await _answer(send, *await _host_check(scope))
        return
    length = 0
    while scope["path"] == "/read":
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length += len(message["body"])
        if not message["more_body"]:
            break
    await _answer(send, 200, str(length).encode())


async def _wait(_scope, receive, send):
    told.put("waiting")
    waits = {asyncio.create_task(released.acquire()): "released", asyncio.create_task(disconnected(receive)): "gone"}
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    told.put(waits[done.pop()])
    await _answer(send, 200, b"0")


async def _count(scope, _receive, send):
    active.add(scope["client"])
    counted.append(len(active))
    for _ in range(20):
        await asyncio.sleep(0)
    await _answer(send, 200, LARGE if scope["path"] == "/once" else b"1")
    active.remove(scope["client"])


async def _read_ahead(_scope, receive, send):
    gone = asyncio.create_task(disconnected(receive))
    for _ in range(5):
        await asyncio.sleep(0)  # while the application looks whether the client is there
    gone.cancel()
    counted.append(max(len(connection.reader.unread) for connection in everyone()))
    await _answer(send, 200, b"0")


WATCHED = {"/wait": _wait, "/counted": _count, "/once": _count, "/ahead": _read_ahead}


async def _answer(send, status, body):
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


async def _host_check(scope):
    try:
        await HostCheck(("x",), ())(Request(scope))
    except Problem as refusal:
        return refusal.status, b""
    return 200, scope["raw_path"] + b"?" + scope["query_string"]


@contextmanager
def serving(header_timeout_s, connections_each=100, **settings):
    protocol = limited_protocol(header_timeout_s, connections_each)
    with running(application, http=protocol, lifespan="off", ws="none", **settings) as url:
        port = int(url.rpartition(":")[2])
        protocols[port] = protocol
        yield port


def everyone():
    """Return the connections of all servers here."""
    return {
        one for protocol in protocols.values() for client in protocol.clients.values() for one in client.connections
    }


@pytest.fixture(scope="module")
def quick():
    with serving(0.3) as port:
        yield port


@pytest.fixture(scope="module")
def patient():
    with serving(PATIENCE) as port:
        yield port


@contextmanager
def connected(port, *pieces):
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        for piece in pieces:
            client.sendall(piece)
        yield client


def rest(client):
    """Return everything until the server closes; one that has unread bytes then resets the connection."""
    received = b""
    with suppress(ConnectionResetError):
        while piece := client.recv(65536):
            received += piece
    return received


def exchanged(port, *pieces):
    """Send pieces and return all that the server says until it closes."""
    with connected(port, *pieces) as client:
        return rest(client)


def problem(answer):
    """Take apart the one answer that was given, which must be a problem after which the connection ends."""
    head, _, body = answer.partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    fields = {name.lower(): value for name, value in (header.split(": ", 1) for header in headers)}
    assert fields["content-type"] == "application/problem+json"
    assert fields["connection"] == "close"
    content = json.loads(body)
    assert line == f"HTTP/1.1 {content['status']} {content['title']}"
    assert content["detail"]
    return content["status"]


def one_answer(client):
    """Read one answer of the application's, whose body is one digit or a few."""
    received = b""
    while b"\r\n\r\n" not in received or received.endswith(b"\r\n\r\n"):
        piece = client.recv(65536)
        assert piece, received
        received += piece
    return received


def works(port, path=b"/"):
    with connected(port, GOOD.replace(b"/", path, 1)) as client:
        return one_answer(client).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.hostile
def test_a_connection_that_says_nothing_is_closed(quick):
    assert exchanged(quick) == b""


@pytest.mark.hostile
def test_an_answer_that_is_not_read_is_given_up(quick):
    written.clear()
    with connected(quick, GOOD.replace(b"/", b"/large", 1)) as client:
        assert written.wait(PATIENCE)
        assert len(rest(client)) < len(LARGE)


@pytest.mark.hostile
def test_an_answer_that_is_read_slowly_is_written_to_its_end(quick):
    with connected(quick, LAST.replace(b"/", b"/large", 1)) as client:
        received = 0
        while piece := client.recv(1024 * 1024):
            received += len(piece)
            time.sleep(0.02)  # it takes longer than the server waits for one that reads nothing
    assert received > 2 * len(LARGE)


@pytest.mark.hostile
@pytest.mark.parametrize("part", [b"G", b"GET / HTTP/1.1\r\n", GOOD[:-2], GOOD[:-1]])
def test_a_head_that_never_ends_is_given_up(quick, part):
    assert problem(exchanged(quick, part)) == 408


@pytest.mark.hostile
def test_a_head_that_trickles_is_given_up(quick):
    """Each byte comes soon after the one before, so only the whole time can be what is counted."""
    with connected(quick) as client:
        client.settimeout(0.02)
        received = None
        client.sendall(b"GET / HTTP/1.1\r\nHost: ")
        while received is None:
            try:
                received = client.recv(65536)
            except TimeoutError:
                client.sendall(b"x")
    assert problem(received) == 408


@pytest.mark.hostile
def test_the_timeout_restarts_with_each_request(quick):
    with connected(quick) as client:
        for _ in range(3):
            client.sendall(GOOD)
            assert one_answer(client).startswith(b"HTTP/1.1 200")
        client.sendall(GOOD[:9])
        assert problem(rest(client)) == 408


@pytest.mark.hostile
def test_a_body_that_is_read_has_the_application_s_time_not_the_head_s(quick):
    with connected(quick, b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n1") as client:
        client.settimeout(0.9)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(PATIENCE)
        client.sendall(b"2")
        assert one_answer(client).endswith(b"\r\n\r\n2")


@pytest.mark.hostile
def test_an_unread_body_does_not_hold_a_connection_open(quick):
    with connected(quick, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n") as client:
        assert one_answer(client).endswith(b"\r\n\r\n0")
        client.settimeout(0.02)
        while not closed(client):
            with suppress(ConnectionError):
                client.sendall(b"x")


def closed(client):
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.hostile
def test_an_unread_body_may_end_and_the_next_request_follow(patient):
    with connected(patient, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n") as client:
        assert one_answer(client).endswith(b"\r\n\r\n0")
        client.sendall(b"x" * 300_000 + GOOD)
        assert one_answer(client).startswith(b"HTTP/1.1 200")


@pytest.mark.hostile
def test_requests_in_a_row_are_answered_in_a_row(patient):
    with connected(patient, GOOD + LAST) as client:
        assert rest(client).count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.hostile
@pytest.mark.parametrize(
    "head",
    [
        GOOD[:-2] + b"X: " + b"y" * 17_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 17_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        GOOD[:-2] + b"X: y\r\n" * MOST_HEADERS + b"\r\n",
        GOOD[:-2] + b"X: " + b"y" * 300_000,
    ],
    ids=["long header", "long target", "many headers", "endless header"],
)
def test_a_large_head_is_refused_even_where_it_arrives_at_once(patient, head):
    with connected(patient) as client:
        with suppress(ConnectionError):  # the server may have had enough before all is sent
            client.sendall(head)
        assert problem(rest(client)) == 431
    assert works(patient)


@pytest.mark.hostile
def test_a_head_within_the_bounds_is_not_refused(patient):
    fields = b"X: " + b"y" * 100 + b"\r\n" + b"Y: z\r\n" * (MOST_HEADERS - 2)
    with connected(patient, GOOD[:-2] + fields + b"\r\n") as client:
        assert one_answer(client).startswith(b"HTTP/1.1 200")


@pytest.mark.hostile
@pytest.mark.parametrize(
    "message",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        GOOD[:-2] + b"Host: y\r\n\r\n",
        GOOD[:-2] + b"X : y\r\n\r\n",
        GOOD[:-2] + b": y\r\n\r\n",
        GOOD[:-2] + b"X\r\n\r\n",
        GOOD[:-2] + b"X: \x00\r\n\r\n",
        GOOD[:-2] + b"\xc3\xbc: y\r\n\r\n",
        b"GET / HTTP/1.1\nHost: x\n\n",
        GOOD[:-2] + b"X: y\nZ: z\r\n\r\n",
        GOOD[:-2] + b"X: y\rZ: z\r\n\r\n",
        GOOD[:-2] + b"\nGET /smuggled HTTP/1.1\r\n\r\n",
        GOOD[:-2] + b"X: y\r\n z\r\n\r\n",
        b"\r\n" + GOOD,
        b"GET / RTSP/1.0\r\nHost: x\r\n\r\n",
        *(SIZED % length + b"\r\n12345" for length in (b"-1", b"+5", b"5, 6", b"", b"9" * 25, b"x")),
        SIZED % b"1" + b"Content-Length: 2\r\n\r\n12",
        SIZED % b"5" + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED.replace(b"1.1", b"1.0") + b"0\r\n\r\n",
        *(CHUNKED.replace(b"chunked", coding) + b"0\r\n\r\n" for coding in (b"gzip, chunked", b"\x0bchunked")),
        *(CHUNKED + chunk + b"\r\nab\r\n0\r\n\r\n" for chunk in (b"+2", b"-1", b"2;a=\nb", b"no number", b"f" * 40)),
        CHUNKED + b"3\r\nabcdef\r\n0\r\n\r\n",
        *(CHUNKED + b"0\r\n" + end + GOOD for end in (b"\n", b"X: y\n\n", b"X: y\r\n\n", b"X: y\n\r\n")),
    ],
)
def test_invalid_http_is_refused_with_a_reason(patient, message):
    assert problem(exchanged(patient, message)) == 400
    assert works(patient)


@pytest.mark.who_may
@pytest.mark.parametrize(
    ("target", "host", "expected"),
    [
        (b"http://x/host%20a?b=c", b"x", b"200 OK /host%20a?b=c"),
        (b"HTTP://127.0.0.1:80/host", b"evil.example", b"200 OK /host?"),
        (b"https://[::1]:1/host/http://evil.example/?", b"evil.example", b"200 OK /host/http://evil.example/?"),
        (b"http://evil.example/host", b"x", b"403 Forbidden "),
        (b"http://x:80@evil.example/host", b"x", b"400 Bad Request "),
        (b"http://x@/host", b"x", b"400 Bad Request "),
        (b"http:///host", b"x", b"400 Bad Request "),
        (b"ftp://x/host", b"x", b"400 Bad Request "),
        (b"x:80", b"x", b"400 Bad Request "),
        (b"host", b"x", b"400 Bad Request "),
    ],
)
def test_target_in_absolute_form_says_which_path_and_host_are_meant(patient, target, host, expected):
    """RFC 9112, section 3.2.2; the check of hosts sees the URL's."""
    head = b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (target, host)
    first, _, body = exchanged(patient, head).partition(b"\r\n\r\n")
    status = first.partition(b"\r\n")[0].removeprefix(b"HTTP/1.1 ")
    assert status + b" " + (b"" if body.startswith(b"{") else body) == expected


@pytest.mark.parametrize("target", [b"http://x", b"http://x?a"])
def test_target_without_a_path_means_the_root(patient, target):
    assert exchanged(patient, LAST.replace(b"/", target, 1)).endswith(b"\r\n\r\n0")


@pytest.mark.hostile
@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_chunks_and_trailers_may_arrive_in_pieces_and_more_requests_with_them(patient, pieces):
    sent = 2 * (CHUNKED + b"2;a=b\r\nab\r\n0\r\nX: y\r\n\r\n" + CHUNKED + b"1\r\na\r\n0\r\n\r\n") + LAST
    answers = exchanged(patient, *(sent[first : first + pieces] for first in range(0, len(sent), pieces)))
    assert re.findall(rb"\r\n\r\n(\d)", answers) == [b"2", b"1", b"2", b"1", b"0"]


@pytest.mark.hostile
@pytest.mark.parametrize("parts", [(b"2;", b"a", b""), (b"0\r\n", b"T: x\r\n", b""), (b"0\r\n", b"T: x\r\n", b"\r\n")])
def test_what_goes_with_chunks_is_bounded(patient, parts):
    assert problem(exchanged(patient, CHUNKED, parts[0] + 20_000 * parts[1] + parts[2])) == 431
    assert works(patient)


@pytest.mark.hostile
def test_the_body_of_a_request_that_offers_an_upgrade_is_no_request(patient):
    """As Java's client offers it with each first request. A parser that ends the message there runs what is in it."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    with connected(patient, SIZED % (b"%d" % len(GOOD)) + offer + b"\r\n", GOOD) as client:
        assert one_answer(client).endswith(b"\r\n\r\n%d" % len(GOOD))
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(1)


@pytest.mark.hostile
def test_a_body_that_breaks_off_its_framing_after_the_answer_ends_the_connection(patient):
    with connected(patient, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n") as client:
        assert one_answer(client).endswith(b"\r\n\r\n0")
        client.sendall(b"no number\r\n")
        assert rest(client) == b""
    assert works(patient)


@pytest.mark.hostile
def test_a_client_that_leaves_in_the_middle_of_a_head_is_forgotten(patient):
    with connected(patient, GOOD[:9]):
        pass
    assert works(patient)


class TestOneClient:
    """What a client may have of a server that others use too; it is counted, not timed."""

    @pytest.mark.hostile
    def test_requests_that_are_pipelined_run_a_few_at_once(self, patient):
        """Each connection's first one runs at once; of the others as many as may, and all are answered."""
        counted.clear()
        later, last = GOOD.replace(b"/", b"/counted", 1), LAST.replace(b"/", b"/counted", 1)
        with ExitStack() as opened:
            clients = [opened.enter_context(connected(patient, WAIT + 20 * later + last)) for _ in range(20)]
            assert {told.get(timeout=PATIENCE) for _ in clients} == {"waiting"}
            assert all(works(patient, b"/release") for _ in clients)
            assert [rest(client).count(b"HTTP/1.1 200 OK") for client in clients] == [22] * 20
        assert {told.get(timeout=PATIENCE) for _ in clients} == {"released"}
        assert (len(counted), max(counted)) == (20 * 21, 4)

    @pytest.mark.hostile
    def test_next_request_waits_until_the_answer_before_is_taken(self, patient):
        counted.clear()
        large = GOOD.replace(b"/", b"/once", 1)
        with connected(patient, large + large.replace(b"Host", b"Connection: close\r\nHost")) as client:
            client.recv(1)
            for _ in range(10):
                assert works(patient)
            assert len(counted) == 1
            assert sum(map(len, iter(lambda: client.recv(1024 * 1024), b""))) > 2 * len(LARGE)
        assert len(counted) == 2

    @pytest.mark.hostile
    def test_little_is_read_ahead_of_requests(self, patient):
        counted.clear()
        ahead = GOOD.replace(b"/", b"/ahead", 1)
        with ThreadPoolExecutor(1) as thread:
            with connected(patient) as client:
                sent = thread.submit(client.sendall, ahead * 1_000_000)
                answers = 0
                while answers < 100:
                    answers += client.recv(65536).count(b"HTTP/1.1 200 OK")
                client.shutdown(socket.SHUT_RDWR)
            assert isinstance(sent.exception(PATIENCE), OSError)
        assert 0 < max(counted) < 1024 * 1024

    @pytest.mark.hostile
    def test_connections_of_an_address_are_bounded_but_not_those_of_a_balancer(self):
        forwarded = GOOD[:-2] + b"X-Forwarded-For: 8.8.8.8\r\n\r\n"
        with serving(PATIENCE, connections_each=2) as port, ExitStack() as opened:
            for _ in range(3):
                balancer = opened.enter_context(connected(port, forwarded))
                assert one_answer(balancer).startswith(b"HTTP/1.1 200")
            with connected(port, GOOD) as first, connected(port, GOOD) as second:
                assert one_answer(first).startswith(b"HTTP/1.1 200")
                assert one_answer(second).startswith(b"HTTP/1.1 200")
                assert problem(exchanged(port)) == 429
            balancer.sendall(forwarded)
            assert one_answer(balancer).startswith(b"HTTP/1.1 200")
            while not works(port):
                pass  # until the server has seen the end of those that were closed


class TestHalfClosed:
    """A client that sends nothing more, and waits for its answer: RFC 9112, section 9.6."""

    @pytest.mark.parametrize(
        "head", [WAIT, WAIT.replace(b"1.1", b"1.0"), SIZED.replace(b"/read", b"/wait") % b"0" + b"\r\n"]
    )
    def test_client_that_has_sent_all_gets_its_answer(self, patient, head):
        with connected(patient, head) as client:
            assert told.get(timeout=PATIENCE) == "waiting"
            client.shutdown(socket.SHUT_WR)
            answer = b"" if b"1.0" in head else client.recv(25)
            assert works(patient, b"/release")
            assert told.get(timeout=PATIENCE) == "released"
            *probes, head, body = (answer + rest(client)).split(b"\r\n\r\n")
        assert set(probes) <= {b"HTTP/1.1 100 Continue"}
        assert (head.partition(b"\r\n")[0], body) == (b"HTTP/1.1 200 OK", b"0")

    def test_all_that_was_sent_before_is_answered_and_the_connection_ends(self, patient):
        with connected(patient, 3 * GOOD + GOOD[:-1]) as client:
            client.shutdown(socket.SHUT_WR)
            assert rest(client).count(b"HTTP/1.1 200 OK") == 3

    @pytest.mark.parametrize("leave", ["close", "reset", "end, then close", "in the body"])
    def test_client_that_has_left_ends_its_request(self, patient, leave):
        head = SIZED.replace(b"/read", b"/wait") % b"1" + b"\r\n"
        with connected(patient, head if leave == "in the body" else WAIT) as client:
            assert told.get(timeout=PATIENCE) == "waiting"
            if leave == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if leave.startswith(("end", "in")):
                client.shutdown(socket.SHUT_WR)
            if leave.startswith("end"):
                assert client.recv(25)
        assert told.get(timeout=PATIENCE) == "gone"
        assert works(patient)


@pytest.mark.hostile
def test_the_bound_is_uvicorns_own_setting():
    with serving(PATIENCE, h11_max_incomplete_event_size=500) as port:
        assert problem(exchanged(port, GOOD[:-2] + b"X: " + b"y" * 600 + b"\r\n\r\n")) == 431
        assert works(port)
