"""A load's file, whatever recorded it: what `serfer cost` reads, or an export of CloudWatch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from serfer.cost.loads.access_logs import is_access_log
from serfer.cost.loads.lines import LoadFile, opened
from serfer.cost.loads.reading import BYTE_ORDER_MARK, KINDS, load_name, parse_load
from serfer.cost.loads.trace import MAX_BYTES, Trace, is_trace
from serfer_bench.study.loads.cloudwatch import is_cloudwatch_csv, read_cloudwatch_csv, read_cloudwatch_json

_KINDS: Final = f"{KINDS}; CloudWatch's JSON or CSV of a Sum"


def read_load(path: Path, progress: Callable[[str], None]) -> Trace:
    """Read a load's file, plain or of gzip; raises InputError that names the file, the line and what is expected."""
    with opened(path) as file:
        load = _read_cloudwatch(file) or parse_load(file, progress, kinds=_KINDS)
    return replace(load, name=load_name(path))


def _read_cloudwatch(file: LoadFile) -> Trace | None:
    first = file.first.removeprefix(BYTE_ORDER_MARK)
    if first.startswith(b"{"):
        return read_cloudwatch_json(file.path, file.text(MAX_BYTES))
    if b"," not in first or is_trace(first) or is_access_log(file.head):
        return None
    text = file.text(MAX_BYTES)
    return read_cloudwatch_csv(file.path, text) if is_cloudwatch_csv(text) else None
