"""CloudWatch's exports of a counting metric as loads: the Sum of Invocations, RequestCount, Count and the like.

Understood is what these write: `aws cloudwatch get-metric-data`, `aws cloudwatch get-metric-statistics` (JSON), and the
console's "Download as .csv": lines about the metric, then rows of a time and a value. Times without a zone are UTC, as
CloudWatch's are. The period is what the file says, or else the longest that all times are multiples of: CloudWatch
leaves out periods without a request, which have none here.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from serfer.core.errors import InputError
from serfer.cost.loads.access_logs import unix_time
from serfer.cost.loads.trace import MAX_ROWS, Trace, of_counts

EXPECTED: Final = (
    "CloudWatch's exports are the JSON of aws cloudwatch get-metric-data or get-metric-statistics (with Sum), and the "
    "console's CSV: rows of a time and the Sum of a period"
)
_SUMS: Final = {"sum", "samplecount", "sample count"}
_OTHERS: Final = {"average", "minimum", "maximum"}
_PERIOD: Final = re.compile(r"(\d{1,7})\s*(|s|sec|seconds?|min|minutes?|hours?|days?)", re.IGNORECASE)
_UNITS_S: Final = {"m": 60, "h": 3600, "d": 86400}
_MAX_HEADER: Final = 64  # lines of a CSV file before its first time
_MAX_PERIOD_S: Final = 30 * 86400
_LARGEST: Final = 1e12
_LAST: Final = 253_402_300_799.0  # of the year 9999, in Unix time


@dataclass(frozen=True)
class _Points:
    points: Sequence[tuple[str, float, float]]
    period_s: int | None = None


def read_cloudwatch_json(path: Path, text: str) -> Trace:
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise InputError(f"{path} is nested too deeply: {EXPECTED}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: {error.msg}: {EXPECTED}") from error
    except ValueError as error:  # numbers of thousands of digits
        raise InputError(f"{path} is not JSON: {error}") from error
    if isinstance(document, dict) and isinstance(document.get("MetricDataResults"), list):
        return _load(path, _Points([*_of_metric_data(path, document["MetricDataResults"])]))
    if isinstance(document, dict) and isinstance(document.get("Datapoints"), list):
        return _load(path, _Points([*_of_statistics(path, document["Datapoints"])]))
    raise InputError(f"{path} has neither MetricDataResults nor Datapoints: {EXPECTED}")


def _of_metric_data(path: Path, results: Sequence[Any]) -> Iterator[tuple[str, float, float]]:
    if not all(isinstance(one, dict) for one in results):
        raise InputError(f"{path}: MetricDataResults is a list of objects: {EXPECTED}")
    names = list(dict.fromkeys(f"{one.get('Id')} ({one.get('Label')})"[:60] for one in results))
    if len(names) != 1:
        listed = f": {', '.join(names[:5])}" if names else ""
        raise InputError(f"{path} has {len(names)} metrics{listed}: export one, whose values are the load")
    status = results[-1].get("StatusCode", "Complete")
    if status != "Complete":
        raise InputError(f"{path}: its StatusCode is {status!s:.40}, not Complete: export it again")
    for number, one in enumerate(results):
        times, values = one.get("Timestamps"), one.get("Values")
        if not isinstance(times, list) or not isinstance(values, list) or len(times) != len(values):
            raise InputError(f"{path}: MetricDataResults[{number}] has as many Timestamps as Values")
        for index, (time, value) in enumerate(zip(times, values, strict=True)):
            place = f"{path}: MetricDataResults[{number}], point {index}"
            yield place, _time(place, time), _value(place, value)


def _of_statistics(path: Path, points: Sequence[Any]) -> Iterator[tuple[str, float, float]]:
    for number, one in enumerate(points):
        place = f"{path}: Datapoints[{number}]"
        if not isinstance(one, dict) or "Sum" not in one:
            raise InputError(f"{place} has no Sum: export it with --statistics Sum")
        yield place, _time(place, one.get("Timestamp")), _value(place, one["Sum"])


def is_cloudwatch_csv(text: str) -> bool:
    lines = islice(StringIO(text), _MAX_HEADER)
    return any(unix_time(line.partition(",")[0].strip(' "\t\r\n')) is not None for line in lines)


def read_cloudwatch_csv(path: Path, text: str) -> Trace:
    header: dict[str, list[str]] = {}
    points: list[tuple[str, float, float]] = []
    reader = csv.reader(text.splitlines())
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            place = f"{path}, line {reader.line_num}"
            if not points and unix_time(cells[0]) is None:
                header[cells[0].lower().rstrip(":")] = cells[1:]
                continue
            points.append((place, _time(place, cells[0]), _cell(place, cells[1:])))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}: {EXPECTED}") from error
    return _load(path, _Points(points, _described(path, header)))


def _described(path: Path, header: Mapping[str, Sequence[str]]) -> int | None:
    words = {cell.lower() for cells in header.values() for cell in cells}
    statistic = {cell.lower() for cell in header.get("statistic", ()) if cell}
    if statistic - _SUMS or (not statistic and words & _OTHERS):
        wrong = ", ".join(sorted(statistic - _SUMS or words & _OTHERS))
        raise InputError(f"{path}: its statistic is {wrong[:60]}: export the Sum, which counts requests")
    text = next((cell for cell in header.get("period", ()) if cell), None)
    if text is None:
        return None
    found = _PERIOD.fullmatch(text)
    if found is None:
        raise InputError(f"{path}: a period is seconds, or as in '5 minutes', not {text[:40]!r}")
    return int(found[1]) * _UNITS_S.get(found[2][:1].lower(), 1)


def _cell(place: str, cells: Sequence[str]) -> float:
    if len(cells) != 1:
        raise InputError(f"{place}: a row is a time and the value of one metric, not {len(cells)} values")
    try:
        return _value(place, float(cells[0] or 0))  # CloudWatch has no point where nothing came
    except ValueError as error:
        raise InputError(f"{place}: a value is a number, not {cells[0][:40]!r}") from error


def _value(place: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        raise InputError(f"{place}: a value is a number from 0 to {_LARGEST:g}, not {value!s:.40}")
    return float(value)


def _time(place: str, value: object) -> float:
    known = unix_time(value) if isinstance(value, str) else value
    if isinstance(known, bool) or not isinstance(known, int | float) or not 0 <= known <= _LAST or known % 1:
        raise InputError(f"{place}: a time is as in 2026-11-25T13:55:00Z, in whole seconds, not {value!s:.40}")
    return float(known)


def _load(path: Path, given: _Points) -> Trace:
    points = sorted(given.points, key=lambda point: point[1])
    if not points:
        raise InputError(f"{path} has no points: CloudWatch has none for a time without requests")
    if len(points) > MAX_ROWS:
        raise InputError(f"{path} has more than {MAX_ROWS:,} points")
    times = np.array([int(time) for _, time, _ in points], dtype=np.int64)
    again = np.flatnonzero(np.diff(times) == 0)
    if again.size:
        place = points[int(again[0]) + 1][0]
        raise InputError(f"{place}: its time comes twice: export one metric, and each time once")
    period = given.period_s or math.gcd(*np.diff(times).tolist())
    if not 1 <= period <= _MAX_PERIOD_S:
        raise InputError(f"{path} does not say how long its period is: export more than {len(points)} point")
    numbers, rest = np.divmod(times - times[0], period)
    if rest.any():
        place = points[int(np.flatnonzero(rest)[0])][0]
        raise InputError(f"{place}: its time is not a multiple of the period, {period:,} s, after the first one")
    counts = np.array([value for _, _, value in points])
    return of_counts(path.stem, numbers, counts, period, float(times[0]))
