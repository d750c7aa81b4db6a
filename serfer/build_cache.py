"""The cache: a directory of our own, with entries built once, published whole by a rename, removed after a week unused.

After a day where the disk has less than a tenth free: a week's builds may take more than that has.

A cache that cannot be written, as in a container image, serves the entries that it has.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serfer.core.errors import UnavailableError, UsageError
from serfer.files import why_unsafe

_MARK = ".serfer-cache"
_OURS = re.compile(  # names that nobody else gives: with a digest, or with a beginning of ours and a random end
    r"(.+-)?[0-9a-f]{16,64}(\.refused)?|\..+-[0-9a-f]{16,64}\.lock|\.[0-9a-f]{64}\.[0-9a-f]{32}|"
    r".+-python3\.\d+-\w+-[0-9a-f]{12}|(work-|\.new-)[a-z0-9_]{8}"
)
_FOLDERS = ("dependencies", "functions", "layers", "plans", "variants", "weights", "wheels")
_UNUSED_S = 7 * 24 * 3600
_UNUSED_ON_A_FULL_DISK_S = 24 * 3600
_FREE = 0.1  # of the disk
_MAKE_ROOM = "; free some space, or set SERFER_CACHE_DIR to a directory on another disk"
_FILL = (
    "; it lacks something that this needs: run the same command once where it can be written, or set SERFER_CACHE_DIR "
    "to another directory"
)
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _MAKE_ROOM),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), _FILL),
}
"""What to do about a failure, by its number."""


def check_cache(directory: Path, *, default: bool) -> None:
    """Make and mark the directory of the cache, where that can be; what lies in it is run.

    Raises UsageError where another user may write it, or where other things are in it, unless it is the `default`.
    """
    own = f"set SERFER_CACHE_DIR to a directory of its own, such as {directory / 'serfer'}"
    with suppress(OSError):  # whoever needs it says what cannot be read or written
        directory.mkdir(0o755, parents=True, exist_ok=True)
        if why := why_unsafe(directory):
            raise UsageError(f"SERFER_CACHE_DIR: {directory} {why}, and code lies in it: {own}")
        names = sorted(path.name for path in directory.iterdir())
        entries = (path.name for folder in _FOLDERS for path in (directory / folder).glob("*"))
        if names and not default and _MARK not in names and not any(map(_OURS.fullmatch, entries)):
            raise UsageError(f"SERFER_CACHE_DIR: {directory} holds {names[0]}, which is not of a cache: {own}")
        (directory / _MARK).touch()


@contextmanager
def cache_of(directory: Path) -> Iterator[None]:
    """Raise UnavailableError that names the cache where it cannot be read or written: no right to, a full disk."""
    try:
        yield
    except OSError as error:
        raise _unusable(directory, error) from error
    except UnavailableError as error:  # of what writes a directory anywhere
        if isinstance(error.__cause__, OSError):
            raise _unusable(directory, error.__cause__) from error.__cause__
        raise


def _unusable(directory: Path, error: OSError) -> UnavailableError:
    reason = f"{error.strerror or error}{_ADVICE.get(error.errno or 0, '')}"
    return UnavailableError(f"SERFER_CACHE_DIR: {directory} cannot be used: {reason}")


def in_use(target: Path) -> bool:
    """Return whether an entry exists, and mark it as used now, where that can be written."""
    try:
        os.utime(target)
    except OSError:  # not there, or not to be changed
        return target.exists()
    return True


def forget_unused(parent: Path) -> None:
    """Remove our files and directories that were not used in a week, or in a day where the disk is nearly full."""
    disk = shutil.disk_usage(parent)
    oldest = time.time() - (_UNUSED_S if disk.free >= _FREE * disk.total else _UNUSED_ON_A_FULL_DISK_S)
    for entry in (entry for entry in parent.iterdir() if _OURS.fullmatch(entry.name)):
        with suppress(OSError):
            if entry.stat().st_mtime < oldest:
                entry.unlink() if entry.is_file() else shutil.rmtree(entry, ignore_errors=True)


@contextmanager
def assembled(target: Path) -> Iterator[Path]:
    """Yield an empty directory that is renamed to `target` on success and removed on failure."""
    target.parent.mkdir(0o755, parents=True, exist_ok=True)
    forget_unused(target.parent)
    directory = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        yield directory
        directory.chmod(0o755)
        with suppress(OSError):  # another process published the same directory first
            directory.rename(target)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
