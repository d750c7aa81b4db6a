"""A pool of processes on this machine, each of them `serfer instance`; they outlive the controller that started them.

Their records lie in a directory, so that the next leader finds them:

    NAME.json    which process it is, and since when it is to end
    NAME.out     what it prints: the line of `--json` says where it serves
    NAME.err     what it logs
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from serfer.core.errors import UnavailableError
from serfer.fleet.provisioners.provisioner import Member
from serfer.system import processors

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
        process = _look(self.pid)
        return process is not None and process[0] == self and process[1] not in _GONE

    def send(self, number: signal.Signals) -> None:
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


END_S = 30.0
"""Seconds that a process has to end before it is killed."""
_MAX_BYTES = 64 * 1024
_MOST_LOG_BYTES = 4 << 20
_SHOWN = 300
_FEWEST = 8  # processes that a pool may have on any machine
_LATE = "import os, sys, time; time.sleep(float(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
"""Becomes a command after a while, as a machine that boots: same process id, same start time."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Record:
    """A process of the pool; `ends` is when it was asked to end, in seconds of the machine's boot clock."""

    process: Identity
    ends: float | None = None


class LocalProvisioner:
    """Runs `command` as often as instances are wanted, `boot_delay_s` seconds after each was requested.

    The command's first word is an absolute path. It prints a line of JSON with its "url" once it serves, at a port that
    it chooses itself, and ends by itself when it gets no more requests: nothing else would end it if every controller
    died for good. `registry` is a directory that no other pool uses; UnavailableError where it can't be written. It is
    shared by the provisioners of a pool's types, whose members are those with their `label`; all of them together start
    `most` processes, by default two for each processor: more would only be slower.
    """

    def __init__(
        self,
        command: Sequence[str],
        registry: Path,
        *,
        label: str = "local",
        boot_delay_s: float = 0.0,
        end_s: float = END_S,
        most: int | None = None,
    ) -> None:
        self._command = tuple(command)
        if boot_delay_s:
            self._command = (sys.executable, "-I", "-S", "-c", _LATE, str(boot_delay_s), *self._command)
        self._registry = registry
        self._label = label
        self._end_s = end_s
        self._most = max(_FEWEST, 2 * processors()) if most is None else most
        self._logged = ""
        self._strange: set[str] = set()

    async def members(self) -> list[Member]:
        """Return the processes that run; those that take too long to end are killed on this occasion."""
        return [member for member in self.everyone() if self._is_ours(member.name)]

    def everyone(self) -> list[Member]:
        members = []
        for path in sorted(self._registry.glob("*.json")):
            record = self._read(path)
            if record is None:
                continue
            record.process.reap()
            if not record.process.lives:
                self._forget(path, record)
                continue
            _bound(path.with_suffix(".err"))
            if record.ends is not None and _now() > record.ends + self._end_s:
                record.process.send(signal.SIGKILL)
            members.append(_member(path, record))
        return members

    async def start(self, count: int) -> None:
        """Start `count` more processes, to `most` at most; beyond that a line is logged."""
        room = max(0, self._most - len(self.everyone()))
        self._warn_beyond(count, room)
        try:
            self._registry.mkdir(mode=0o700, parents=True, exist_ok=True)
            for _ in range(min(count, room)):
                path = self._registry / f"{self._label}-{secrets.token_hex(6)}.json"
                process = launch(self._command, path.with_suffix(".out"), path.with_suffix(".err"))
                # A driver that dies before the next line leaves a process without a record; without requests it ends.
                _write(path, _Record(process))
        except OSError as error:
            reason = error.strerror or error
            raise UnavailableError(f"--instances local: no instance could be started: {reason}") from error

    async def stop(self, name: str) -> bool:
        path = self._registry / f"{name}.json"
        record = self._read(path) if path.parent == self._registry and self._is_ours(name) else None
        if record is None or record.ends is not None:
            return False
        _write(path, replace(record, ends=_now()))
        record.process.send(signal.SIGTERM)
        return True

    async def close(self) -> None:
        """Do nothing: what is known of the processes lies in the registry."""

    def _is_ours(self, name: str) -> bool:
        return name.rpartition("-")[0] == self._label

    def _warn_beyond(self, count: int, room: int) -> None:
        line = f"{count} more instances are wanted and {room} may be: this machine runs {self._most} at most"
        if count > room and line != self._logged:
            self._logged = line
            _log.warning("--instances local: %s", line)

    def _read(self, path: Path) -> _Record | None:
        try:
            with path.open("rb") as file:
                record = json.loads(file.read(_MAX_BYTES))
            return _parsed(record)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            if path.name not in self._strange:
                self._strange.add(path.name)
                _log.warning("%s is not a record of an instance: passed over", path)
            return None

    def _forget(self, path: Path, record: _Record) -> None:
        if record.ends is None:
            _log.warning("instance %s has ended by itself: %s", path.stem, _last_words(path.with_suffix(".err")))
        for suffix in (".out", ".err", ".json"):
            path.with_suffix(suffix).unlink(missing_ok=True)


def _bound(log: Path) -> None:
    """Empty a log that has grown too long; the process appends to it, and so goes on at its start."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > _MOST_LOG_BYTES:
            os.truncate(log, 0)


def _member(path: Path, record: _Record) -> Member:
    url = _printed_url(path.with_suffix(".out"))
    if record.ends is not None:
        return Member(path.stem, url, "draining")
    return Member(path.stem, url, "serving" if url else "booting")


def _write(path: Path, record: _Record) -> None:
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(asdict(record)), encoding="utf-8")
    scratch.replace(path)


def _parsed(record: Any) -> _Record:  # noqa: ANN401 - any JSON value
    process, ends = record["process"], record["ends"]
    identity = Identity(int(process["pid"]), int(process["started"]), str(process["boot"]))
    if identity.pid <= 1:
        raise ValueError("no process of ours")
    return _Record(identity, None if ends is None else float(ends))


def _printed_url(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            lines = file.read(_MAX_BYTES).split(b"\n")[:-1]  # the last one may be half written
    except OSError:
        return None
    for line in lines:
        try:
            url = json.loads(line)["url"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if isinstance(url, str) and url.startswith(("http://", "https://")):
            return url
    return None


def _last_words(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MAX_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return "it left no log"
    return next((line.strip()[:_SHOWN] for line in reversed(lines) if line.strip()), "it logged nothing")


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
