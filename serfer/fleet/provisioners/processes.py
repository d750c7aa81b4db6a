"""Processes that outlive the one that started them, distinguished from others that get the same number."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_GONE = frozenset({"Z", "X", "x"})
_STATE, _STARTED = 0, 19  # fields of /proc/PID/stat behind the command's name (proc(5): the 3rd and the 22nd)


@dataclass(frozen=True)
class Identity:
    """A process for ever: its number, when it started (clock ticks since the machine's boot), and which boot that was.

    A number is given to another process sooner or later; number and start time of one boot are not.
    """

    pid: int
    started: int
    boot: str

    @property
    def lives(self) -> bool:
        """Whether this very process runs."""
        process = _look(self.pid)
        return process is not None and process[0] == self and process[1] not in _GONE

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this very process, if it still runs."""
        with suppress(ProcessLookupError, PermissionError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.lives:  # looked at while the descriptor holds it: what gets the signal is what was looked at
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    def reap(self) -> None:
        """Take note of its end where it was our child, so that the kernel may forget it."""
        process = _look(self.pid)
        if process is not None and process[0] == self:  # and no other child of ours
            with suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)


def identify(pid: int) -> Identity | None:
    """Return which process has a number now, its remains included; None where none has."""
    process = _look(pid)
    return process[0] if process else None


def _look(pid: int) -> tuple[Identity, str] | None:
    """Return which process has a number, and the letter of its state."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return Identity(pid, int(fields[_STARTED]), boot), fields[_STATE]


def launch(command: Sequence[str], output: Path, errors: Path) -> Identity:
    """Start a command in a session of its own, its output in files; it outlives us. Raises OSError."""
    wanted = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(output), wanted, 0o600),
        (os.POSIX_SPAWN_OPEN, 2, str(errors), wanted, 0o600),
    ]
    pid = os.posix_spawn(command[0], list(command), dict(os.environ), file_actions=actions, setsid=True)
    return identify(pid) or Identity(pid, 0, "")  # a child that we have not reaped is always there
