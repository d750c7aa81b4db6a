"""A plan directory appears whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serfer.core.errors import InputError
from serfer.core.plan import PLAN_FILE


@contextmanager
def appearing_whole(out: Path) -> Iterator[Path]:
    """Give a directory to fill that becomes `out` when all went well, and vanishes otherwise."""
    out = out.absolute()
    if out == Path.cwd():
        raise InputError(f"{out} is the working directory, which cannot be replaced; choose another --out")
    if out.exists() and not (out / PLAN_FILE).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists and is no plan directory; choose another --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}") from error
    try:
        yield directory
        directory.chmod(0o777 & ~_umask())
        with _alone_in(out.parent):
            _replace(out, directory)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _alone_in(parent: Path) -> Iterator[None]:
    """Let one process at a time replace a plan in this directory."""
    handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replace(out: Path, directory: Path) -> None:
    """Give `directory` the name `out`; what had it comes back if that fails, and goes if it does not."""
    old = directory.with_name(f"{directory.name}.old")
    if not out.exists():
        directory.rename(out)
        return
    out.rename(old)
    try:
        directory.rename(out)
    except OSError:
        old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
