"""Processes that serve, started again when they end: when, and what is said of it; and the parent of `serfer serve`.

    parent ── starts it, passes signals on, starts it again ──▶ process that serves and computes
      └─ has the listening socket open meanwhile: clients wait, they are not refused

The parent is this module alone, and imports little: it is there for as long as the service.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from serfer.local.die_with_parent import dying_with_me

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

INHERITED = "SERFER_SUPERVISED"
"""The variable with the descriptors that a process that serves has of its parent: a state's, and maybe a listener's."""
_FIRST_S, _LONGEST_S, _MOST_DOUBLINGS = 0.2, 10.0, 10
_STEADY_S = 30.0  # after which an end counts as the first one again
_PASSED_ON = {signal.SIGTERM, signal.SIGINT}
_NUMBER, _NUMBERS = 8, 4  # bytes, and how many of them a state has
_RUN = "import sys; sys.path.insert(0, sys.argv[1]); from serfer.local import supervisor; supervisor.run(*sys.argv[2:])"


class ServingState:
    """In shared memory: whether a process serves, its queries in flight, signals its parent passed on, its restarts."""

    def __init__(self, descriptor: int, restarts: int) -> None:
        self.descriptor, self.passed_on = descriptor, 0
        os.pwrite(descriptor, bytes((_NUMBERS - 1) * _NUMBER) + restarts.to_bytes(_NUMBER, sys.byteorder), 0)

    @classmethod
    @contextmanager
    def made(cls, restarts: int = 0) -> Iterator[ServingState]:
        descriptor = os.memfd_create("serfer-state")
        try:
            yield cls(descriptor, restarts)
        finally:
            os.close(descriptor)

    @property
    def serves(self) -> bool:
        return any(os.pread(self.descriptor, _NUMBER, 0))

    def pass_on(self, number: int, pid: int) -> None:
        """Send the process a signal, which is counted before: its own, where all processes get it, is the same one."""
        self.passed_on += 1
        os.pwrite(self.descriptor, self.passed_on.to_bytes(_NUMBER, sys.byteorder), 2 * _NUMBER)
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def reason(self, status: int) -> str:
        """Say how the process has ended, with its exit code, or less than 0 for a signal's, and what it lost."""
        how = f"exit code {status}" if status >= 0 else f"signal: {(signal.strsignal(-status) or str(-status)).lower()}"
        lost = int.from_bytes(os.pread(self.descriptor, _NUMBER, _NUMBER), sys.byteorder)
        return f"has ended ({how})" + (f" with {lost} queries in flight" if lost else "")


class Restarts:
    """The pauses before a process is started again, and their `count`: they grow with ends that follow one another."""

    def __init__(self) -> None:
        self._ends = self.count = 0

    def pause_s(self, lived_s: float) -> float:
        self.count += 1
        self._ends = 1 if lived_s > _STEADY_S else self._ends + 1
        return float(min(_LONGEST_S, _FIRST_S * 2 ** min(self._ends - 1, _MOST_DOUBLINGS)))


def inherited() -> tuple[memoryview | None, int | None]:
    """Return the numbers of ServingState and the listener; the signals that were passed on before come now."""
    import mmap  # noqa: PLC0415 - the parent does not need it

    descriptors = [int(word) for word in os.environ.pop(INHERITED, "").split()]
    if not descriptors:
        return None, None
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - its only form
    shared = memoryview(mmap.mmap(descriptors[0], _NUMBERS * _NUMBER)).cast("Q")
    return shared, descriptors[1] if len(descriptors) > 1 else None


def become_parent(command: Sequence[str], variables: Mapping[str, str], listener: int, *, as_json: bool) -> NoReturn:
    """Become the parent of `command`, an absolute path and arguments, in place of this program; its id stays."""
    with ServingState.made() as state:
        for descriptor in (state.descriptor, listener):
            os.set_inheritable(descriptor, True)  # noqa: FBT003 - its only form
        signal.pthread_sigmask(signal.SIG_BLOCK, _signals())  # until the parent waits for them
        home = __file__.removesuffix("/serfer/local/supervisor.py")
        parent = [sys.executable, "-I", "-S", "-c", _RUN, home, str(int(as_json)), str(state.descriptor), str(listener)]
        known = {**variables, INHERITED: f"{state.descriptor} {listener}"}
        os.execve(sys.executable, [*parent, *command], known)  # noqa: S606 - our own command


def run(as_json: str, state: str, listener: str, *command: str) -> NoReturn:
    """Have `command` serve until it ends well, or before any has served, or after a signal; exit as it did."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, ends are not told
    restarts, line, served = Restarts(), dying_with_me(*command), False
    while True:
        began, serving = time.monotonic(), ServingState(int(state), restarts.count)
        status = _run_once(line, int(listener), serving)
        served = served or serving.serves
        if status >= 0 and (serving.passed_on or not status or not served):
            sys.exit(status)
        said = f"the process that serves {serving.reason(status)}"
        if serving.passed_on or not served:
            _say(said, as_json, "error")
            sys.exit(128 - status)
        wait_s = restarts.pause_s(time.monotonic() - began)
        _say(f"{said}: it is started again in {wait_s:g} s", as_json)
        if signal.sigtimedwait(_signals() & _PASSED_ON, wait_s):
            sys.exit()


def _run_once(command: list[str], listener: int, state: ServingState) -> int:
    """Run a command, and return its exit code, or less than 0 for a signal's."""
    # Of a session of its own: Ctrl-C at the terminal is for the parent, which passes it on, and at any time.
    pid = os.posix_spawn(command[0], command, os.environ, setsid=True, setsigmask=_PASSED_ON)
    while True:
        number = signal.sigwaitinfo(_signals()).si_signo
        if number != signal.SIGCHLD:
            state.pass_on(number, pid)
            if state.passed_on == 1:
                os.close(listener)  # nobody should wait for what ends
        elif (status := _reap(pid)) is not None:
            return status


def _say(message: str, as_json: str, level: str = "warning") -> None:
    line, now = f"serfer: {message}", time.time()
    if int(as_json):
        when = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03}Z"
        line = json.dumps({"time": when, "level": level, "event": "serve", "message": message})
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())


def _signals() -> set[signal.Signals]:
    """Return what the parent waits for: Ctrl-C not where it is ignored, as in the background of a shell."""
    ignored = {number for number in _PASSED_ON if signal.getsignal(number) is signal.SIG_IGN}
    return {signal.SIGCHLD, *_PASSED_ON} - ignored


def _reap(pid: int) -> int | None:
    """Reap what has ended, orphans too where this is a container's first process; return the exit code of `pid`."""
    found = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found = os.waitstatus_to_exitcode(ended[1]) if ended[0] == pid else found
    return found
