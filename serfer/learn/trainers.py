"""Trainings in processes of their own: awaited and kept, for simulations, or in the background of a service."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from serfer.control.values.load_record import LoadRecord
from serfer.control.values.value_model import MAX_MODEL_BYTES
from serfer.core.errors import InputError, UnavailableError
from serfer.files import write_whole
from serfer.learn.training import BACKGROUND, RECIPE

_COMMAND: Final = (sys.executable, "-P", "-m", "serfer.learn")
VALUES: Final = "values"
"""The folder of the cache where models are kept."""
_MAX_ERRORS: Final = 65_536  # bytes
_MAX_MESSAGE: Final = 300  # characters


def can_learn() -> bool:
    """Return whether the extra `learn` is installed."""
    return importlib.util.find_spec("lightgbm") is not None


@dataclass(frozen=True)
class Learnt:
    """A training that is over; no `data` where it failed."""

    data: bytes | None

    def model(self) -> bytes | None:
        """Return the model's file."""
        return self.data


@dataclass(frozen=True)
class KeptTrainer:
    """Trains at once, and the caller waits; models are kept in a directory, by what they were learnt from."""

    directory: Path

    def begin(self, record: LoadRecord) -> Learnt:
        """Learn, or find what was learnt before; raises UnavailableError where the training fails."""
        data = record.encode()
        kind = f"{RECIPE} {version('lightgbm')} ".encode()
        path = self.directory / f"{hashlib.sha256(kind + data).hexdigest()}.json"
        if path.is_file():
            return Learnt(path.read_bytes()[: MAX_MODEL_BYTES + 1])
        done = subprocess.run(_COMMAND, input=data, capture_output=True, check=False)  # noqa: S603 - our own
        if done.returncode:
            raise UnavailableError(f"values could not be learnt: {_last_line(done.stderr)}")
        with suppress(OSError, InputError):  # then it will be learnt again
            self.directory.mkdir(parents=True, exist_ok=True)
            write_whole(path, done.stdout)
        return Learnt(done.stdout)


class BackgroundTrainer:
    """Trains at low priority while a service runs; `report` is told in a line what failed."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._running: BackgroundTraining | None = None

    def begin(self, record: LoadRecord) -> BackgroundTraining:
        """Start a process; the one before, if it still runs, is ended."""
        self.close()
        self._running = BackgroundTraining(record, self._report)
        return self._running

    def close(self) -> None:
        """End the process, if one runs."""
        if self._running is not None:
            self._running.close()


class BackgroundTraining:
    """A process that learns, its input and output in files without names."""

    def __init__(self, record: LoadRecord, report: Callable[[str], None]) -> None:
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None
        self._files = ExitStack()
        try:
            given, self._output, self._errors = (self._file() for _ in range(3))
            given.write(record.encode())
            given.seek(0)
            self._process = subprocess.Popen(  # noqa: S603 - our own
                (*_COMMAND, BACKGROUND), stdin=given, stdout=self._output, stderr=self._errors
            )
        except OSError as error:  # also a disk that is full: decisions go on with the earlier model
            self._files.close()
            report(f"values cannot be learnt: {error}")

    def _file(self) -> IO[bytes]:
        return self._files.enter_context(TemporaryFile())

    def model(self) -> bytes | None:
        """Return the model's file, once; None while the process runs and where it failed."""
        if self._process is None or self._process.poll() is None:
            return None
        failed = self._process.returncode
        self._process = None
        with self._files:
            for file in (self._output, self._errors):
                file.seek(0)
            if not failed:
                return self._output.read(MAX_MODEL_BYTES + 1)
            self._report(f"values could not be learnt: {_last_line(self._errors.read(_MAX_ERRORS))}")
        return None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._files.close()


def _last_line(errors: bytes) -> str:
    lines = errors.decode(errors="replace").strip().splitlines()
    return lines[-1][:_MAX_MESSAGE] if lines else "the process ended without a word"
