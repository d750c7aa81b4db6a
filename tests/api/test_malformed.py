"""Whatever is sent, the server says what is wrong with it, stays small, and answers the next request."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from select import select
from zlib import crc32

import pytest

from tests.api.malformed import FINE, all_cases, slow_cases

PATIENCE = 120.0  # s
TIMEOUT_S = 1.5  # for a head and for a body
MOST_GROWTH = 320 * 1024 * 1024  # bytes: a body of 20 MiB, several times over, and 4 megapixels, several times over
CASES = all_cases()
SLOW = slow_cases()
SCRIPT = """
import asyncio, sys
from pathlib import Path
from serfer.api.entrypoints.opening import Address, Opening
from serfer.api.entrypoints.serving import serve_models
from serfer.settings import Settings
from serfer.wiring.options import Choices
opening = Opening(Choices("memory://", "inprocess", "push"))
asyncio.run(serve_models({"small": Path(sys.argv[1])}, opening, Address("127.0.0.1", 0), Settings(),
                         on_started=lambda url: print(url, flush=True), progress=lambda _: None))
"""


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen
    port: int

    def most_memory(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024

    def status(self, pieces, *, trickle=b""):
        """Send pieces, and then `trickle` byte by byte; return the answer's status, which gives a reason if not 200."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as client:
            with suppress(ConnectionError):  # it may have heard enough
                for piece in pieces:
                    client.sendall(piece)
                while trickle and not select([client], [], [], 0.1)[0]:
                    client.sendall(trickle)
            reply = HTTPResponse(client)
            reply.begin()
            body = reply.read()
        assert reply.version == 11
        if reply.status == 200:
            return 200
        reason = json.loads(body)
        if "error" in reason:  # the inference protocol's own
            assert reason["error"]
        else:
            assert reply.headers["Content-Type"] == "application/problem+json"
            assert (reason["status"], bool(reason["detail"]), bool(reason["title"])) == (reply.status, True, True)
        assert b"Traceback" not in body
        assert b"/site-packages/" not in body
        return reply.status


@pytest.fixture(scope="module")
def server(small_plan, tmp_path_factory):
    """A driver in a process of its own, whose log and memory are looked at in the end."""
    log = tmp_path_factory.mktemp("served") / "log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SERFER_")}
    environment |= {
        "SERFER_API_BODY_TIMEOUT_S": str(TIMEOUT_S),
        "SERFER_API_HEADER_TIMEOUT_S": str(TIMEOUT_S),
        "SERFER_API_MAX_PIXELS": "4000000",
        "SERFER_API_DRAIN_S": "0",
    }
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(small_plan)], stdout=subprocess.PIPE, stderr=output, env=environment
        ) as process,
    ):
        try:
            url = process.stdout.readline().decode()
            assert url, log.read_text()
            opened = Server(process, int(url.rsplit(":", 1)[1]))
            assert opened.status(FINE) == 200
            before = opened.most_memory()
            yield opened
            growth = opened.most_memory() - before
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
            assert "Traceback" not in log.read_text()
            assert growth < MOST_GROWTH, f"{growth:,} bytes"
        finally:
            process.kill()


@pytest.mark.hostile
@pytest.mark.parametrize("name", CASES)
def test_a_malformed_request_is_refused_with_a_reason_and_the_next_one_answered(server, name):
    case = CASES[name]
    code = server.status(case.pieces)
    assert 400 <= code < 500 or (case.fine and code == 200), code
    assert code != 429
    if crc32(name.encode()) % 8 == 0:  # after any of them, a query is answered; the others' next one is the next case
        assert server.status(FINE) == 200


@pytest.mark.hostile
@pytest.mark.parametrize("trickle", [b"", b"x"], ids=["silent", "trickling"])
def test_slow_requests_are_given_up_all_at_once_while_others_are_answered(server, trickle):
    meanwhile = []
    with ThreadPoolExecutor(3 * len(SLOW)) as pool:
        waiting = [pool.submit(server.status, [sent], trickle=trickle) for sent in (*SLOW.values(),) * 3]
        while not all(slow.done() for slow in waiting):
            status = server.status(FINE)
            meanwhile.append((status, any(slow.done() for slow in waiting)))
    answers = [slow.result() for slow in waiting]
    codes = dict(zip(SLOW, answers, strict=False))
    assert all(400 <= number < 500 for number in answers), codes
    assert {status for status, _ in meanwhile} == {200}
    assert (200, False) in meanwhile  # before any of them was given up
    if not trickle:
        assert set(codes.values()) == {408}, codes
    assert server.status(FINE) == 200


@pytest.mark.hostile
def test_a_client_that_leaves_in_the_middle_costs_nothing(server):
    for pieces in (FINE[:1], (FINE[0], FINE[1][:50]), FINE):
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client:
            client.sendall(b"".join(pieces))
    assert server.status(FINE) == 200


@pytest.mark.hostile
def test_there_are_enough_of_them():
    assert sum(not case.fine for case in CASES.values()) >= 300
