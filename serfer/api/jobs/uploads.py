"""What is uploaded for jobs: how many may arrive, wait and run in a driver, and a folder for each upload.

Of a driver that was killed, the next one that starts deletes the folder.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from serfer.api.admission import Place, Places
from serfer.files import locked

_LOCK: Final = "lock"
_DRIVER: Final = "driver-"
_RETRY_S: Final = 30.0


class Uploads:
    """A driver's uploads, in a folder of its own in one that drivers share; used on one event loop.

    At most `most` arrive or belong to a job, `arriving` of them arrive; `full` says so.
    """

    def __init__(self, shared: Path, most: int, arriving: int, full: str) -> None:
        shared.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._shared = shared
        self._arriving = Places(arriving, full, between_s=lambda: _RETRY_S)
        self._here = Places(most, full, between_s=lambda: _RETRY_S)
        self._places: dict[Path, Place] = {}
        self._left: set[str] = set()
        with locked(shared / _LOCK):
            for folder in shared.iterdir():
                if _is_left(folder):
                    self._left.add(folder.name)
                    shutil.rmtree(folder, ignore_errors=True)
            self.folder = Path(tempfile.mkdtemp(prefix=_DRIVER, dir=shared))
            self._lock = _locked(self.folder)

    def is_gone(self, driver: str) -> bool:
        """Whether a driver of this machine was killed, by its folder's name; of others that is not known."""
        is_name = driver.startswith(_DRIVER) and driver == Path(driver).name
        return driver in self._left or (is_name and _is_left(self._shared / driver))

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[Path]:
        """Yield a folder for an upload, which goes at the end unless a job keeps it; raises Problem 429."""
        with self._arriving.take(), self._here.take() as place:
            folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="upload-", dir=self.folder))
            self._places[folder] = place
            try:
                yield folder
            finally:
                if not place.kept:
                    await self.delete(folder)

    def keep(self, folder: Path) -> None:
        """Keep an upload that is received for a job that has begun, until it is deleted."""
        self._places[folder].kept = True

    async def delete(self, folder: Path) -> None:
        """Delete an upload."""
        place = self._places.pop(folder)
        try:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        finally:
            place.release()

    async def close(self) -> None:
        """Delete all uploads."""
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
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
