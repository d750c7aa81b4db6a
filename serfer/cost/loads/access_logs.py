"""Access logs as loads: how many requests came in each second.

Understood are the common and the combined log format (nginx, Apache, with or without a virtual host before them), the
logs of AWS's load balancers (application and classic ones) and of CloudFront (standard, with tabs), and CSV files with
a row for each request. Of a line its time counts, and the path of its URL: health checks are no queries. Times may have
any zone, each line its own, and lines any order: servers write a request when it is answered. Lines that are not of the
file's format are counted and left out, as logs are cut off, and servers write what clients sent.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from serfer.core.errors import InputError
from serfer.cost.loads.lines import LoadFile
from serfer.cost.loads.trace import Trace, of_counts

MAX_COUNTS: Final = 1_000_000
"""Seconds with requests that are counted one by one; a log with more is counted in longer steps."""
_STEPS_S: Final = (1, 10, 60)
_REPORT: Final = 200_000  # lines between two reports of progress
_SHOWN: Final = 60  # characters of a line in a message
_LAST: Final = 253_402_300_799.0  # of the year 9999, in Unix time
_MONTHS: Final = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_DATE: Final = re.compile(r"\d{4}[-/]\d\d")
_COMMON: Final = re.compile(rb"(?:^|\s)\[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d):(\d\d) ([+-]\d{4})\]")
_BALANCER: Final = re.compile(rb"(?:(?:https?|h2|grpcs|wss?) )?(\d{4}-\d\d-\d\dT\d\d:\d\d):(\d\d)(?:\.\d{1,9})?Z \S")
_CREATED: Final = re.compile(rb'" (?:-|-?\d+) (\d{4}-\d\d-\d\dT\d\d:\d\d):(\d\d)(?:\.\d{1,9})?Z "')
_CLOUDFRONT: Final = re.compile(rb"(\d{4}-\d\d-\d\d)\t(\d\d:\d\d):(\d\d)\t")
_URL_PATH: Final = re.compile(rb"""(?:"[A-Z]{1,20} |[\t,;]"?)(?:[a-z]{1,10}://[^/\s",;]*)?(/[^\s",;?]*)""")
"""The path of the URL in a request as "GET /a HTTP/1.1", in a field of CloudFront's, or in a cell of a CSV file."""
_METHOD: Final = re.compile(rb"""["\t,;](?:HEAD|OPTIONS)["\t,; ]""")
_CHECKS: Final = re.compile(rb"/(?:health|healthz|livez|readyz|metrics|ping|favicon\.ico|v2/health/\w+)/?")
_MOST_PATHS: Final = 10_000  # that are counted by name
_SHOWN_PATHS: Final = 3
_OF_METRICS: Final = ("full label", "label", "period", "statistic")
"""Names of the lines about the metric in CloudWatch's CSV."""
_SEPARATORS: Final = (",", ";", "\t")
_NUMBER: Final = re.compile(r"-?\d*\.?\d*(?:[eE][+-]?\d+)?")
_UNIX: Final = re.compile(r"(\d{9,10})(?:\.\d{1,9})?|(\d{10})\d{3}")

_Parse = Callable[[bytes], int | None]


def is_access_log(head: Sequence[bytes]) -> bool:
    return _format_of(head) is not None


def read_access_log(log: LoadFile, progress: Callable[[str], None], prefix: str | None = None) -> Trace:
    """Count the requests of each second, those whose URL's path begins with `prefix` if it is given.

    Without it health checks and metrics are left out, and so are HEAD and OPTIONS in any case.

    The load begins with the first request, on the clock of the world (Unix time), and ends with the last one; its
    remarks say what was left out. Raises InputError for a log without such requests.
    """
    parse, start = _format_of(log.head) or _common, None if prefix is None else prefix.encode()
    names = parse not in _FORMATS  # a CSV file may begin with those of its columns
    counts: dict[int, int] = {}
    step_s = _STEPS_S[0]
    lines, wrong, example = 0, 0, ""
    paths, left_out = Counter[bytes](), Counter[str]()
    for number, line in log.lines():
        if number % _REPORT == 0:
            progress(f"reading {log.path.name}: {number:,} lines")
        if line.startswith(b"#"):  # CloudFront's own lines about its fields
            continue
        lines += 1
        second = parse(line)
        if second is None:
            if not (names and lines == 1):
                wrong += 1
                example = example or f"line {number}, {line[:_SHOWN].decode('utf-8', 'replace')!r}"
            continue
        path = _path_of(line)
        if kind := _not_queries(line, path, start):
            left_out[kind] += 1
            continue
        if path in paths or len(paths) < _MOST_PATHS:
            paths[path] += 1
        key = second // step_s
        counts[key] = counts.get(key, 0) + 1
        if len(counts) > MAX_COUNTS:
            step_s, counts = _coarser(log.path, step_s, counts)
    if not counts:
        only = "all of them health checks" if prefix is None else f"none to a path that begins with {prefix!r}"
        raise InputError(f"{log.path} has {left_out.total():,} requests, {only}: give another --path")
    steps = np.array(sorted(counts), dtype=np.int64)
    trace = of_counts(log.path.stem, steps, np.array([counts[step] for step in steps.tolist()]), step_s)
    left = f"{wrong:,} of {lines:,} lines are not of its format and were left out; the first is {example}"
    remarks = (f"{count:,} {kind} were left out" for kind, count in left_out.items())
    return replace(trace, paths=_in_words(paths)).remarked(left if wrong else "", *remarks)


def _not_queries(line: bytes, path: bytes, start: bytes | None) -> str:
    if start is not None and not path.startswith(start):
        return "requests to other paths"
    checks = _METHOD.search(line) or (start is None and _CHECKS.fullmatch(path))
    return "health checks, HEAD and OPTIONS" if checks else ""


def _in_words(paths: Counter[bytes]) -> str:
    total, more = sum(paths.values()), len(paths) - _SHOWN_PATHS
    commonest = (
        f"{path[:_SHOWN].decode('utf-8', 'replace')} ({count / total:.0%})"
        for path, count in paths.most_common(_SHOWN_PATHS)
        if path
    )
    words = ", ".join(commonest)
    return f"{words} and {more:,} other paths" if words and more > 0 else words


def _coarser(path: Path, step_s: int, counts: dict[int, int]) -> tuple[int, dict[int, int]]:
    longer = next((step for step in _STEPS_S if step > step_s), None)
    if longer is None:
        raise InputError(f"{path} has requests in more than {MAX_COUNTS:,} minutes: give a part of it")
    merged: dict[int, int] = {}
    for key, count in counts.items():
        place = key * step_s // longer
        merged[place] = merged.get(place, 0) + count
    return longer, merged


def _format_of(head: Sequence[bytes]) -> _Parse | None:
    known = (parse for line in head for parse in _FORMATS if parse(line) is not None)
    return next(known, None) or _times_of(head)


def _path_of(line: bytes) -> bytes:
    found = _URL_PATH.search(line)
    return found[1] if found else b""


def _times_of(head: Sequence[bytes]) -> _Parse | None:
    """None for rows of a metric count, which has lines about itself, and for rows of dates and numbers alone."""
    for line in head:
        cells = _separated(line)
        if cells and cells[0].lower().rstrip(":") in _OF_METRICS:
            return None
        place = next((place for place, cell in enumerate(cells or ()) if _cell_time(cell) is not None), None)
        if cells is None or place is None:
            continue
        others = [cell for other, cell in enumerate(cells) if other != place]
        dated = _UNIX.fullmatch(cells[place]) is None
        if dated and others and all(_NUMBER.fullmatch(cell) for cell in others):
            return None
        return partial(_row_time, place)
    return None


def _row_time(place: int, line: bytes) -> int | None:
    cells = _separated(line)
    known = _cell_time(cells[place]) if cells is not None and place < len(cells) else None
    return None if known is None else int(known)


def _separated(line: bytes) -> list[str] | None:
    try:
        text = line.decode("utf-8-sig")
        mark = next((mark for mark in _SEPARATORS if mark in text), ",")
        [cells] = islice(csv.reader([text], delimiter=mark), 1)
    except (ValueError, csv.Error):
        return None
    return [cell.strip() for cell in cells]


def _cell_time(cell: str) -> float | None:
    """Return the Unix time of a date, or of seconds or milliseconds since 1970 of today's length."""
    found = _UNIX.fullmatch(cell)
    if found is not None:
        return float(found[1] or found[2])
    known = unix_time(cell)
    return known if known is not None and 0 <= known <= _LAST else None


def unix_time(text: str) -> float | None:
    """Return the Unix time of a date and time, in UTC where it names no zone; None where it is none."""
    if not _DATE.match(text):
        return None
    try:
        time = datetime.fromisoformat(text.replace("/", "-"))
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _common(line: bytes) -> int | None:
    found = _COMMON.search(line)
    if found is None:
        return None
    minute = _common_minute(found[1], found[3])
    return None if minute is None else minute + int(found[2])


def _balancer(line: bytes) -> int | None:
    """Return the second in which a load balancer's request was created, or answered where its log has no more."""
    found = _BALANCER.match(line)
    if found is None:
        return None
    found = _CREATED.search(line) or found
    minute = _iso_minute(found[1])
    return None if minute is None else minute + int(found[2])


def _cloudfront(line: bytes) -> int | None:
    """Return the second in which CloudFront answered a request: its logs have no other."""
    found = _CLOUDFRONT.match(line)
    if found is None:
        return None
    minute = _iso_minute(found[1] + b"T" + found[2])
    return None if minute is None else minute + int(found[3])


_FORMATS: Final[tuple[_Parse, ...]] = (_balancer, _cloudfront, _common)


@lru_cache(4096)
def _common_minute(text: bytes, zone: bytes) -> int | None:
    """Return the second at which a minute as in 25/Nov/2026:13:55 begins; None where there is no such minute."""
    try:
        offset = timedelta(hours=int(zone[:3]), minutes=int(zone[:1] + zone[3:]))
        return _second(
            int(text[7:11]), _MONTHS.index(text[3:6]) + 1, int(text[:2]), int(text[12:14]), int(text[15:17]), offset
        )
    except ValueError:
        return None


@lru_cache(4096)
def _iso_minute(text: bytes) -> int | None:
    try:
        return int(datetime.fromisoformat(text.decode()).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None


def _second(year: int, month: int, day: int, hour: int, minute: int, offset: timedelta) -> int:
    return int(datetime(year, month, day, hour, minute, tzinfo=timezone(offset)).timestamp())
