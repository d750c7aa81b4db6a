"""Files of loads, plain or compressed with gzip, read line by line or whole, and bounded as they are unpacked."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from serfer.core.errors import InputError
from serfer.core.units import MIB

MAX_LOG_BYTES: Final = 16 * 1024 * MIB
"""Of a file that is read line by line, unpacked."""
MAX_LINE: Final = 64 * 1024
"""Bytes of a line."""
_GZIP: Final = b"\x1f\x8b"


class LoadFile:
    """An open file of a load, which is read once.

    `head` are its first lines that are not empty, `first` is the first of them; the last one may be cut off.
    """

    def __init__(self, path: Path, file: BufferedReader[Any]) -> None:
        self.path = path
        self._file = file
        lines = file.peek(MAX_LINE)[:MAX_LINE].splitlines()
        self.head = [stripped for line in lines if (stripped := line.strip())]
        self.first = self.head[0] if self.head else b""

    def lines(self) -> Iterator[tuple[int, bytes]]:
        number, size = 0, 0
        while line := self._file.readline(MAX_LINE + 1):
            number += 1
            size += len(line)
            if len(line) > MAX_LINE:
                raise InputError(f"{self.path}, line {number}: a line has at most {MAX_LINE:,} bytes")
            if size > MAX_LOG_BYTES:
                raise InputError(f"{self.path}, line {number}: a log has at most {MAX_LOG_BYTES:,} bytes: give a part")
            if line := line.strip():
                yield number, line

    def text(self, most_bytes: int) -> str:
        data = self._file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise InputError(f"{self.path} has more than {most_bytes:,} bytes")
        try:
            return data.decode("utf-8-sig")
        except ValueError as error:
            raise InputError(f"{str(self.path)!r} cannot be read: it is not UTF-8 text") from error


@contextmanager
def opened(path: Path) -> Iterator[LoadFile]:
    """Open a file, which is unpacked on the way if it is one of gzip; raises InputError where it cannot be read."""
    try:
        with path.open("rb", buffering=0) as raw, BufferedReader(raw, MAX_LINE) as file:
            if file.peek(len(_GZIP)).startswith(_GZIP):
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield LoadFile(path, BufferedReader(unpacked, MAX_LINE))
            else:
                yield LoadFile(path, file)
    except (OSError, ValueError, EOFError, zlib.error) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or "it is damaged or incomplete"
        raise InputError(f"{str(path)!r} cannot be read: {reason}") from error
