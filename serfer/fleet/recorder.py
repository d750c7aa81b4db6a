"""Writes what a pool's policy sees and decides to a file; serfer/control/recording.py has the format and the replay."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Final

from serfer.control.policy import InstanceGroup, Observation, Policy, ProvisioningPlan
from serfer.control.recording import MAX_RECORDING_BYTES, Decision, RunningFleet, event_fields, header_fields
from serfer.control.scenario import Scenario
from serfer.control.snapshots import MAX_SNAPSHOT_BYTES, Snapshot, write_json
from serfer.core.errors import InputError
from serfer.fleet.background import Background
from serfer.fleet.log_events import log_event

_MAX_WAITING: Final = 1000  # lines: a quarter of an hour
_MAX_FILES: Final = 1000
_MODE: Final = 0o600


class Recorder:
    """Records a policy from `begin` on, until the file has `most_bytes` or a line cannot be written: then it stops.

    A file that is there is kept: the name gets a number. Raises InputError where none can be made.
    """

    def __init__(self, path: Path, most_bytes: int = MAX_RECORDING_BYTES) -> None:
        self.path, self._file = _new_file(path)
        self._most = most_bytes
        self._bytes = 0
        self._begun = self._stopped = False
        self._writer = Background("policy recording", _MAX_WAITING)

    def begin(self, policy: Policy, scenario: Scenario, *, fresh: bool) -> None:
        """Write what the policy begins with, once."""
        self._begun = True
        header = header_fields(policy, scenario, fresh=fresh)
        if not fresh and header["state"] is None:
            self._log(f"{policy.name} cannot tell what it had learnt before: the recording cannot be replayed with it")
        self._put(partial(self._write, lambda: header, MAX_SNAPSHOT_BYTES))

    def resumed(self, fleet: Sequence[InstanceGroup]) -> None:
        """Record instances that were on before."""
        if self._begun:
            self._event(RunningFleet(tuple(fleet)))

    def decided(self, seen: Observation, plan: ProvisioningPlan | None, error: BaseException | None = None) -> None:
        """Record a decision, or that the policy failed."""
        if self._begun:
            self._event(Decision(seen, plan, type(error).__name__ if error else None))

    def close(self, patience_s: float) -> None:
        """Write what is left."""
        if self._writer.close(patience_s):
            self._file.close()

    def _event(self, event: RunningFleet | Decision) -> None:
        self._put(partial(self._write, partial(event_fields, event), self._most))

    def _put(self, work: Callable[[], None]) -> None:
        if not self._stopped and not self._writer.put(work):
            self._stop("the disk is too slow for it")

    def _write(self, fields: Callable[[], Snapshot], most_bytes: int) -> None:
        if self._stopped:
            return
        try:
            line = write_json(fields()) + b"\n"
            before = self._bytes
            if before + len(line) > most_bytes:
                self._stop(f"it has reached {self._bytes:,} bytes")
                return
            self._bytes += self._file.write(line)
            if self._bytes < before + len(line):  # cut off: readers leave it out
                self._stop("the disk is full")
        except (OSError, ValueError) as error:  # ValueError: a number that is not finite
            self._stop(str(error))
        except Exception:
            self._stop("a bug of ours; the log says more")
            raise

    def _stop(self, why: str) -> None:
        if not self._stopped:
            self._stopped = True
            self._log(f"the recording stops: {why}")

    def _log(self, message: str) -> None:
        log_event(logging.WARNING, "record", file=str(self.path), message=message)


def _new_file(path: Path) -> tuple[Path, FileIO]:
    """Open a file that was not there, which only its owner may read."""
    for number in range(_MAX_FILES):
        name = path.with_name(f"{path.stem}.{number}{path.suffix}") if number else path
        try:
            return name, FileIO(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE), "w")
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise InputError(f"--record {path}: cannot be written: {error.strerror}") from error
        except ValueError as error:  # a NUL in the name
            raise InputError(f"--record {str(path)!r}: {error}") from error
    raise InputError(f"--record {path}: there are {_MAX_FILES:,} recordings of that name: remove some")
