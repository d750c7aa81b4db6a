"""Weights that an environment fetches: by digest, in parallel byte ranges, into memory.

    SERFER_WEIGHTS/<sha256>  ── ranges, several at once ──>  one buffer  ── digest checked ──>  sessions (sessions.py)

The URL of the directory is `s3://BUCKET/PREFIX`, or `file:///DIR` for workers of the local Lambda service. For
measurements a file URL may hold all ranges of an environment together to a rate: `file:///DIR?bytes_per_s=75000000`.

Parts of 8 MB, eight at once: from an S3 server on the same two busy cores 175 MB/s for AlexNet's 244 MB, 109 one at a
time and 116 to 153 with other sizes and numbers; from files some 250 whatever they are. The digest, at 590 MB/s on one
core, is taken while later parts arrive.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from serfer.core.errors import (
    AlteredPieceError,
    MissingKeyError,
    PlanError,
    SerferError,
    StoreUnavailableError,
    UsageError,
)
from serfer.core.plan import Artefact
from serfer.core.retry import Backoff, RetryPolicy, retry

PART_BYTES, PARTS_AT_ONCE = 8 << 20, 8
_READING = RetryPolicy("weights", StoreUnavailableError, Backoff(base=0.1, longest=1.0), attempts=4)
_RUNTIME_MB = 48  # resident memory of interpreter and imports, before any weights (measured)
_FORM = "SERFER_WEIGHTS is not s3://BUCKET/PREFIX or file:///DIR"


class Ranges(Protocol):
    """Reads byte ranges of the objects of a directory, from several threads; `place` names it in errors."""

    place: str

    def read(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` with an object's bytes from `start`.

        Raises MissingKeyError for an object that is not there, AlteredPieceError for one that is too short,
        StoreUnavailableError where a later attempt may succeed.
        """

    def close(self) -> None: ...


class FileRanges:
    """Ranges of the files of a directory, together at most `bytes_per_s`."""

    def __init__(self, directory: Path, bytes_per_s: float | None = None) -> None:
        self.place = str(directory)
        self._directory = directory
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0  # when all ranges so far have passed, on the clock of time.monotonic

    def read(self, name: str, start: int, into: memoryview) -> None:
        try:
            with (self._directory / name).open("rb") as file:
                read = os.preadv(file.fileno(), [into], start)
        except FileNotFoundError as error:
            raise MissingKeyError(f"there is no file {name} in {self.place}") from error
        except OSError as error:
            raise StoreUnavailableError(f"{error.filename or name} cannot be read: {error.strerror}") from error
        if read < len(into):
            raise AlteredPieceError(f"{name} in {self.place} has fewer than {start + len(into):,} bytes")
        if self._bytes_per_s:
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic()) + read / self._bytes_per_s
                rest_s = self._free_at - time.monotonic()
            time.sleep(max(0.0, rest_s))

    def close(self) -> None:
        """Do nothing: no file stays open."""


def open_ranges(url: str) -> Ranges:
    """Open the directory at a URL; raises UsageError for a URL of another form."""
    parts = urlsplit(url)
    if parts.scheme == "s3":
        from serfer.storage.s3.objects import S3Ranges  # noqa: PLC0415 - botocore takes 0.1 s to import

        try:
            return S3Ranges(url)
        except UsageError as error:
            raise UsageError(_name_bucket(error)) from error
    options = parse_qs(parts.query, keep_blank_values=True)
    rates = options.pop("bytes_per_s", [])
    if parts.scheme != "file" or parts.netloc or not parts.path or parts.fragment or options or len(rates) > 1:
        raise UsageError(f"{_FORM}: {url[:200]!r}")
    try:
        rate = float(rates[0]) if rates else None
    except ValueError:
        rate = 0.0
    if rate is not None and not rate > 0:
        raise UsageError(f"{_FORM} with bytes_per_s above 0: {url[:200]!r}")
    return FileRanges(Path(unquote(parts.path)), rate)


def check_memory(weights: Iterable[Artefact], memory_mb: float) -> None:
    """Raise PlanError where a function's memory cannot hold its weights while they become sessions.

    This much is needed whatever the graphs are: all weights once. ONNX Runtime takes 75 to 190 MB more, up to as much
    again where convolutions cannot be loaded in parts (sessions.py).
    """
    size = sum(artefact.bytes for artefact in weights)
    needed = _RUNTIME_MB + size / 2**20
    if needed > memory_mb:
        raise PlanError(
            f"{memory_mb:g} MB of memory are too small: {size / 2**20:.0f} MB of fetched weights need at least "
            f"{needed:.0f} MB to become sessions; split the model again with more --memory, and deploy it"
        )


class WeightSource:
    """Fetches weights from `ranges`; every failure names the weights and the place, and says what to do."""

    def __init__(self, ranges: Ranges, sleep: Callable[[float], None] = time.sleep) -> None:
        self._ranges = ranges
        self._sleep = sleep

    def fetch(self, weights: Artefact) -> mmap.mmap | bytes:
        """Return an artefact's bytes, in memory of its own that `close` gives back.

        Raises:
            PlanError: they are not there, are not those of the plan, or do not fit into memory.
            StoreUnavailableError: the place does not answer, after several attempts.
        """
        try:
            return self._fetched(weights)
        except MissingKeyError as error:
            raise self._wrong(weights, "are not there") from error
        except AlteredPieceError as error:
            raise self._wrong(weights, f"are cut short ({error})") from error
        except MemoryError as error:
            raise PlanError(
                f"{weights.path} has {weights.bytes:,} bytes, more memory than there is: split the model again with "
                "more --memory, and deploy it"
            ) from error
        except SerferError as error:
            if isinstance(error, PlanError):
                raise
            raise type(error)(
                f"{weights.path} cannot be fetched from {self._ranges.place}: {_name_bucket(error)}"
            ) from error

    def close(self) -> None:
        self._ranges.close()

    def _fetched(self, weights: Artefact) -> mmap.mmap | bytes:
        if not weights.bytes:
            return b""  # which cannot be mapped
        buffer = _private_memory(weights.bytes)
        digest = hashlib.sha256()
        with memoryview(buffer) as view, ThreadPoolExecutor(PARTS_AT_ONCE, "weights") as threads:
            starts = range(0, weights.bytes, PART_BYTES)
            parts = [
                threads.submit(self._read, weights.sha256, start, view[start : start + PART_BYTES]) for start in starts
            ]
            try:
                for start, part in zip(starts, parts, strict=True):
                    part.result()
                    digest.update(view[start : start + PART_BYTES])
            finally:
                threads.shutdown(cancel_futures=True)
                del parts, part  # each has a view of the buffer
        if digest.hexdigest() != weights.sha256:
            buffer.close()
            raise self._wrong(weights, "have another digest than in the plan")
        return buffer

    def _read(self, name: str, start: int, into: memoryview) -> None:
        with into:
            retry(lambda: self._ranges.read(name, start, into), _READING, self._sleep)

    def _wrong(self, weights: Artefact, what: str) -> PlanError:
        return PlanError(
            f"{weights.path} at {self._ranges.place.rstrip('/')}/{weights.sha256[:12]}...: the weights {what}; "
            "deploy the plan again"
        )


def _private_memory(size: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError from error


def _name_bucket(error: SerferError) -> str:
    return str(error).replace("--store", "SERFER_WEIGHTS")
