"""Loads over time: queries a second, each rate held for a while, read from CSV files and cut and scaled.

A file has the columns `t_seconds,rps` (queries a second from that time on: a rate is held until the next row, the last
one for as long as the one before it) or `minute,requests` (queries in that minute: in minutes without a row none came).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError, UsageError

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_ROWS: Final = 4_000_000
_LARGEST: Final = 1e9
_S_PER_MINUTE: Final = 60.0
_SECONDS, _MINUTES = ("t_seconds", "rps"), ("minute", "requests")
COLUMN_NAMES: Final = " or ".join(",".join(names) for names in (_SECONDS, _MINUTES))

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trace:
    """A load: `rates` queries a second, held for `durations_s` seconds, row by row; arrays (rows,), never empty.

    `begin_s` is the time of its first row on the clock of the file: what is given as a time of the load refers to it.
    `remarks` say what of its file was left out, `paths` which URLs were counted, where there are any.
    """

    name: str
    durations_s: Floats
    rates: Floats
    begin_s: float = 0.0
    remarks: tuple[str, ...] = ()
    paths: str = ""

    @classmethod
    def steady(cls, name: str, seconds: float, rate: float) -> Trace:
        return cls(name, np.array([seconds]), np.array([rate]))

    @property
    def seconds(self) -> float:
        return float(self.durations_s.sum())

    @property
    def queries(self) -> float:
        return float(self.durations_s @ self.rates)

    @property
    def mean(self) -> float:
        return self.queries / self.seconds

    @property
    def peak(self) -> float:
        return float(self.rates.max())

    @property
    def starts_s(self) -> Floats:
        """The start of each row, and the end of the last one: (rows + 1,)."""
        return np.concatenate(([0.0], np.cumsum(self.durations_s)))

    def scaled(self, factor: float) -> Trace:
        return replace(self, rates=self.rates * factor)

    def remarked(self, *remarks: str) -> Trace:
        return replace(self, remarks=tuple(remark for remark in remarks if remark))

    def resampled(self, step_s: float) -> Trace:
        """Return the trace with rows of `step_s` seconds, the last of which may be shorter: its mean rate in each."""
        edges = np.append(np.arange(0.0, self.seconds * (1 - 1e-12), step_s), self.seconds)
        until = np.interp(edges, self.starts_s, np.concatenate(([0.0], np.cumsum(self.durations_s * self.rates))))
        return replace(self, durations_s=np.diff(edges), rates=np.diff(until) / np.diff(edges))

    def cut(self, from_s: float = 0.0, until_s: float = math.inf) -> Trace:
        starts = self.begin_s + self.starts_s
        begins, ends = np.maximum(starts[:-1], from_s), np.minimum(starts[1:], until_s)
        kept = ends > begins
        if not kept.any():
            raise UsageError(
                f"nothing of {self.name} lies between --from {from_s:.10g} and --until {until_s:.10g}: it begins at "
                f"{self.begin_s:.10g} and ends at {self.begin_s + self.seconds:.10g} seconds"
            )
        durations, begin = (ends - begins)[kept], float(begins[kept][0])
        return replace(self, durations_s=durations, rates=self.rates[kept], begin_s=begin)


def is_trace(first: bytes) -> bool:
    return _columns(first.decode("utf-8", "replace")) in (_SECONDS, _MINUTES)


def _columns(line: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in line.split(","))


def parse_trace(path: Path, text: str) -> Trace:
    """Read the text of a trace's CSV file; raises InputError that names the file, the line and what is wrong."""
    lines = text.splitlines() if text.count("\n") <= MAX_ROWS else []
    if not lines:
        raise InputError(f"{path} has {f'more than {MAX_ROWS:,}' if text else 'no'} rows")
    names = _columns(lines[0])
    if names not in (_SECONDS, _MINUTES):
        raise InputError(f"{path}, line 1: the columns are {COLUMN_NAMES}, not {lines[0][:60]!r}")
    rows = _rows(path, lines)
    times, values = np.array([time for time, _ in rows]), np.array([value for _, value in rows])
    if names == _MINUTES:
        return _per_minute(path, times, values)
    steps = np.diff(times)
    return Trace(path.stem, np.append(steps, steps[-1] if steps.size else 1.0), values, float(times[0]))


def _per_minute(path: Path, minutes: Floats, counts: Floats) -> Trace:
    broken = np.flatnonzero(minutes % 1)
    if broken.size:
        raise InputError(f"{path}: minutes are whole numbers, not {minutes[broken[0]]:g}: give {','.join(_SECONDS)}")
    return of_counts(path.stem, minutes.astype(np.int64), counts, _S_PER_MINUTE)


def of_counts(name: str, numbers: NDArray[np.int64], counts: Floats, step_s: float, zero_s: float = 0.0) -> Trace:
    """Return counts of queries as a load: (n,) in steps of `step_s` seconds with ascending numbers.

    In the steps between them no queries came. Step 0 begins at `zero_s`.
    """
    gaps = np.diff(numbers) - 1
    before = np.flatnonzero(gaps) + 1  # rows that come after a gap
    durations = np.insert(np.ones(len(numbers)), before, gaps[before - 1])
    rates = np.insert(counts / step_s, before, 0.0)
    return Trace(name, durations * step_s, rates, float(numbers[0]) * step_s + zero_s)


def _rows(path: Path, lines: list[str]) -> list[tuple[float, float]]:
    rows: list[tuple[float, float]] = []
    before = -math.inf
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        time, value = _row(path, number, line)
        if time <= before:
            raise InputError(f"{path}, line {number}: times ascend, but {time:g} comes after {before:g}")
        before = time
        rows.append((time, value))
    if not rows:
        raise InputError(f"{path} has columns and no rows")
    return rows


def _row(path: Path, number: int, line: str) -> tuple[float, float]:
    parts = line.split(",")
    try:
        time, value = (float(part) for part in parts)
    except ValueError as error:
        raise InputError(f"{path}, line {number}: two numbers are a row, not {line[:60]!r}") from error
    if not (0 <= time <= _LARGEST and 0 <= value <= _LARGEST):  # nor is it NaN
        raise InputError(f"{path}, line {number}: numbers are 0 to {_LARGEST:g}, not {line[:60]!r}")
    return time, value
