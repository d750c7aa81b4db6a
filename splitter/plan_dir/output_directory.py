"""An output directory appears whole or not at all, and a plan replaces nothing but a plan."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from serfer.core.errors import InputError, UnavailableError
from serfer.core.plan.layout import PLAN_FILE, UNSPLIT, is_part


def check_plan_place(place: Path) -> None:
    """Refuse a directory that is not a plan, or holds more than a plan: all of it would be deleted.

    Raises InputError.
    """
    if not place.exists():
        return
    if not place.is_dir():
        raise InputError(f"{place} is not a directory; choose another --out")
    if not any(place.iterdir()):
        return
    if not _is_plan(place):
        raise InputError(f"{place} exists and is not a plan directory; choose another --out")
    inside = (path.relative_to(place).as_posix() for path in place.rglob("*"))
    foreign = next((name for name in inside if not is_part(name)), None)
    if foreign is not None:
        raise InputError(
            f"{place} holds {foreign}, which is not part of a plan and would be deleted: move it, or choose another "
            "--out"
        )


def place_for(
    out: Path, given: Iterable[Path] = (), check_replaceable: Callable[[Path], None] = check_plan_place
) -> Path:
    """Return the real path of a directory to be written: links followed, `..` gone.

    Raises InputError where none can be, or where `check_replaceable` refuses what lies there; `given` are paths that
    are read for the new one.
    """
    try:
        place = out.resolve()
        if Path.cwd().is_relative_to(place):
            raise InputError(f"{out} is or holds the working directory, which cannot be replaced; choose another --out")
        place.exists()  # a name may be too long
        around = next(parent for parent in place.parents if parent.exists())
        if not around.is_dir():
            raise InputError(f"{out} cannot be written: {around} is not a directory; choose another --out")
        if not os.access(around, os.W_OK | os.X_OK):
            raise InputError(f"{out} cannot be written: {around} is not writable; choose another --out")
        inside = next((path for path in given if place in path.resolve().parents), None)
        if inside is not None:
            raise InputError(f"{out} holds {inside}, which is to be read; choose another --out")
        if around == place.parent:
            with alone_in(around):
                check_replaceable(place)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a loop, ValueError: a NUL in the name
        raise InputError(f"{str(out)!r} cannot be written: {getattr(error, 'strerror', None) or error}") from error
    return place


@contextmanager
def appearing_whole(place: Path, check_replaceable: Callable[[Path], None] = check_plan_place) -> Iterator[Path]:
    """Yield a directory that becomes `place`, a path of `place_for`, on success, and is deleted otherwise.

    Raises UnavailableError where it cannot be written after all: for example a full disk.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=".serfer-", dir=place.parent))
        try:
            yield directory
            directory.chmod(0o777 & ~_umask())
            with alone_in(place.parent):
                check_replaceable(place)  # again: filling it takes its time
                _replace(place, directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    except OSError as error:
        remedy = "; free some space, or choose another --out" if error.errno == errno.ENOSPC else ""
        raise UnavailableError(f"{place} cannot be written: {error.strerror or error}{remedy}") from error


def _is_plan(directory: Path) -> bool:
    file = directory / PLAN_FILE
    if not file.is_file():
        return False
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return (directory / UNSPLIT).is_file()
    return isinstance(value, dict) and {"format", "digest"} <= value.keys()


@contextmanager
def alone_in(parent: Path) -> Iterator[None]:
    """Let one process at a time replace a plan in this directory."""
    handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replace(out: Path, directory: Path) -> None:
    """Rename `directory` to `out`; an existing directory is restored on failure, and deleted on success."""
    old = directory.with_name(f"{directory.name}.old")
    if not out.exists():
        directory.rename(out)
        return
    out.rename(old)
    try:
        directory.rename(out)
    except BaseException:
        old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
