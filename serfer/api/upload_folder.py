"""A driver's folder for what was uploaded: of a driver that was killed, the next one that starts deletes it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from serfer.files import locked

_LOCK: Final = "lock"
_DRIVER: Final = "driver-"


class UploadFolder:
    """A folder for uploads, in one that drivers share; a driver that was killed left its own, which goes."""

    def __init__(self, shared: Path) -> None:
        shared.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._shared = shared
        self._left: set[str] = set()
        with locked(shared / _LOCK):
            for folder in shared.iterdir():
                if _is_left(folder):
                    self._left.add(folder.name)
                    shutil.rmtree(folder, ignore_errors=True)
            self._folder = Path(tempfile.mkdtemp(prefix=_DRIVER, dir=shared))
            self._lock = _locked(self._folder)

    @property
    def name(self) -> str:
        """The driver's name, which no other one has."""
        return self._folder.name

    def is_gone(self, driver: str) -> bool:
        """Whether a driver of this machine was killed, by its name; of others that is not known."""
        is_name = driver.startswith(_DRIVER) and driver == Path(driver).name
        return driver in self._left or (is_name and _is_left(self._shared / driver))

    def new(self) -> Path:
        """Return a folder for one upload."""
        return Path(tempfile.mkdtemp(prefix="upload-", dir=self._folder))

    def close(self) -> None:
        """Delete it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)


def _is_left(folder: Path) -> bool:
    """Whether a folder is one of a driver that does not run any more."""
    try:
        os.close(_locked(folder))
    except OSError:
        return False
    return True


def _locked(folder: Path) -> int:
    """Lock a driver's folder, and return the lock's descriptor; raises OSError where another one has it."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
