"""The finished parts of a result, each a file, so that a job that stops anywhere goes on where it was.

    RESULT.parts/  lock            held while a process works here
                   zarr.json       the array of the parts, what the job is (a resumed one must be the same), and what
                                   was measured of the image
                   c.0.0.3.1       a part, whole, or not there
                   written         the result is written: what is still here is being deleted

What else is in the directory was not put there by SerFer, which then refuses it. It is a zarr array, which other
tools open (serfer/core/zarr.py); what is not there yet they take for zeros.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from serfer.core.crc32c import crc32c
from serfer.core.errors import AlteredPieceError, InputError, UnavailableError, UsageError
from serfer.core.geometry import Rect, Span
from serfer.core.zarr import CRC_BYTES, METADATA, MOST_METADATA_BYTES, Axis, ChunkedArray, encode_chunk
from serfer.files import read_text, sync_folder
from serfer.raster.durable import FULL, TEMPORARY, write_durably

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
_LOCK, UPLOAD, ASSEMBLED, _WRITTEN = "lock", "upload.json", "result", "written"
_PART = re.compile(r"c\.0\.0\.([0-9]{1,9})\.([0-9]{1,9})", re.ASCII)
_JOB, _MEASURED = "attributes.job.", "measured"
_MOST_SHOWN = 60
_BLOCK = 1 << 20
MOST_PARTS = 10**8


class ResultParts:
    """A directory of the parts of a result, one for each chunk of `array`, locked for this process; use it in a `with`.

    Several threads may put at once. Closing unlocks it and keeps the parts; `remove` deletes them.
    """

    def __init__(self, directory: Path, array: ChunkedArray, lock: int, digest: str) -> None:
        self.directory, self.array, self.digest = directory, array, digest
        self.rects = [chunk.rect for chunk in array.chunks]
        self._lock: int | None = lock
        self._done: set[int] = set()
        self._guard = Lock()

    @classmethod
    def create_or_resume(cls, directory: Path, identity: Mapping[str, Any], array: ChunkedArray) -> ResultParts:
        """Make the directory, or take up that of an earlier run of the same `identity`, which is JSON."""
        count = array.rows.count * array.cols.count
        if count > MOST_PARTS or array.images != 1 or array.dtype not in DTYPES:
            raise UsageError(f"a result is of one image, at most {MOST_PARTS:,} parts, and {', '.join(DTYPES)}")
        job = cls.metadata(array)
        job["attributes"]["job"] = json.loads(json.dumps(identity, allow_nan=False))
        digest = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()
        with _disk_errors(directory):
            _make(directory)
            lock = _locked(directory)
        try:
            with _disk_errors(directory):
                _forget_if_empty(directory)
                _agree(directory / METADATA, job)
                parts = cls(directory, array, lock, digest)
                parts._find()
        except BaseException:
            os.close(lock)
            raise
        return parts

    @classmethod
    def metadata(cls, array: ChunkedArray) -> dict[str, Any]:
        metadata = array.metadata()
        metadata["chunk_key_encoding"]["configuration"]["separator"] = "."
        return metadata

    @classmethod
    def discard(cls, directory: Path) -> None:
        if not directory.exists():
            return
        with _disk_errors(directory):
            _make(directory)
            lock = _locked(directory)
            _delete(directory)
            os.close(lock)

    @property
    def count(self) -> int:
        return len(self.rects)

    def done(self) -> set[int]:
        with self._guard:
            return {*self._done}

    def put(self, number: int, values: NDArray[Any]) -> None:
        self._check_open()
        if not 0 <= number < self.count:
            raise UsageError(f"there is no part {number} of {self.count}")
        rect = self.rects[number]
        shape = self.array.channels, rect.rows.size, rect.cols.size
        if values.dtype != self.array.dtype or values.shape != shape:
            raise UsageError(f"part {number} is {self.array.dtype} of {shape}, not {values.dtype} of {values.shape}")
        self.put_bytes(number, encode_chunk(self.array, values[None]))

    def put_bytes(self, number: int, data: bytes | bytearray) -> None:
        """Keep the file of a part, its checksum at its end; raises UnavailableError where the disk is full."""
        self._check_open()
        with self._guard:
            kept = len(self._done)
        with _disk_errors(self.directory, f"{kept:,} of {self.count:,} parts are kept there"):
            write_durably(self.path(number), memoryview(data))
        with self._guard:
            self._done.add(number)

    def _check_open(self) -> None:
        if self._lock is None:
            raise UsageError(f"{self.directory} is closed")

    def verify(self) -> set[int]:
        for number in self.done():
            with suppress(AlteredPieceError), self.dropping(number):
                self._check(number)
        return {*range(self.count)} - self.done()

    def values(self, number: int) -> NDArray[Any]:
        rect, array = self.rects[number], self.array
        with self.dropping(number):
            data = self.path(number).read_bytes()
            stored, crc = data[:-CRC_BYTES], data[-CRC_BYTES:]
            if len(data) != array.chunk_bytes or crc32c(stored) != int.from_bytes(crc, "little"):
                raise AlteredPieceError
        values = np.frombuffer(stored, array.dtype)
        whole = values.reshape(array.channels, array.rows.chunk, array.cols.chunk)
        return whole[:, : rect.rows.size, : rect.cols.size]

    def area(self, rect: Rect, first: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return a rectangle (channels, rows, cols) of the array, or of some channels; unverified, as `rows`."""
        array, channels = self.array, slice(first, stop)
        values = np.empty((len(range(array.channels)[channels]), rect.rows.size, rect.cols.size), array.dtype)
        stored = array.channels, array.rows.chunk, array.cols.chunk
        rows, cols = (_touched(axis, span) for axis, span in ((array.rows, rect.rows), (array.cols, rect.cols)))
        for number in (row * array.cols.count + col for row in rows for col in cols):
            own = self.rects[number]
            with self.dropping(number):
                if self.path(number).stat().st_size != array.chunk_bytes:
                    raise AlteredPieceError
                there = np.memmap(self.path(number), array.dtype, "r", shape=stored)
                if part := own.overlap(rect):
                    values[:, *part.within(rect).slices] = there[channels, *part.within(own).slices]
        return values

    def rows(self, number: int, channel: int, rows: Span) -> NDArray[Any]:
        """Return some rows (rows, columns of a whole chunk) of one channel of a part, not verified yet."""
        height, width = self.array.rows.chunk, self.array.cols.chunk
        values = np.empty((rows.size, width), self.array.dtype)
        with self.dropping(number), self.path(number).open("rb", buffering=0) as file:
            offset = (channel * height + rows.start) * width * values.itemsize
            if os.preadv(file.fileno(), [values.data.cast("B")], offset) != values.nbytes:
                raise AlteredPieceError
        return values

    def check_sum(self, number: int, crc: int) -> None:
        with self.dropping(number), self.path(number).open("rb", buffering=0) as file:
            kept = os.pread(file.fileno(), CRC_BYTES + 1, self.array.chunk_bytes - CRC_BYTES)  # and nothing behind it
            if kept != crc.to_bytes(CRC_BYTES, "little"):
                raise AlteredPieceError

    @property
    def measured(self) -> Any:  # noqa: ANN401 - JSON values
        """What `measured` was set to by this run or an earlier one of the same job, None for nothing."""
        return self._metadata()["attributes"].get(_MEASURED)

    @measured.setter
    def measured(self, value: Any) -> None:  # noqa: ANN401 - same
        metadata = self._metadata()
        metadata["attributes"][_MEASURED] = value
        with _disk_errors(self.directory):
            write_durably(self.directory / METADATA, json.dumps(metadata, indent=1).encode())

    def _metadata(self) -> dict[str, Any]:
        with _disk_errors(self.directory):
            metadata: dict[str, Any] = json.loads((self.directory / METADATA).read_bytes())
        return metadata

    @property
    def written(self) -> bool:
        """Whether their result was written, by a process that may have been stopped while it deleted them."""
        return (self.directory / _WRITTEN).exists()

    @written.setter
    def written(self, value: bool) -> None:
        with _disk_errors(self.directory):
            if value:
                write_durably(self.directory / _WRITTEN)
            else:
                (self.directory / _WRITTEN).unlink(missing_ok=True)

    def close(self) -> None:
        if self._lock is None:
            return
        if not self.done():
            with suppress(OSError):
                _delete(self.directory)
        self._unlock()

    def remove(self) -> None:
        _delete(self.directory)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self) -> None:
        numbers = {chunk.path.replace("/", "."): number for number, chunk in enumerate(self.array.chunks)}
        for path in sorted(self.directory.iterdir()):
            if path.name.startswith(".") and path.name.endswith(TEMPORARY):
                path.unlink()
            elif path.name in numbers:
                self._done.add(numbers[path.name])
        self.verify()

    def _check(self, number: int) -> None:
        with self.path(number).open("rb") as file:
            crc, left = 0, self.array.chunk_bytes - CRC_BYTES
            while left and (data := file.read(min(left, _BLOCK))):
                crc, left = crc32c(data, crc), left - len(data)
            if left or file.read(CRC_BYTES + 1) != crc.to_bytes(CRC_BYTES, "little"):
                raise AlteredPieceError

    @contextmanager
    def dropping(self, number: int) -> Iterator[None]:
        try:
            yield
        except (AlteredPieceError, FileNotFoundError) as error:
            self.path(number).unlink(missing_ok=True)
            with self._guard:
                self._done.discard(number)
            raise AlteredPieceError(
                f"part {number} in {self.directory} is gone, cut or altered: run the same command again, it resumes"
            ) from error

    def path(self, number: int) -> Path:
        row, col = divmod(number, self.array.cols.count)
        return self.directory / f"c.0.0.{row}.{col}"


def _touched(axis: Axis, span: Span) -> range:
    return range(bisect_right(axis.edges, span.start) - 1, bisect_left(axis.edges, span.stop))


@contextmanager
def reserved(directory: Path, name: str) -> Iterator[None]:
    """Hold the place of a result's parts, which lie elsewhere; raises UnavailableError where another process has it."""
    with _disk_errors(directory):
        _make(directory)
        lock = _locked(directory, name)
    try:
        yield
    finally:
        with suppress(OSError):
            if {path.name for path in directory.iterdir()} == {_LOCK}:
                (directory / _LOCK).unlink()
                directory.rmdir()
        os.close(lock)


def _is_part_file(name: str) -> bool:
    known = {METADATA, _LOCK, UPLOAD, ASSEMBLED, _WRITTEN}
    return name in known or bool(_PART.fullmatch(name)) or (name.startswith(".") and name.endswith(TEMPORARY))


def _delete(directory: Path) -> None:
    last = (_WRITTEN, METADATA)  # they say what the others are
    for path in sorted(directory.iterdir(), key=lambda path: path.name in last):
        if _is_part_file(path.name) and path.name != _LOCK:
            path.unlink()
    (directory / _LOCK).unlink()
    if not any(directory.iterdir()):
        directory.rmdir()


def _make(directory: Path) -> None:
    try:
        directory.mkdir(0o700, exist_ok=True)
        names = [path.name for path in directory.iterdir()]
    except (FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(directory)!r} cannot hold the parts of a result: {reason}") from error
    if strange := next((name for name in names if not _is_part_file(name)), None):
        raise InputError(f"{directory} is not a directory of result parts: it holds {strange!r}; name another one")


def _locked(directory: Path, name: str = "") -> int:
    """The lock ends with the process, however that ends; an error says that `name` is in use, or the directory."""
    path = directory / _LOCK
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and path.stat().st_ino == os.fstat(fd).st_ino:
                return fd
        except BlockingIOError:
            os.close(fd)
            raise UnavailableError(
                f"{name or directory} is in use by another process: wait for it, or write to another result"
            ) from None
        except FileNotFoundError:
            pass
        os.close(fd)  # its last user removed it meanwhile


def _forget_if_empty(directory: Path) -> None:
    """Delete zarr.json where nothing of the job was ever kept, so that another one may use the directory."""
    names = {path.name for path in directory.iterdir()}
    if names <= {_LOCK, METADATA}:
        for name in names - {_LOCK}:
            (directory / name).unlink()


def _agree(path: Path, job: dict[str, Any]) -> None:
    if not path.exists():
        write_durably(path, json.dumps(job, indent=1).encode())
        sync_folder(path.parent.parent)
        return
    try:
        found = json.loads(read_text(path, MOST_METADATA_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: delete {path.parent} to start over") from error
    if isinstance(found, dict) and isinstance(found.get("attributes"), dict):
        found["attributes"].pop(_MEASURED, None)  # of the image, which the job names
    if difference := _difference(found, job, ""):
        raise InputError(
            f"{path.parent} holds the parts of another job: {difference}; go on with that one, throw its parts "
            "away (--restart), or write to another result"
        )


def _difference(old: Any, new: Any, where: str) -> str | None:  # noqa: ANN401 - JSON values
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            place = f"{where}.{key}".removeprefix(".").removeprefix(_JOB)
            if key not in old or key not in new:
                return f"{place} is {'not ' if key not in old else ''}there"
            if found := _difference(old[key], new[key], f"{where}.{key}"):
                return found
        return None
    place = where.removeprefix(".").removeprefix(_JOB) or "it"
    return None if old == new else f"{place} was {_shown(old)}, and is {_shown(new)} now"


def _shown(value: Any) -> str:  # noqa: ANN401 - JSON values
    text = json.dumps(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


@contextmanager
def _disk_errors(directory: Path, kept: str = "what is there stays") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(directory, kept, error) from error


def disk_error(directory: Path, kept: str, error: OSError) -> UnavailableError:
    if error.errno == errno.EFBIG:
        wrong, remedy = f"a file in {directory} would be larger than files may be here (ulimit -f)", "raise that limit"
    elif error.errno in FULL:
        free = shutil.disk_usage(directory if directory.exists() else directory.parent).free
        wrong, remedy = f"there is no room on the disk of {directory} ({free:,} bytes are free)", "make room"
    else:
        wrong, remedy = f"{directory} cannot be written: {error.strerror or error}", "mend that"
    return UnavailableError(f"{wrong}: {kept}; {remedy} and run the same command again, it resumes")
