import http.client
import os
import re
import select
import signal
import socket
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest

from serfer.core.errors import UnavailableError
from serfer.local.server import listen
from tests.e2e.conftest import eventually

PATIENCE = 30.0
MAIN = """
import asyncio, signal, socket, sys
from serfer.api.http.protocol import LimitedProtocol
from serfer.api.http.server import serve
from serfer.local.server import listen
from serfer.pipeline.event_loop import run

class Watched(LimitedProtocol):
    def connection_made(self, transport):
        super().connection_made(transport)
        accepted = transport.get_extra_info("socket")
        state["nodelay"] = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

sys.modules["serfer.api.http.server"].limited_protocol = lambda *_: Watched
state, released, passed_on = {"ready": True}, asyncio.Event(), [0]

async def disconnected(receive):
    while (await receive())["type"] != "http.disconnect":
        pass

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        print("ended", flush=True)
        return await send({"type": "lifespan.shutdown.complete"})
    if scope["path"] == "/wait":
        print("waiting", flush=True)
        gone = asyncio.create_task(disconnected(receive))
        await asyncio.wait({gone, asyncio.create_task(released.wait())}, return_when=asyncio.FIRST_COMPLETED)
    if scope["path"] == "/passed-on":
        passed_on[0] += 1
    if scope["path"] == "/release":
        released.set()
    ready = state["ready"] or scope["path"] != "/readyz"
    headers = [(b"content-length", b"0"), (b"x-nodelay", str(state["nodelay"]).encode())]
    headers.append((b"x-client", scope["client"][0].encode()))
    await send({"type": "http.response.start", "status": 200 if ready else 503, "headers": headers})
    await send({"type": "http.response.body"})

def terminated(*_):
    print("raised again", flush=True)

signal.signal(signal.SIGTERM, terminated)
run(serve(
    app,
    listener=listen("127.0.0.1", 0),
    header_timeout_s=5.0,
    connections_each=100,
    drain_s=float(sys.argv[1]),
    on_drain=lambda: state.update(ready=False),
    on_started=lambda url: print(url, flush=True),
    passed_on=passed_on,
))
print("returned", signal.getsignal(signal.SIGTERM) is terminated, flush=True)
"""


class Server:
    """A process that serves; `says` reads its next line."""

    def __init__(self, process):
        self.process = process
        self.url = self.says()

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])

    def says(self):
        assert select.select([self.process.stdout], [], [], PATIENCE)[0], "it says nothing"
        return self.process.stdout.readline().decode().rstrip()

    def connected(self):
        return closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE))

    def status(self, path):
        with self.connected() as connection:
            connection.request("GET", path)
            return connection.getresponse().status

    def listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def serving(drain_s, **variables):
    command, environment = [sys.executable, "-c", MAIN, str(drain_s)], {**os.environ, **variables}
    with subprocess.Popen(command, bufsize=0, stdout=subprocess.PIPE, env=environment) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


@contextmanager
def waiting(server):
    with server.connected() as connection:
        connection.request("GET", "/wait")
        assert server.says() == "waiting"
        yield connection


def test_draining_answers_new_requests_until_balancers_notice_and_finishes_running_ones():
    with serving(2.0) as server, waiting(server) as running:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", server.url)
        assert server.status("/readyz") == 200
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.status("/readyz") == 503, "it drains")
        assert server.status("/") == 200
        with server.connected() as kept:
            kept.request("GET", "/")
            assert kept.getresponse().read() == b""
            eventually(lambda: not server.listens(), "it takes no more connections")
            assert select.select([kept.sock], [], [], PATIENCE)[0], "an idle connection is kept open"
        assert select.select([running.sock], [], [], 0.3) == ([], [], []), "what runs was cut off"
        assert server.process.poll() is None


def test_returns_when_all_is_answered_and_leaves_signals_as_they_were():
    with serving(1.0) as server, waiting(server) as running:
        server.process.send_signal(signal.SIGINT)
        assert server.status("/release") == 200
        assert running.getresponse().status == 200
        assert server.says() == "ended"
        assert server.says() == "returned True"
        assert server.process.wait(PATIENCE) == 0


def test_nothing_drains_after_ctrl_c_where_nothing_runs():
    with serving(600.0) as server, server.connected() as connection:
        connection.request("GET", "/")
        assert connection.getresponse().read() == b""
        server.process.send_signal(signal.SIGINT)
        assert (server.says(), server.says()) == ("ended", "returned True")


def test_answers_on_a_kept_connection_do_not_wait_for_the_clients_ack():
    with serving(0.0) as server, server.connected() as connection:
        connection.request("GET", "/")
        assert connection.getresponse().headers["x-nodelay"] == "1"


def test_a_second_signal_aborts_running_requests():
    with serving(600.0) as server, waiting(server) as running:
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.status("/readyz") == 503, "it drains")
        server.process.send_signal(signal.SIGTERM)
        assert server.says() == "ended"
        assert server.says() == "returned True"
        assert server.process.wait(PATIENCE) == 0
        with pytest.raises((http.client.HTTPException, OSError)):
            running.getresponse()


@pytest.mark.killed
@pytest.mark.parametrize("first", [("own", "parent's"), ("parent's", "own"), ("parent's",)])
@pytest.mark.parametrize("second", ["own", "parent's"])
def test_a_signal_to_all_processes_counts_once_though_the_parent_passes_it_on(first, second):
    with serving(600.0) as server, waiting(server) as running:

        def send(source):
            if source == "parent's":
                assert server.status("/passed-on") == 200
            server.process.send_signal(signal.SIGTERM)

        for source in first:
            send(source)
            eventually(lambda: server.status("/readyz") == 503, "it drains")
            assert server.status("/readyz") == 503  # the signal before has been counted, and has not cut off
        assert select.select([running.sock], [], [], 0) == ([], [], []), "what runs was cut off"
        send(second)
        if first == ("parent's",) and second == "own":  # its own of the first signal
            assert server.status("/release") == 200
            assert running.getresponse().status == 200
        else:
            assert server.says() == "ended"
            with pytest.raises((http.client.HTTPException, OSError)):
                running.getresponse()


def test_address_that_cannot_be_had_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"--port {port} is taken"):
            listen("127.0.0.1", port)
    with pytest.raises(UnavailableError, match=r"--host 192\.0\.2\.1 --port 0: cannot listen there"):
        listen("192.0.2.1", 0)
    with pytest.raises(UnavailableError, match="--host 'not a host' is not an address"):
        listen("not a host", 0)


@pytest.mark.parametrize(("trusted", "client"), [("127.0.0.0/8", "8.8.8.8"), ("10.0.0.0/16", "127.0.0.1")])
def test_a_client_is_the_one_that_a_trusted_balancer_names_and_nobody_elses_word(trusted, client):
    """A balancer appends whom it answers: what a client has written before that counts for nothing."""
    with serving(0.0, FORWARDED_ALLOW_IPS=trusted) as server, server.connected() as connection:
        connection.request("GET", "/", headers={"X-Forwarded-For": "1.1.1.1, 8.8.8.8"})
        assert connection.getresponse().headers["x-client"] == client
