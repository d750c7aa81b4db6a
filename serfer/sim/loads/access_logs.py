"""Access logs as loads: how many requests came in each second.

Understood are the common and the combined log format (nginx, Apache, with or without a virtual host before them) and
the logs of AWS's load balancers (application and classic ones). Of a line only its time counts. Times may have any
zone, each line its own, and lines any order: servers write a request when it is answered.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from serfer.core.errors import InputError
from serfer.sim.loads.lines import LoadFile
from serfer.sim.traces import Trace, of_counts

EXPECTED: Final = (
    "a line of an access log has its time as [25/Nov/2026:13:55:36 +0000], or is an entry of a load balancer's log, as "
    "in 'https 2026-11-25T13:55:36.186641Z app/...'"
)
MAX_COUNTS: Final = 1_000_000
"""Seconds with requests that are counted one by one; a log with more is counted in longer steps."""
_STEPS_S: Final = (1, 10, 60)
_REPORT: Final = 200_000  # lines between two reports of progress
_MONTHS: Final = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_COMMON: Final = re.compile(rb"(?:^|\s)\[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d):(\d\d) ([+-]\d{4})\]")
_BALANCER: Final = re.compile(rb"(?:(?:https?|h2|grpcs|wss?) )?(\d{4}-\d\d-\d\dT\d\d:\d\d):(\d\d)(?:\.\d{1,9})?Z \S")
_CREATED: Final = re.compile(rb'" (?:-|-?\d+) (\d{4}-\d\d-\d\dT\d\d:\d\d):(\d\d)(?:\.\d{1,9})?Z "')

_Parse = Callable[[bytes], int | None]


def is_access_log(first: bytes) -> bool:
    """Return whether a file whose first line is this one is an access log."""
    return _format_of(first) is not None


def read_access_log(log: LoadFile, progress: Callable[[str], None]) -> Trace:
    """Count the requests of each second; raises InputError that names the file, the line and what is expected.

    The load begins with the first request, on the clock of the world (Unix time), and ends with the last one.
    """
    parse = _format_of(log.first) or _common
    counts: dict[int, int] = {}
    step_s = _STEPS_S[0]
    for number, line in log.lines():
        second = parse(line)
        if second is None:
            raise InputError(f"{log.path}, line {number}: {EXPECTED}, not {line[:60].decode('utf-8', 'replace')!r}")
        key = second // step_s
        counts[key] = counts.get(key, 0) + 1
        if len(counts) > MAX_COUNTS:
            step_s, counts = _coarser(log.path, step_s, counts)
        if number % _REPORT == 0:
            progress(f"reading {log.path.name}: {number:,} lines")
    steps = np.array(sorted(counts), dtype=np.int64)
    return of_counts(log.path.stem, steps, np.array([counts[step] for step in steps.tolist()]), step_s)


def _coarser(path: Path, step_s: int, counts: dict[int, int]) -> tuple[int, dict[int, int]]:
    """Return the next longer step, with the counts in it; raises InputError where there is none."""
    longer = next((step for step in _STEPS_S if step > step_s), None)
    if longer is None:
        raise InputError(f"{path} has requests in more than {MAX_COUNTS:,} minutes: give a part of it")
    merged: dict[int, int] = {}
    for key, count in counts.items():
        place = key * step_s // longer
        merged[place] = merged.get(place, 0) + count
    return longer, merged


def _format_of(first: bytes) -> _Parse | None:
    return next((parse for parse in (_balancer, _common) if parse(first) is not None), None)


def _common(line: bytes) -> int | None:
    """Return the second of a line in the common log format."""
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
