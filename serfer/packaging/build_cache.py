"""Directories that are made once, appear whole, and go when nobody has asked for them in a week."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_UNUSED_S = 7 * 24 * 3600


def in_use(target: Path) -> bool:
    """Say whether a directory is there, and note that it is still wanted."""
    try:
        os.utime(target)
    except FileNotFoundError:
        return False
    return True


def forget_unused(parent: Path) -> None:
    """Remove what nobody has asked for in a week, so that a cache does not grow for ever."""
    for directory in parent.iterdir():
        with suppress(OSError):
            if directory.stat().st_mtime < time.time() - _UNUSED_S:
                shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def assembled(target: Path) -> Iterator[Path]:
    """Give a directory to fill that takes its final name when all went well, and vanishes otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    forget_unused(target.parent)
    directory = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
    try:
        yield directory
        directory.chmod(0o755)
        with suppress(OSError):  # another process was faster; its directory is the same
            directory.rename(target)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
