"""A load's file: a trace's CSV, or an access log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from serfer.core.errors import InputError, UsageError
from serfer.cost.loads.access_logs import is_access_log, read_access_log
from serfer.cost.loads.lines import LoadFile, opened
from serfer.cost.loads.trace import COLUMN_NAMES, MAX_BYTES, Trace, is_trace, parse_trace

KINDS: Final = (
    f"the columns {COLUMN_NAMES}; an access log (common or combined log format, a load balancer's, CloudFront's, or a "
    "CSV file with a time in each row)"
)
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_LONGEST: Final = 60  # characters of a line in an error


def read_load(path: Path, progress: Callable[[str], None], prefix: str | None = None) -> Trace:
    """Read a load's file, plain or of gzip; of an access log with `prefix` the requests whose URL's path begins so.

    Raises InputError that names the file, the line and what is expected, UsageError for a `prefix` of what has no URLs.
    """
    with opened(path) as file:
        return replace(parse_load(file, progress, prefix), name=load_name(path))


def parse_load(file: LoadFile, progress: Callable[[str], None], prefix: str | None = None, kinds: str = KINDS) -> Trace:
    """Read an opened file as `read_load` does; `kinds` are what an error names."""
    first = file.first.removeprefix(BYTE_ORDER_MARK)
    if not first:
        raise InputError(f"{file.path} has no rows")
    if not is_trace(first) and is_access_log(file.head):
        return read_access_log(file, progress, prefix)
    if prefix is not None:
        raise UsageError(f"--path wants an access log with URLs, and {file.path} is not one")
    if is_trace(first):
        return parse_trace(file.path, file.text(MAX_BYTES))
    shown = first[:_LONGEST].decode("utf-8", "replace")
    raise InputError(f"{file.path}, line 1: a load is {kinds}; not {shown!r}")


def load_name(path: Path) -> str:
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem
