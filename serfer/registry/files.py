"""Files that are kept as artefacts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from serfer.core.errors import InputError

_BLOCK: Final = 1 << 20


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a file to be kept; raises InputError for a link or what is not a regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"{path} cannot be kept: {error.strerror}") from error
    try:
        if not path.is_file():
            raise InputError(f"{path} cannot be kept: it is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def sha256_of(descriptor: int, write: Callable[[bytes], object] = lambda _: None) -> str:
    """Return the SHA-256 of the rest of an open file, whose blocks go to `write`."""
    digest = hashlib.sha256()
    while block := os.read(descriptor, _BLOCK):
        digest.update(block)
        write(block)
    return digest.hexdigest()
