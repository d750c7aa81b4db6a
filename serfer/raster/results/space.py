"""Room on disks, estimated before long work begins."""

from __future__ import annotations

import shutil
from pathlib import Path

from serfer.core.errors import UnavailableError
from serfer.raster.place import S3Place, parse_place
from serfer.raster.results.parts import ResultParts


def check_space(parts: ResultParts, place: str | Path) -> str | None:
    """Refuse a job whose remaining parts find no room; return a warning where only the result may find none.

    How well a result can be compressed is known when it is written, so its estimate is its uncompressed size. Raises
    UnavailableError with the numbers.
    """
    missing = {*range(parts.count)} - parts.done()
    needed = len(missing) * parts.array.chunk_bytes
    free = shutil.disk_usage(parts.directory).free
    if needed > free:
        raise UnavailableError(
            f"{parts.directory} needs {needed:,} bytes for {len(missing):,} of {parts.count:,} parts, and its disk has "
            f"{free:,} free: make room, or keep the parts on another disk"
        )
    result = parts.array.nbytes
    where = parse_place(place)
    folder = parts.directory if isinstance(where, S3Place) else where.absolute().parent
    if folder.stat().st_dev == parts.directory.stat().st_dev:
        left, wanted = free - needed, f"{needed:,} bytes of parts and up to {result:,} of the result"
    else:
        left, wanted = shutil.disk_usage(folder).free, f"up to {result:,} bytes of the result"
    if result <= left:
        return None
    return f"the disk of {folder} may become full: {wanted} go there, less by compression, and it has {left:,} free"
