"""The manifest of a map of many images: a line for each that was tried, so that a later run knows what is done."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from serfer.core.dataclass_codec import structure
from serfer.core.errors import PlanError
from serfer.files import read_text
from serfer.plan_directory import file_sha256
from serfer.raster.objects import Bucket
from serfer.raster.place import S3Place, parse_place

_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class ManifestLine:
    """What became of an image; `job` is what its result follows from, `check` tells the result from another one.

    `error` is empty where the result is whole; `check` is then its SHA-256, or the ETag of an object.
    """

    image: str
    result: str
    job: str
    seconds: float
    cost_usd: float
    error: str = ""
    check: str = ""


class Manifest:
    """A file of JSON lines, the last one of an image counting; a line that a killed process cut off does not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = _read(path)

    def knows(self, image: str) -> bool:
        return image in self._lines

    def is_done(self, image: str, result: str, files: Sequence[str], job: str) -> bool:
        line = self._lines.get(image)
        if line is None or line.error or (line.result, line.job) != (result, job):
            return False
        return bool(line.check) and line.check == result_check(files)

    def add(self, line: ManifestLine) -> None:
        """Append a line, and have the disk keep it; raises OSError."""
        self._lines[line.image] = line
        with self.path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            cut = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
            file.write((b"\n" if cut else b"") + json.dumps(asdict(line)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def result_check(files: Sequence[str]) -> str:
    """Return what tells a result, of these files, from another one, empty where one of them is not there."""
    checks = [_file_check(file) for file in files]
    return " ".join(checks) if all(checks) else ""


def _file_check(result: str) -> str:
    where = parse_place(result)
    if isinstance(where, S3Place):
        head = Bucket(where).head()
        return f"etag {head.etag}" if head else ""
    return f"sha256 {file_sha256(where)}" if where.is_file() else ""


def _read(path: Path) -> dict[str, ManifestLine]:
    if not path.exists():
        return {}
    lines = {}
    for row in read_text(path, _MOST_BYTES).splitlines():
        try:
            line = structure(ManifestLine, json.loads(row), str(path))
        except (ValueError, RecursionError, PlanError):
            continue  # cut off: the image is mapped again, and a result that is there is not replaced
        lines[line.image] = line
    return lines
