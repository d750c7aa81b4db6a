"""The page cache of this machine: what a function's files are dropped from, so that they are read from the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

KEPT, FILES, ALL = "kept", "files", "all"
MODES = KEPT, FILES, ALL
_DROP = Path("/proc/sys/vm/drop_caches")


def drop(mode: str, directories: Iterable[Path]) -> str:
    """Drop the files below directories (FILES), or everything (ALL), from the page cache; return what was done.

    Everything takes root; where that is refused, files are dropped. Pages that a process has mapped stay.
    """
    if mode == KEPT:
        return KEPT
    if mode == ALL:
        with suppress(OSError):
            os.sync()
            _DROP.write_text("1", encoding="ascii")
            return ALL
    for directory in directories:
        for path in directory.rglob("*"):
            if path.is_file():
                _drop_file(path)
    return FILES


def _drop_file(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
