"""A load's file, whatever recorded it: a trace's CSV, an access log, an export of CloudWatch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from serfer.core.errors import InputError, UsageError
from serfer.cost.loads.access_logs import is_access_log, read_access_log
from serfer.cost.loads.cloudwatch import is_cloudwatch_csv, read_cloudwatch_csv, read_cloudwatch_json
from serfer.cost.loads.lines import LoadFile, opened
from serfer.cost.loads.trace import COLUMN_NAMES, MAX_BYTES, Trace, is_trace, parse_trace

KINDS: Final = (
    f"the columns {COLUMN_NAMES}; an access log (common or combined log format, a load balancer's, CloudFront's, or a "
    "CSV file with a time in each row); CloudWatch's JSON or CSV of a Sum"
)
_LONGEST: Final = 60  # characters of a line in an error


def read_load(path: Path, progress: Callable[[str], None], prefix: str | None = None) -> Trace:
    """Read a load's file, plain or of gzip; of an access log with `prefix` the requests whose URL's path begins so.

    Raises InputError that names the file, the line and what is expected, UsageError for a `prefix` of what has no URLs.
    """
    with opened(path) as file:
        trace = _read(file, progress, prefix)
    return replace(trace, name=_name(path))


def _read(file: LoadFile, progress: Callable[[str], None], prefix: str | None) -> Trace:
    first = file.first.removeprefix(b"\xef\xbb\xbf")
    if not first:
        raise InputError(f"{file.path} has no rows")
    counted = is_trace(first) or first.startswith(b"{")
    if not counted and is_access_log(file.head):
        return read_access_log(file, progress, prefix)
    if prefix is not None:
        raise UsageError(f"--path wants an access log with URLs, and {file.path} is not one")
    if is_trace(first):
        return parse_trace(file.path, file.text(MAX_BYTES))
    if first.startswith(b"{"):
        return read_cloudwatch_json(file.path, file.text(MAX_BYTES))
    if b"," in first and is_cloudwatch_csv(text := file.text(MAX_BYTES)):
        return read_cloudwatch_csv(file.path, text)
    shown = first[:_LONGEST].decode("utf-8", "replace")
    raise InputError(f"{file.path}, line 1: a load is {KINDS}; not {shown!r}")


def _name(path: Path) -> str:
    """Return the file's name without its suffixes of kind and compression."""
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem
