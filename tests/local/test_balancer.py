import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager

import pytest

from serfer.core.errors import UnavailableError
from serfer.local.server import free_port
from serfer.local.servers.balancer import Balancer
from tests.e2e.conftest import eventually
from tests.support.processes import check_gone, said_before_kill, use_temporary_folder, wait_for_end

PATIENCE = 30.0
DRIVER = """
import http.server, json, os, signal, sys, threading, time
draining, released = threading.Event(), threading.Event()

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body go out together, or not at all
    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/wait":
            print("waiting", flush=True)
            released.wait()
        ready = self.path != "/readyz" or not draining.is_set()
        data = json.dumps({"pid": os.getpid(), "length": len(body), "headers": dict(self.headers)}).encode()
        self.send_response(200 if ready else 503)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_POST = answer
    def log_message(self, *_):
        pass

class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True
    def handle_error(self, *_):
        pass

signal.signal(signal.SIGUSR1, lambda *_: draining.set())
signal.signal(signal.SIGUSR2, lambda *_: released.set())
server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
print("ready", flush=True)
threading.Thread(target=server.serve_forever).start()
while True:
    time.sleep(0.02)  # Python looks for signals between two of these
"""
PARENT = """
import sys
from serfer.local.servers.balancer import Balancer
server = Balancer([9])
print(server.pid, flush=True)
sys.stdin.read()
"""


class Driver:
    """A driver that answers its requests; SIGUSR1 makes it unready, SIGUSR2 ends the requests that wait."""

    def __init__(self, port):
        self.port = port
        self.start()

    def start(self):
        command = [sys.executable, "-c", DRIVER, str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.says(b"ready\n")

    @property
    def pid(self):
        return self.process.pid

    def says(self, line):
        assert select.select([self.process.stdout], [], [], PATIENCE)[0]
        assert self.process.stdout.readline() == line

    def drain(self):
        self.process.send_signal(signal.SIGUSR1)

    def release(self):
        self.process.send_signal(signal.SIGUSR2)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def restart(self):
        self.end()
        self.start()


@pytest.fixture
def drivers():
    started = [Driver(free_port()), Driver(free_port())]
    yield started
    for driver in started:
        driver.end()


@pytest.fixture
def balancer(drivers):
    with Balancer([driver.port for driver in drivers]) as server:
        yield server


@pytest.fixture
def used_first(drivers, balancer):
    """Both drivers, of which the second one drains: requests go to the first one."""
    first, second = drivers
    second.drain()
    eventually(lambda: answering(balancer) == {first.pid}, "only the first driver is used")
    return first, second


def take_over(balancer, first, second):
    """Start the second driver again, which answers all at once, and then kill the first one."""
    second.restart()
    second.release()
    eventually(lambda: answering(balancer) & {second.pid}, "the second driver is used")
    first.end()


def ask(balancer, path="/", method="GET", body=None, headers=()):
    """Ask on a connection of its own and return (status, headers, answer)."""
    with closing(http.client.HTTPConnection("127.0.0.1", balancer._port, timeout=PATIENCE)) as connection:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.headers, json.loads(response.read())


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answering(balancer, count=6):
    return {ask(balancer)[2].get("pid") for _ in range(count)}


@contextmanager
def requested(*arguments, **options):
    """Ask in a thread; what is given is a list that has the answer once the block has ended."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(ask(*arguments, **options)))
    thread.start()
    try:
        yield answers
    finally:
        thread.join(PATIENCE)


@pytest.mark.killed
def test_no_request_fails_when_a_driver_is_killed_and_restarted(drivers, balancer):
    statuses, stop = [], threading.Event()

    def load():
        while not stop.is_set():
            statuses.append(ask(balancer)[0])

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: len(statuses) > 100, "load")
        drivers[0].end()
        before = len(statuses)
        eventually(lambda: len(statuses) > before + 200, "load on the driver that is left")
        drivers[0].restart()
        eventually(lambda: drivers[0].pid in answering(balancer), "the driver that came back gets requests")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200}


def test_a_draining_driver_finishes_its_requests_and_gets_no_new_ones(used_first, balancer):
    first, second = used_first
    with requested(balancer, "/wait", "POST") as answers:
        first.says(b"waiting\n")
        second.restart()
        first.drain()
        eventually(lambda: answering(balancer) == {second.pid}, "the draining driver gets nothing new")
        assert answers == []
        first.release()
    assert [(status, answer["pid"]) for status, _, answer in answers] == [(200, first.pid)]


def test_refuses_with_a_problem_where_no_driver_is_ready_and_recovers(drivers, balancer):
    for driver in drivers:
        driver.drain()
    eventually(lambda: ask(balancer)[0] == 503, "no driver is ready")
    status, headers, problem = ask(balancer, headers={"X-Request-Id": "mine"})
    assert (status, headers["Content-Type"], headers["Retry-After"]) == (503, "application/problem+json", "1")
    assert problem == {
        "title": "Service Unavailable",
        "status": 503,
        "detail": "no driver is ready: try again later",
        "request_id": "mine",
    }
    assert headers.get_all("X-Request-Id") == ["mine"]
    drivers[0].restart()
    eventually(lambda: ask(balancer)[0] == 200, "it recovers by itself")


@pytest.mark.killed
@pytest.mark.parametrize(("key", "status"), [({}, 503), ({"Idempotency-Key": "a"}, 200)])
def test_requests_of_a_dead_driver_are_retried_only_with_an_idempotency_key(used_first, balancer, key, status):
    first, second = used_first
    with requested(balancer, "/wait", "POST", b"picture", key) as answers:
        first.says(b"waiting\n")
        take_over(balancer, first, second)
    ((code, headers, answer),) = answers
    assert code == status
    if key:
        assert (answer["pid"], answer["length"]) == (second.pid, 7)
    else:
        assert answer["detail"] == "the driver that had this request is gone: try again"
        assert headers["Retry-After"] == "1"


def test_only_posts_beyond_capacity_are_refused_with_a_problem(drivers):
    with Balancer([drivers[0].port], most=1) as server, requested(server, "/wait", "POST", b"picture") as answers:
        drivers[0].says(b"waiting\n")
        status, headers, problem = ask(server, "/v1/classify", "POST", bytes(100_000), {"X-Request-Id": "mine"})
        assert (status, headers["Content-Type"], headers["Retry-After"]) == (429, "application/problem+json", "5")
        assert (problem["type"], problem["request_id"]) == ("urn:serfer:problem:overloaded", "mine")
        assert ask(server, "/readyz")[0] == 200
        drivers[0].release()
        eventually(lambda: answers, "the first one is answered")
        assert ask(server, "/", "POST", b"picture")[0] == 200


@pytest.mark.parametrize("size", [10, 200_000])
def test_requests_on_kept_connections_are_retried_with_a_key_if_they_fit(used_first, balancer, size):
    first, second = used_first
    with closing(http.client.HTTPConnection("127.0.0.1", balancer._port, timeout=PATIENCE)) as kept:
        kept.request("GET", "/")
        kept.getresponse().read()
        kept.request("POST", "/wait", bytes(size), {"Idempotency-Key": "a"})
        first.says(b"waiting\n")
        take_over(balancer, first, second)
        response = kept.getresponse()
        assert (response.status, json.loads(response.read())["length"]) == (200, size)


def test_driver_gets_client_request_id_and_arrival_time(balancer):
    forged = {"X-Forwarded-For": "8.8.8.8", "Forwarded": "for=8.8.8.8", "X-Request-Id": "two words"}
    _, _, answer = ask(balancer, headers=forged)
    headers = {name.lower(): value for name, value in answer["headers"].items()}
    assert (headers["x-forwarded-for"], headers["x-forwarded-proto"]) == ("127.0.0.1", "http")
    assert "forwarded" not in headers
    assert len(headers["x-request-id"]) == 36
    assert ask(balancer, headers={"X-Request-Id": "a.B-9_"})[2]["headers"]["x-request-id"] == "a.B-9_"
    before = time.time()
    headers = {
        name.lower(): value for name, value in ask(balancer, headers={"X-Request-Start": "t=1"})[2]["headers"].items()
    }
    assert int(before * 1000) <= int(headers["x-request-start"].removeprefix("t=")) <= time.time() * 1000
    status, _, answer = ask(balancer, "/", "POST", bytes(5_000_000), {"X-Long": "x" * 40_000})
    assert (status, answer["length"]) == (200, 5_000_000)


def test_head_that_does_not_come_is_refused(drivers):
    with (
        Balancer([drivers[0].port], header_s=0.2) as server,
        socket.create_connection(("127.0.0.1", server._port), timeout=PATIENCE) as slow,
    ):
        slow.sendall(b"GET / HT")
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")


def test_draining_finishes_running_requests_and_accepts_no_new_ones(drivers):
    with Balancer([drivers[0].port]) as server, requested(server, "/wait") as answers:
        drivers[0].says(b"waiting\n")
        end = threading.Thread(target=server.drain, args=(PATIENCE,))
        end.start()
        eventually(lambda: not listens(server._port), "it takes no more connections")
        drivers[0].release()
        end.join(PATIENCE)
    assert [status for status, *_ in answers] == [200]


@pytest.mark.killed
def test_server_that_was_killed_is_started_again_where_it_was(drivers):
    with Balancer([drivers[0].port]) as server:
        url = server.url
        os.kill(server.pid, signal.SIGKILL)
        server.restart()
        assert server.url == url
        assert ask(server)[0] == 200


def test_leaves_nothing_behind(tmp_path, monkeypatch):
    use_temporary_folder(monkeypatch, tmp_path)
    with Balancer([9]) as server:
        assert list(tmp_path.iterdir()) == []
        pid, process = server.pid, os.pidfd_open(server.pid)
        assert os.getsid(pid) == pid != os.getsid(0)
    wait_for_end(process)
    check_gone(pid)
    server.stop()


@pytest.mark.killed
def test_dies_with_a_parent_that_is_killed():
    said_before_kill(PARENT)


def test_address_that_cannot_be_had_is_named():
    with Balancer([9]) as first, pytest.raises(UnavailableError, match=f"--port {first._port} is taken"):
        Balancer([9], port=first._port)
    with pytest.raises(UnavailableError, match=r"--host 192.0.2.1 --port \d+: cannot listen there"):
        Balancer([9], host="192.0.2.1")
    with pytest.raises(UnavailableError, match="--host 'not a host' is not an address"):
        Balancer([9], host="not a host")
