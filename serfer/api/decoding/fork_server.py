"""The driver's handle of the process that forks image decoders (serfer/api/decoding/decoder_process.py)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import serfer
from serfer.api.decoding.decoder_process import CONTROL, START, UNKNOWN
from serfer.core.errors import UnavailableError

_RUN = """
import sys
sys.path[:] = sys.argv[2:]
from serfer.api.decoding.decoder_process import run_fork_server
run_fork_server(int(sys.argv[1]))
"""
_VARIABLES = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a process with threads cannot be forked safely
_KEPT = ("LD_LIBRARY_PATH",)  # Lambda's Python needs it


class ForkServer:
    """Starts and ends decoders; started when first needed, or by `launch`; to be closed. May be called by any thread.

    What its processes write goes to `output`, by default nowhere. They have none of this process's variables.
    """

    def __init__(self, output: IO[bytes] | int = subprocess.DEVNULL) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def launch(self) -> None:
        """Begin now, without waiting: imports take the process a third of a second."""
        with self._lock:
            self._begin()

    def start(self, decoder_end: socket.socket) -> int:
        """Start a decoder at the other end of a socket pair and return its process id; raises UnavailableError."""
        with self._lock:
            control = self._begin()
            pid = _exchange(control, START, decoder_end.fileno())
            if pid is None:
                raise UnavailableError(f"image decoders cannot be started: their server ended with {self._stop()}")
            return pid

    def end(self, pid: int) -> int | None:
        """Kill a decoder and return its exit status, its own if it ended before; None where the server has ended."""
        with self._lock:
            if self._control is None:
                return None
            status = _exchange(self._control, CONTROL.pack(pid))
            if status is None:
                self._stop()
            return None if status == UNKNOWN else status

    def close(self) -> None:
        """End the server and every decoder; a second call does nothing."""
        with self._lock:
            self._closed = True
            self._stop()

    def _begin(self) -> socket.socket:
        if self._closed:
            raise UnavailableError("image decoders are closed")
        if self._control is None:
            self._control, theirs = socket.socketpair()
            places = [str(Path(serfer.__file__).parents[1]), *map(os.path.abspath, sys.path)]
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - our own module
                    [sys.executable, "-I", "-S", "-c", _RUN, str(theirs.fileno()), *places],
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    cwd="/",
                    env=_VARIABLES | {name: os.environ[name] for name in _KEPT if name in os.environ},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C at the terminal is for the driver
                )
        return self._control

    def _stop(self) -> str:
        if self._control is None or self._process is None:
            return "no process"
        self._control.close()
        status = self._process.wait()
        self._control = self._process = None
        return f"exit code {status}"


def _exchange(control: socket.socket, message: bytes, *descriptors: int) -> int | None:
    try:
        socket.send_fds(control, [message], descriptors)
        answer = control.recv(CONTROL.size)
    except OSError:
        return None
    return int(CONTROL.unpack(answer)[0]) if answer else None
