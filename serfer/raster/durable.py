"""Files that are whole and on the disk once they have their name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from serfer.files import sync_folder

TEMPORARY = ".part"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def write_durably(path: Path, *data: bytes | memoryview) -> None:
    """Write a file under a temporary name, have the disk keep it, and give it its name; raises OSError.

    Whenever the process or the machine stops, the name leads to the file before or to the whole new one. At most one
    thread writes a path at a time.
    """
    part = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        with part.open("wb") as file:
            for block in data:
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
