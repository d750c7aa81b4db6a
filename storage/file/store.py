"""A store in a directory, shared by the processes of one machine (or of a shared file system)."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from serfer.core.errors import MissingKeyError, UsageError
from serfer.storage.exchange import Exchange
from serfer.storage.file.directory import NS, Directory
from serfer.storage.file.inbox import pread
from serfer.storage.store import Bytes, Range, check_keys, check_ranges, check_ttl, flat, missing
from serfer.storage.versioned_values import VERSION_BYTES, LocalStore


class FileStore(LocalStore):
    """Values as files, read by range; written aside and renamed, so that a reader sees a whole one.

    Expired values read as missing; opening the store and, every 30 s, a put sweep them away. A directory that holds
    anything else is refused (UsageError), and nothing but the store's own files is ever removed.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self._directory = Directory(root, clock)

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        with self._write_aside(key, value, ttl) as aside, self._directory.lock(fcntl.LOCK_SH):
            self._rename_locked(aside, key)

    def put_if(self, key: str, value: Bytes, ttl: float, condition: Callable[[bytes], bool]) -> bool:
        with self._write_aside(key, value, ttl) as aside, self._directory.lock(fcntl.LOCK_EX):
            if not condition(self._read_head(key)):
                return False
            self._rename_locked(aside, key)
            return True

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        check_ranges(ranges)
        with self._directory.reached():
            return [self._read(span) for span in ranges]

    def exists(self, keys: Sequence[str]) -> list[bool]:
        check_keys(keys)
        with self._directory.reached():
            return [self._is_live(key) for key in keys]

    def delete(self, keys: Sequence[str]) -> None:
        check_keys(keys)
        with self._directory.reached():
            for key in keys:
                self._directory.value(key).unlink(missing_ok=True)
                self._directory.inbox(key).unlink(missing_ok=True)

    def exchange(self) -> Exchange:
        from serfer.storage.file.exchange import FileExchange  # noqa: PLC0415  only gangs need it

        return FileExchange(self._directory)

    def close(self) -> None:
        """Do nothing: no file stays open between calls."""

    @contextlib.contextmanager
    def _write_aside(self, key: str, value: Bytes, ttl: float) -> Iterator[Path]:
        check_keys((key,))
        check_ttl(ttl)
        aside = self._directory.aside()
        with self._directory.reached():
            self._directory.sweep_if_due()
            try:
                with os.fdopen(
                    os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
                ) as file:
                    file.write(flat(value))
                expiry = self._directory.now_ns() + int(ttl * NS)
                os.utime(aside, ns=(expiry, expiry))
                yield aside
            finally:
                aside.unlink(missing_ok=True)

    def _rename_locked(self, aside: Path, key: str) -> None:
        path = self._directory.value(key)
        if path.parent != aside.parent:  # the key is long
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
        aside.replace(path)

    def _read(self, span: Range) -> bytes:
        try:
            file = self._directory.value(span.key).open("rb", buffering=0)
        except FileNotFoundError:
            raise missing(span) from None
        with file:
            status = os.fstat(file.fileno())
            length = status.st_size - span.start if span.length is None else span.length
            if self._expired(status) or length < 0 or span.start + length > status.st_size:
                raise missing(span)
            return pread(file.fileno(), length, span.start)

    def _read_head(self, key: str) -> bytes:
        try:
            return self._read(Range(key, 0, VERSION_BYTES))
        except MissingKeyError:
            return b""

    def _is_live(self, key: str) -> bool:
        try:
            return not self._expired(self._directory.value(key).stat())
        except FileNotFoundError:
            return False

    def _expired(self, status: os.stat_result) -> bool:
        return status.st_mtime_ns <= self._directory.now_ns()


def open_file(url: str) -> FileStore:
    """Open `file:///absolute/path`, making the directory where there is none."""
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise UsageError(f"{url} is not a file store's URL: write file:///absolute/path")
    return FileStore(Path(unquote(parts.path)))
