"""A worker's operating system process: its start, its output, its memory, its end.

It is watched through a pidfd on the running loop, so any loop in any thread will do and no thread is spent on waiting.
The kernel kills the process when the *thread* that started it ends (PR_SET_PDEATHSIG): the loop's thread must live as
long as the service does.
"""

from __future__ import annotations

import asyncio
import math
import os
import resource
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_CHUNK = 65536  # bytes: what a pipe holds
_PAGE = resource.getpagesize()
_CPU_CLOCK = 2  # CPUCLOCK_SCHED of a process's clock id, as clock_getcpuclockid(3) makes it


class WorkerProcess:
    """A process in a session of its own; `on_exit` gets its return code once, after its last output.

    Of this process's descriptors it has those that it `keeps`.
    """

    def __init__(
        self,
        command: list[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        log: LogTail,
        on_exit: Callable[[int], None],
        keeps: Sequence[int] = (),
    ) -> None:
        self._popen = subprocess.Popen(  # noqa: S603 - our own bootstrap
            command,
            bufsize=0,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=keeps,
            start_new_session=True,  # Ctrl-C at the terminal is not for workers
        )
        assert self._popen.stdout is not None  # noqa: S101 - it is a pipe
        self._output = self._popen.stdout
        os.set_blocking(self._output.fileno(), False)
        self._log = log
        self._on_exit = on_exit
        self._statm = -1
        try:
            self._statm = os.open(f"/proc/{self._popen.pid}/statm", os.O_RDONLY)
            self._pidfd = os.pidfd_open(self._popen.pid)
        except OSError:  # out of descriptors: leave no process that is not watched
            if self._statm >= 0:
                os.close(self._statm)
            self.kill()
            self._output.close()
            self._popen.wait()
            raise
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._output, self.drain)
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def drain(self) -> None:
        """Take what has been written so far into the log, without waiting."""
        if self._output.closed:
            return
        chunk = self._output.read(_CHUNK)
        if chunk:
            self._log.feed(chunk)
        elif chunk is not None:  # the other end is closed
            self._close_output()

    def memory(self) -> int:
        try:
            return int(os.pread(self._statm, 64, 0).split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0

    def processor_s(self) -> float:
        """Return the processor time of all its threads in seconds, 0 once it has ended."""
        try:
            return time.clock_gettime((~self._popen.pid << 3) | _CPU_CLOCK)
        except OSError:
            return 0.0

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def stand_still(self) -> None:
        """Stop the process and what it started, until `go_on`: its connections stay, and are not attended to."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._popen.returncode is not None:
            return  # reaped: the id may be a stranger's by now
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, number)

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        os.close(self._statm)
        self._statm = -1
        self.kill()  # what the process leaves behind; its own id is still taken, so no stranger is hit
        status = self._popen.wait()
        self.drain()
        self._close_output()
        self._on_exit(status)

    def _close_output(self) -> None:
        if not self._output.closed:
            self._loop.remove_reader(self._output)
            self._output.close()


def exit_reason(status: int) -> str:
    """Return a return code in the words of Lambda's Runtime.ExitError."""
    if status == 0:
        return "Runtime exited without providing a reason"
    if status > 0:
        return f"Runtime exited with error: exit status {status}"
    return f"Runtime exited with error: signal: {(signal.strsignal(-status) or str(-status)).lower()}"


LOG_TAIL = 4096  # bytes of X-Amz-Log-Result, before base64
_LINE_LIMIT = 65536  # bytes after which a line without an end is passed on as it is


class LogTail:
    """The last 4 KB that a worker wrote; whole lines are passed to `on_line` as they come."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self.last = b""
        self._on_line = on_line
        self._open = b""  # the line that has no end yet

    def feed(self, chunk: bytes) -> None:
        self.last = (self.last + chunk)[-LOG_TAIL:]
        if self._on_line is None:
            return
        *lines, self._open = (self._open + chunk).split(b"\n")
        if len(self._open) > _LINE_LIMIT:
            lines, self._open = [*lines, self._open], b""
        for line in lines:
            self._on_line(line.decode(errors="replace"))

    def invocation(self, request_id: str, report: str) -> bytes:
        """Return the tail of one invocation's log, its START, END and REPORT lines added as Lambda does."""
        head = f"START RequestId: {request_id} Version: $LATEST\n".encode()
        end = b"" if self.last.endswith(b"\n") or not self.last else b"\n"
        return (head + self.last + end + f"END RequestId: {request_id}\n{report}\n".encode())[-LOG_TAIL:]


def report_line(
    request_id: str, duration_s: float, init_s: float | None, memory_mb: int, peak: int, *, restored: bool = False
) -> str:
    """Return Lambda's REPORT line; `peak` is in bytes, `init_s` None for an environment that was warm.

    Of one that was `restored` from a snapshot, the start is not billed by its time.
    """
    init_ms = (init_s or 0.0) * 1000
    billed_ms = math.ceil(duration_s * 1000 + (0.0 if restored else init_ms))
    parts = [
        f"REPORT RequestId: {request_id}",
        f"Duration: {duration_s * 1000:.2f} ms",
        f"Billed Duration: {billed_ms} ms",
        f"Memory Size: {memory_mb} MB",
        f"Max Memory Used: {math.ceil(peak / 2**20)} MB",
    ]
    if init_s is not None:
        parts.append(f"{'Restore' if restored else 'Init'} Duration: {init_ms:.2f} ms")
    return "\t".join(parts)
