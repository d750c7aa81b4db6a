"""The life of a server that runs beside us for as long as this process lives, and the addresses of servers."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import IO, ClassVar, Self

from serfer.core.errors import UnavailableError
from serfer.local.die_with_parent import dying_with_me

_TRIES = 5
TAKEN = "in use"
"""What servers say of a port that was free a moment ago."""

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to reach what listens everywhere


class LocalServer(ABC):
    """A process that is started by the constructor and ended by `stop` or `with`.

    A subclass's `_start` launches `_process` at `_port` by `_spawn`, and `_answers` returns whether our server answers.
    """

    NAME: ClassVar[str]
    READY_S: ClassVar[float]
    POLL_S: ClassVar[float]
    _port: int
    _process: subprocess.Popen[bytes]
    _log: IO[bytes] | None = None  # of a server that was launched with a configuration

    @property
    def pid(self) -> int:
        return self._process.pid

    def restart(self) -> None:
        """Start it again where it was, after it has ended; raises UnavailableError where that fails."""
        self.stop()
        if output := self._start():
            raise UnavailableError(f"{self.NAME} did not start again: {output[-300:]}")

    def stop(self) -> None:
        """Kill the server, which has nothing to save, and wait until it is gone; a second call does nothing."""
        self._process.kill()
        self._process.wait()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def _answers(self) -> bool:
        """Return whether our server answers, and not another one that listens at its port."""

    def _start(self) -> str | None:
        raise NotImplementedError

    def _start_at(self, port: int) -> None:
        for tries_left in reversed(range(1 if port else _TRIES)):
            self._port = port or free_port()
            output = self._start()
            if output is None:
                return
            if TAKEN not in output:
                raise UnavailableError(f"{self.NAME} did not start: {output[-300:]}")
            if not tries_left:
                raise UnavailableError(f"port {self._port} is taken: choose another, or stop what listens there")

    def _spawn(
        self, command: Sequence[str], config: str = "", variables: Mapping[str, str] | None = None
    ) -> str | None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the server
        with tempfile.TemporaryFile() as file:  # it has no name: nothing shows a password in it
            file.write(config.encode())
            file.seek(0)
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                dying_with_me(*command, deaf=True),
                stdin=file,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=variables,
                start_new_session=True,
            )
        if self._comes_up():
            return None
        self._log.seek(0)
        output = self._log.read().decode(errors="replace").strip()
        self.stop()
        return output or "no output"

    def _comes_up(self) -> bool:
        deadline = time.monotonic() + self.READY_S
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self.POLL_S)
                return False
            if self._answers():
                return True
        return False


def free_port(also: int = 0) -> int:
    """Return a port of 127.0.0.1 that is free just now, such that the port `also` above it is free too."""
    while True:
        with socket.socket() as probe, socket.socket() as other:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                if also:
                    other.bind(("127.0.0.1", port + also))
                return port


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def listen(host: str, port: int, backlog: int = 2048) -> socket.socket:
    """Return a listening socket; raises UnavailableError that names --host or --port."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=backlog)
    except (socket.gaierror, UnicodeError) as error:
        raise UnavailableError(
            f"--host {host!r} is not an address of this machine: choose 127.0.0.1 or 0.0.0.0"
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UnavailableError(f"--port {port} is taken: choose another, or stop what listens there") from error
        reason = os.strerror(error.errno or 0)
        raise UnavailableError(f"--host {host} --port {port}: cannot listen there: {reason}") from error
    return listener


def reachable(host: str) -> str:
    """Return the IP address at which this machine reaches a server that listens at the IP address `host`."""
    return _LOOPBACK.get(host, host)


def local_url(host: str, port: int) -> str:
    """Return the URL, for clients on this machine, of a server that listens at an IP address."""
    host = reachable(host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
