"""A store in a directory, shared by the processes of one machine (or of a shared file system).

    ROOT/q7:s2:t0=      the value under q7:s2:t0; its modification time is the moment it expires
    ROOT/#lock          puts hold it shared; conditional puts and sweeps hold it alone
    ROOT/#1f3a...       a value being written

A slash in a key is written "%". A key of more than 200 characters is cut, and its first parts, ended by "+", are
directories. None of # % + = can stand in a key, so names never collide and every name leads back to its key.
"""

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from serfer.core.errors import MissingKeyError, StoreUnavailableError, UsageError
from storage.coordination import Coordination
from storage.store import Bytes, Range, Store, check_keys, check_ranges, check_ttl, flat, missing
from storage.versions import VERSION_BYTES, LocalCoordination

_PART = 200
_NS = 1_000_000_000
_SWEEP_EVERY_S = 30.0
_ABANDONED_S = 3600.0
_LOCK = "#lock"
_OURS = re.compile(r"[^#]*=|[^#]*\+|#[0-9a-f]{16}")


class FileStore(Store):
    """Values as files, read by range; written aside and renamed, so that a reader sees a whole one.

    Expired values read as missing; opening the store and, every 30 s, a put sweep them away. A directory that holds
    anything else is refused (UsageError), and nothing but the store's own files is ever removed.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self._root = root
        self._clock = clock
        with self._reached():
            root.mkdir(parents=True, exist_ok=True)
            # The lock is looked for last: another process that opens it now makes the lock before anything else.
            if any(root.iterdir()) and not (root / _LOCK).exists():
                raise UsageError(f"{root} is not empty and not a file store: give an empty or a new directory")
            self._sweep()

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        """Write the value aside, set its moment of expiry, and rename it into place."""
        with self._aside(key, value, ttl) as aside, self._lock(fcntl.LOCK_SH):
            self._place(aside, key)

    def put_if(self, key: str, value: Bytes, ttl: float, condition: Callable[[bytes], bool]) -> bool:
        """Write the value aside, then check and rename while no other put runs."""
        with self._aside(key, value, ttl) as aside, self._lock(fcntl.LOCK_EX):
            if not condition(self._head(key)):
                return False
            self._place(aside, key)
            return True

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        """Open each file once, so that a range comes from one version of the value."""
        check_ranges(ranges)
        with self._reached():
            return [self._read(span) for span in ranges]

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Look at the files' times."""
        check_keys(keys)
        with self._reached():
            return [self._is_live(key) for key in keys]

    def delete(self, keys: Sequence[str]) -> None:
        """Unlink the files."""
        check_keys(keys)
        with self._reached():
            for key in keys:
                self._path(key).unlink(missing_ok=True)

    def coordination(self) -> Coordination:
        """Coordinate by files of the same directory."""
        return LocalCoordination(self)

    def close(self) -> None:
        """Do nothing: no file stays open between calls."""

    @contextlib.contextmanager
    def _aside(self, key: str, value: Bytes, ttl: float) -> Iterator[Path]:
        """Write a value under a name that no reader knows; it is removed unless the body renames it."""
        check_keys((key,))
        check_ttl(ttl)
        aside = self._root / f"#{secrets.token_hex(8)}"
        with self._reached():
            if self._clock() >= self._next_sweep:
                self._sweep()
            try:
                with aside.open("xb") as file:
                    file.write(flat(value))
                expiry = int((self._clock() + ttl) * _NS)
                os.utime(aside, ns=(expiry, expiry))
                yield aside
            finally:
                aside.unlink(missing_ok=True)

    def _place(self, aside: Path, key: str) -> None:
        """Rename a value that was written aside; the lock must be held."""
        path = self._path(key)
        if len(key) > _PART:
            path.parent.mkdir(parents=True, exist_ok=True)
        aside.replace(path)

    def _path(self, key: str) -> Path:
        name = key.replace("/", "%")
        parts = [name[i : i + _PART] for i in range(0, len(name), _PART)]
        return self._root / f"{'+/'.join(parts)}="

    def _read(self, span: Range) -> bytes:
        try:
            file = os.open(self._path(span.key), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise missing(span) from None
        try:
            status = os.fstat(file)
            length = status.st_size - span.start if span.length is None else span.length
            if self._expired(status) or length < 0 or span.start + length > status.st_size:
                raise missing(span)
            return _pread(file, length, span.start)
        finally:
            os.close(file)

    def _head(self, key: str) -> bytes:
        """Return the first VERSION_BYTES of a live value, empty where there is none."""
        try:
            return self._read(Range(key, 0, VERSION_BYTES))
        except MissingKeyError:
            return b""

    def _is_live(self, key: str) -> bool:
        try:
            return not self._expired(self._path(key).stat())
        except FileNotFoundError:
            return False

    def _expired(self, status: os.stat_result) -> bool:
        return status.st_mtime_ns <= self._clock() * _NS

    def _sweep(self) -> None:
        """Remove expired values, files that a killed writer left, and directories that have emptied."""
        self._next_sweep = self._clock() + _SWEEP_EVERY_S
        with self._lock(fcntl.LOCK_EX):
            self._sweep_folder(self._root)

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
            expiry = path.stat().st_mtime
            if path.name.startswith("#"):  # a file being written: its time is that of its last write
                expiry += _ABANDONED_S
            if expiry <= self._clock():
                path.unlink()

    @contextlib.contextmanager
    def _lock(self, kind: int) -> Iterator[None]:
        """Hold ROOT/#lock, so that nothing expired is removed just as a fresh value takes its name."""
        file = os.open(self._root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, kind)
            yield
        finally:
            os.close(file)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailableError(f"file store {self._root} cannot be used: {error.strerror}") from error


def open_file(url: str) -> FileStore:
    """Open `file:///absolute/path`, making the directory where there is none."""
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise UsageError(f"{url} is not a file store's URL: write file:///absolute/path")
    return FileStore(Path(unquote(parts.path)))


def _pread(file: int, length: int, start: int) -> bytes:
    """Read exactly `length` bytes; a read of more than 2 GiB comes back in parts."""
    data = os.pread(file, length, start)
    while len(data) < length:
        data += os.pread(file, length - len(data), start + len(data))
    return data
