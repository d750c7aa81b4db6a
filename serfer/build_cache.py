"""The cache: a directory of our own, with entries built once, published whole by a rename, removed after a week unused.

Only what is known as ours is removed: a directory by a mark or content, a file by its folder, either by `.serfer-`.
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
_OURS = re.compile(r"\.serfer-(new|work)-[a-z0-9_]{8}|\.serfer-.+-[0-9a-f]{16}\.(lock|refused)")
_BY_DIGEST = re.compile(r"[0-9a-f]{64}|\.[0-9a-f]{64}\.[0-9a-f]{32}")
_OF_BEFORE = re.compile(r"(.+-)?[0-9a-f]{16}")  # names of directories that have no mark, but what only ours have
_HELD_BEFORE = ("plan.json", "layer/python", "onnxruntime")
_FOLDERS = ("dependencies", "functions", "layers", "plans", "variants", "weights", "wheels")
_UNUSED_S = 7 * 24 * 3600
_UNUSED_ON_A_FULL_DISK_S = 24 * 3600
_FREE = 0.1  # of the disk
_FILL = (
    "; it lacks something that this needs: run the same command once where it can be written, or set SERFER_CACHE_DIR "
    "to another directory"
)
_ADVICE = {  # about a failure, by its number
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "; free space, or set SERFER_CACHE_DIR to another disk's directory"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), _FILL),
}


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
        entries = (path for folder in _FOLDERS for path in (directory / folder).glob("*/"))
        if names and not default and _MARK not in names and not any(map(_is_ours, entries)):
            raise UsageError(f"SERFER_CACHE_DIR: {directory} holds {names[0]}, which is not of a cache: {own}")
        (directory / _MARK).touch()
        if default and (weights := directory / "weights").is_dir():  # of an earlier version, which did not mark it
            (weights / _MARK).touch()


def make_folder_of_files(folder: Path) -> None:
    """Make a folder for files named by their digests, marked unless it held something; forget what was unused in it."""
    folder.mkdir(0o755, parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        (folder / _MARK).touch()
    forget_unused(folder)


@contextmanager
def cache_of(directory: Path) -> Iterator[None]:
    """Raise UnavailableError that names the cache where it cannot be read or written: no right to, a full disk."""
    try:
        yield
    except (OSError, UnavailableError) as error:  # UnavailableError: of what writes a directory anywhere
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        reason = f"{cause.strerror or cause}{_ADVICE.get(cause.errno or 0, '')}"
        raise UnavailableError(f"SERFER_CACHE_DIR: {directory} cannot be used: {reason}") from cause


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
    for entry in parent.iterdir():
        with suppress(OSError):
            if entry.stat().st_mtime < oldest and _is_ours(entry):
                entry.unlink() if entry.is_file() else shutil.rmtree(entry, ignore_errors=True)


def _is_ours(entry: Path) -> bool:
    """Return whether an entry is proved ours: its name alone may be anyone's, and a copy of ours has another name."""
    if _OURS.fullmatch(entry.name):
        return True
    if not entry.is_dir():
        return _BY_DIGEST.fullmatch(entry.name) is not None and (entry.parent / _MARK).is_file()
    proofs = (f".serfer-{entry.name}", *(_HELD_BEFORE if _OF_BEFORE.fullmatch(entry.name) else ()))
    return any((entry / proof).exists() for proof in proofs)


@contextmanager
def assembled(target: Path) -> Iterator[Path]:
    """Yield an empty directory that is renamed to `target` on success and removed on failure."""
    target.parent.mkdir(0o755, parents=True, exist_ok=True)
    forget_unused(target.parent)
    directory = Path(tempfile.mkdtemp(prefix=".serfer-new-", dir=target.parent))
    try:
        yield directory
        directory.chmod(0o755)
        (directory / f".serfer-{target.name}").touch()
        with suppress(OSError):  # another process published the same directory first
            directory.rename(target)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
