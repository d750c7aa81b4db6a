"""Files that are produced while they are sent."""

import asyncio
import socket
import threading
import time
from contextlib import ExitStack, nullcontext
from functools import partial

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from serfer.api.admission import Places
from serfer.api.routes.kept import ChunkedFile
from serfer.core.errors import MissingKeyError
from tests.support.served import PATIENCE, running

MIB = 1 << 20


class Chunks:
    """Chunks of a mebibyte; `made` says how many were taken, and the one number `missing` cannot be made."""

    def __init__(self, count, missing=None):
        self.count, self.missing, self.made = count, missing, 0
        self.changed = threading.Event()

    def __iter__(self):
        return self

    def __next__(self):
        if self.made == self.count:
            raise StopIteration
        if self.made == self.missing:
            raise MissingKeyError("gone")
        self.made += 1
        self.changed.set()
        return bytes([self.made % 256]) * MIB


@pytest.fixture
def opened():
    """The servers that run: `close` waits until each has ended its last request."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def serve(opened):
    """Serve chunks, and return the URL and the bytes that were counted as sent."""

    def start(chunks, place=nullcontext):
        sent = []

        async def endpoint(_):
            headers = {"Content-Type": "application/x-npy"}
            return ChunkedFile(chunks, chunks.count * MIB, headers, place, sent.append)

        return opened.enter_context(running(Starlette(routes=[Route("/", endpoint)]))), sent

    return start


def test_a_file_is_sent_with_its_length(serve, opened):
    chunks = Chunks(5)
    url, sent = serve(chunks)
    reply = httpx.get(url, timeout=PATIENCE)
    assert reply.headers["Content-Length"] == str(5 * MIB)
    assert reply.content == b"".join(bytes([number]) * MIB for number in range(1, 6))
    opened.close()  # the last chunk is counted after the client has it: the server ends when that has happened
    assert sent == [MIB] * 5


def test_the_last_chunk_counts_where_its_client_leaves_with_it():
    sent = []

    async def run():
        left = asyncio.Event()

        async def receive():
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if message.get("body", b"")[:1] == b"\x05":
                left.set()
                await asyncio.sleep(0)
                await asyncio.sleep(0)

        response = ChunkedFile(Chunks(5), 5 * MIB, {}, nullcontext, sent.append)
        await response({"type": "http"}, receive, send)

    asyncio.run(run())
    assert sent == [MIB] * 5


def test_what_cannot_be_made_half_way_ends_the_connection_early(serve):
    url, sent = serve(Chunks(5, missing=3))
    with httpx.stream("GET", url, timeout=PATIENCE) as reply:
        assert reply.headers["Content-Length"] == str(5 * MIB)
        with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
            reply.read()
    assert sent == [MIB] * 3


def test_nothing_is_sent_where_the_first_chunk_cannot_be_made(serve):
    url, sent = serve(Chunks(5, missing=0))
    assert httpx.get(url, timeout=PATIENCE).status_code == 500
    assert sent == []


def connected(url):
    """Return a connection that has sent a request and reads nothing."""
    client = socket.create_connection(("127.0.0.1", httpx.URL(url).port))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    return client


def settled(chunks):
    before, since, latest = -1, time.monotonic(), time.monotonic() + PATIENCE
    while time.monotonic() < latest and time.monotonic() - since < 0.3:
        if chunks.made != before:
            before, since = chunks.made, time.monotonic()
        time.sleep(0.02)
    return chunks.made


def test_a_slow_reader_holds_the_production_back_and_one_that_leaves_ends_it(serve):
    chunks, downloads = Chunks(1000), Places(2, "full")
    url, _ = serve(chunks, partial(downloads.take, "a"))
    client = connected(url)
    made = settled(chunks)
    assert made < 50  # what sockets hold, of a gigabyte
    assert downloads.count == 1
    client.close()
    latest = time.monotonic() + PATIENCE
    while downloads.count and time.monotonic() < latest:
        time.sleep(0.02)
    assert downloads.count == 0
    assert chunks.made < made + 5
