"""The parent of `serfer serve`, with a command that answers each connection with its process id."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from serfer.local.server import listen

PATIENCE = 30.0
PARENT = """
import os, sys
from serfer.local.supervisor import become_parent
become_parent([sys.executable, "-c", sys.argv[2]], os.environ, int(sys.argv[1]), as_json=True)
"""
SERVES = """
import os, signal, socket
from serfer.local.supervisor import inherited
told = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: told.append(number))
shown, listener = inherited()
shown[0], shown[1] = True, 3
with socket.socket(fileno=listener) as served:
    while len(told) < 2:
        served.settimeout(0.05)
        try:
            with served.accept()[0] as client:
                client.sendall(f"{os.getpid()} {os.getppid()} {shown[3]}".encode())
                if client.recv(10) == b"fail":
                    raise SystemExit(70)
        except TimeoutError:
            pass
"""


@dataclass
class Service:
    process: subprocess.Popen
    address: tuple[str, int]

    def ask(self, order=b"no"):
        """Return the process id of what answers, its parent's and its restarts: a client is not refused, it waits."""
        with socket.create_connection(self.address, timeout=PATIENCE) as client:
            answer = client.recv(100)
            client.sendall(order)
            return tuple(map(int, answer.split()))

    def end(self, *numbers):
        for number in numbers:
            self.process.send_signal(number)
        err = self.process.communicate(timeout=PATIENCE)[1]
        return self.process.returncode, [json.loads(line)["message"] for line in err.splitlines()]


@contextmanager
def running(code, parent=PARENT):
    with listen("127.0.0.1", 0) as listener:
        command = [sys.executable, "-c", parent, str(listener.fileno()), code]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()], stderr=subprocess.PIPE, text=True)
        address = listener.getsockname()
    try:
        yield Service(process, address)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.killed
def test_a_process_that_is_killed_is_started_again_at_its_socket_and_what_it_lost_is_said():
    with running(SERVES) as service:
        first, parent, restarts = service.ask()
        assert (parent, restarts) == (service.process.pid, 0)
        os.kill(first, signal.SIGKILL)
        second, _, restarts = service.ask()
        assert (second != first, restarts) == (True, 1)
        service.ask(b"fail")
        third, _, restarts = service.ask()
        assert (third not in {first, second}, restarts) == (True, 2)
        code, said = service.end(signal.SIGTERM, signal.SIGINT)  # both are passed on
    lost = "with 3 queries in flight: it is started again in"
    assert (code, said) == (
        0,
        [
            f"the process that serves has ended (signal: killed) {lost} 0.2 s",
            f"the process that serves has ended (exit code 70) {lost} 0.4 s",
        ],
    )


@pytest.mark.killed
def test_it_ends_with_a_parent_that_is_killed():
    with running(SERVES) as service, socket.create_connection(service.address, timeout=PATIENCE) as client:
        assert client.recv(100)
        service.process.kill()
        assert client.recv(100) == b""
        service.process.wait()
        with pytest.raises(ConnectionRefusedError):
            service.ask()


@pytest.mark.killed
@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("raise SystemExit(4)", 4, []),
        ("import os; os.kill(os.getpid(), 9)", 137, ["the process that serves has ended (signal: killed)"]),
    ],
)
def test_one_that_has_not_served_is_not_started_again(code, status, said):
    with running(code) as service:
        assert service.end() == (status, said)


@pytest.mark.killed
@pytest.mark.parametrize("dies", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(3)"])
def test_once_it_has_served_one_that_dies_before_it_serves_again_is_started_again_after_longer_pauses(tmp_path, dies):
    starts = tmp_path / "starts"
    begins = f"""
import os, signal, sys
from pathlib import Path
starts = Path({str(starts)!r})
starts.touch()
number = len(starts.read_bytes())
starts.write_bytes(bytes(number + 1))
if number in (1, 2):
    {dies}
"""
    with running(begins + SERVES) as service:
        service.ask(b"fail")
        service.ask()
        code, said = service.end(signal.SIGTERM, signal.SIGINT)
    assert (code, len(starts.read_bytes())) == (0, 4)
    assert [line.rpartition(" it is started again in ")[2] for line in said] == ["0.2 s", "0.4 s", "0.8 s"]


def test_it_sees_the_end_of_a_process_though_who_started_it_ignores_ends():
    with running(SERVES, f"import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN){PARENT}") as service:
        service.ask(b"fail")
        service.ask()
        assert service.end(signal.SIGTERM, signal.SIGINT)[0] == 0


def test_a_signal_while_it_waits_to_start_the_process_again_ends_it():
    with running(SERVES) as service:
        os.kill(service.ask()[0], signal.SIGKILL)
        service.process.stderr.readline()
        assert service.end(signal.SIGTERM) == (0, [])
