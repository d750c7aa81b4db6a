"""The directory of a file store: names, locks and sweeps.

    ROOT/q7:s2:t0=             the value under q7:s2:t0; its modification time is the moment it expires
    ROOT/inbox+/q7:s2:t0:in==  the inbox q7:s2:t0:in, which says itself when it expires (storage/file/inbox.py)
    ROOT/#lock                 puts and sends hold it shared; conditional puts and sweeps hold it alone
    ROOT/#1f3a...              a value being written

A slash in a key is written "%". A key of more than 200 characters is cut, and its first parts, ended by "+", are
directories. None of # % + = can stand in a key, so names never collide and every name leads back to its key.
"""

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from serfer.core.errors import StoreUnavailableError, UsageError
from serfer.files import check_owner, locked
from serfer.storage.file.inbox import expiry_ns

NS = 1_000_000_000
_PART = 200
_SWEEP_EVERY_S = 30.0
_ABANDONED_S = 3600.0
_LOCK = "#lock"
_INBOXES = "inbox+"
_OURS = re.compile(r"[^#]*=|[^#]*\+|#[0-9a-f]{16}")


class Directory:
    """Paths under `root`, and what keeps processes that share them apart.

    Raises UsageError where `root` holds something else or another user may plant in it, StoreUnavailableError where it
    cannot be made or read.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self._root = root
        self._clock = clock
        with self.reached():
            root.mkdir(0o700, parents=True, exist_ok=True)
            check_owner(root)
            # The lock is looked for last: another process that opens it now makes the lock before anything else.
            if any(root.iterdir()) and not (root / _LOCK).exists():
                raise UsageError(f"{root} is not empty and not a file store: give an empty or a new directory")
            self.sweep()

    def value(self, key: str) -> Path:
        return self._root / f"{_name(key)}="

    def inbox(self, key: str) -> Path:
        return self._root / _INBOXES / f"{_name(key)}=="

    def aside(self) -> Path:
        return self._root / f"#{secrets.token_hex(8)}"

    def now_ns(self) -> int:
        return int(self._clock() * NS)

    def sweep_if_due(self) -> None:
        if self._clock() >= self._next_sweep:
            self.sweep()

    def sweep(self) -> None:
        self._next_sweep = self._clock() + _SWEEP_EVERY_S
        with self.lock(fcntl.LOCK_EX):
            self._sweep_folder(self._root)

    def lock(self, kind: int) -> AbstractContextManager[None]:
        """Hold ROOT/#lock, so that nothing expired is removed just as a fresh value takes its name."""
        return locked(self._root / _LOCK, kind)

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailableError(f"file store {self._root} cannot be used: {error.strerror}") from error

    def _sweep_folder(self, folder: Path) -> None:
        """Sweep what carries one of our names; whatever else lies there is not ours to remove."""
        with os.scandir(folder) as entries:
            ours = [entry for entry in entries if _OURS.fullmatch(entry.name)]
        for entry in ours:
            if not entry.is_dir(follow_symlinks=False):
                self._sweep_file(Path(entry.path))
            elif entry.name.endswith("+"):
                self._sweep_folder(Path(entry.path))
                with contextlib.suppress(OSError):  # it is not empty
                    Path(entry.path).rmdir()

    def _sweep_file(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):  # deleted, or renamed into place, since it was listed
            expiry = expiry_ns(path) if path.name.endswith("==") else path.stat().st_mtime_ns
            if path.name.startswith("#"):  # a file being written: its time is that of its last write
                expiry += int(_ABANDONED_S * NS)
            if expiry <= self.now_ns():
                path.unlink()


def _name(key: str) -> str:
    name = key.replace("/", "%")
    return "+/".join(name[i : i + _PART] for i in range(0, len(name), _PART))
