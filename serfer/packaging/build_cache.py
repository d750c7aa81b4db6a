"""Entries of the cache: built once, published whole by a rename, removed after a week without use."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serfer.core.errors import UnavailableError

_UNUSED_S = 7 * 24 * 3600


@contextmanager
def cache_of(directory: Path) -> Iterator[None]:
    """Raise UnavailableError that names the cache where it cannot be read or written: no right to, a full disk."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnavailableError(f"SERFER_CACHE_DIR: {directory} cannot be used: {reason}") from error


def in_use(target: Path) -> bool:
    """Return whether an entry exists, and mark it as used now."""
    try:
        os.utime(target)
    except FileNotFoundError:
        return False
    return True


def forget_unused(parent: Path) -> None:
    """Remove the files and directories that were not used in a week, so that a cache stays bounded."""
    for entry in parent.iterdir():
        with suppress(OSError):
            if entry.stat().st_mtime < time.time() - _UNUSED_S:
                entry.unlink() if entry.is_file() else shutil.rmtree(entry, ignore_errors=True)


@contextmanager
def assembled(target: Path) -> Iterator[Path]:
    """Yield an empty directory that is renamed to `target` on success and removed on failure."""
    target.parent.mkdir(parents=True, exist_ok=True)
    forget_unused(target.parent)
    directory = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
    try:
        yield directory
        directory.chmod(0o755)
        with suppress(OSError):  # another process published the same directory first
            directory.rename(target)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
