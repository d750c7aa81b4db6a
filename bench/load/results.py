"""Results of a load: a round for each system in turn, as numbers, as files, and read again for comparing."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import InputError, PlanError
from serfer.files import write_whole
from serfer_bench.core.part_times import Times
from serfer_bench.core.processes import Held
from serfer_bench.core.results import RESULT_FILE
from serfer_bench.core.stamp import Stamp
from serfer_bench.core.system import Totals
from serfer_bench.core.workload import Sent

FORMAT = 1
QUERIES_FILE, PICTURE_FILE = "queries.csv", "picture.png"
_MAX_BYTES = 64 << 20
_MS_PER_S = 1000.0


@dataclass(frozen=True)
class Latency:
    """Of answered queries, in milliseconds from their scheduled arrivals."""

    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    mean: float


@dataclass(frozen=True)
class Failures:
    """The number of queries that ended with an error of a class, and the first one's message."""

    error: str
    count: int
    example: str


@dataclass(frozen=True)
class Round:
    """One load on one system. `latency` is None where no query was answered; means are of answered queries.

    `lag_ms` is the 99th percentile of how late the client itself sent: where it is not small beside the latencies, the
    client was the limit. `throughput` is answers a second, from the first arrival to the last answer.
    """

    system: str
    round: int
    sent: int
    answered: int
    failures: tuple[Failures, ...]
    seconds: float
    throughput: float
    latency: Latency | None
    lag_ms: float
    bytes_per_query: float
    polls_per_query: float
    usd_per_query: float | None
    cold: int | None
    retries: int | None
    hedges: int | None
    start: Held
    end: Held


@dataclass(frozen=True)
class Work:
    """The workload; two results are comparable where it is the same. Our driver's queries have `deadline_s`."""

    model: str
    input: str
    load: str
    queries: int
    concurrency: int
    workers: str
    deadline_s: float


@dataclass(frozen=True)
class Result:
    """A run of the bench: `warm_up` queries went to each system before its first round, and count nowhere."""

    format: int
    stamp: Stamp
    work: Work
    warm_up: int
    rounds: tuple[Round, ...]

    @property
    def systems(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.system for one in self.rounds))

    def of(self, system: str) -> list[Round]:
        return [one for one in self.rounds if one.system == system]


@dataclass(frozen=True)
class Log:
    """Every query of one round, and what its system timed of their parts."""

    system: str
    round: int
    queries: tuple[Sent[None], ...]
    times: Times = field(default_factory=dict)


def make_round(log: Log, spent: Totals, start: Held, end: Held) -> Round:
    answered = [query for query in log.queries if query.error is None]
    seconds = max(query.ended for query in log.queries) - min(query.scheduled for query in log.queries)
    count = len(answered)
    return Round(
        system=log.system,
        round=log.round,
        sent=len(log.queries),
        answered=count,
        failures=_failures(log.queries),
        seconds=seconds,
        throughput=count / seconds if seconds else 0.0,
        latency=_latency(answered),
        lag_ms=float(np.percentile([query.lag for query in log.queries], 99)) * _MS_PER_S,
        bytes_per_query=(spent.bytes_put + spent.bytes_get) / (count or 1),
        polls_per_query=spent.polls / (count or 1),
        usd_per_query=None if spent.usd is None else spent.usd / (count or 1),
        cold=spent.cold,
        retries=spent.retries,
        hedges=spent.hedges,
        start=start,
        end=end,
    )


def _latency(answered: Sequence[Sent[None]]) -> Latency | None:
    if not answered:
        return None
    times = np.array([query.latency for query in answered]) * _MS_PER_S
    p50, p90, p95, p99 = (float(value) for value in np.percentile(times, (50, 90, 95, 99)))
    return Latency(p50, p90, p95, p99, float(times.max()), float(times.mean()))


def _failures(queries: Iterable[Sent[None]]) -> tuple[Failures, ...]:
    failed = [query for query in queries if query.error is not None]
    first = {query.error: query.message for query in reversed(failed)}
    counts = Counter(query.error for query in failed)
    return tuple(Failures(str(error), count, first[error]) for error, count in counts.most_common())


def write_result(out: Path, result: Result, logs: Sequence[Log]) -> None:
    write_whole(out / RESULT_FILE, (json.dumps(unstructure(result), indent=1) + "\n").encode())
    write_whole(out / QUERIES_FILE, queries_csv(logs).encode())


def queries_csv(logs: Sequence[Log]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("system", "round", "query", "scheduled_s", "started_s", "ended_s", "latency_ms", "error"))
    for log in logs:
        for one in log.queries:
            times = (f"{value:.6f}" for value in (one.scheduled, one.started, one.ended))
            rows.writerow(
                (log.system, log.round, one.number, *times, f"{one.latency * _MS_PER_S:.3f}", one.error or "")
            )
    return text.getvalue()


def read_result(path: Path) -> Result:
    file = path / RESULT_FILE if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > _MAX_BYTES:
        raise InputError(f"{file} is larger than {_MAX_BYTES:,} bytes: not a result of serfer bench")
    return _parsed(file, data)


def _parsed(file: Path, data: bytes) -> Result:
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not JSON: give the result.json of serfer bench burst") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise InputError(f"{file} is not a result of serfer bench burst, or of another version")
    try:
        return structure(Result, value, file.name)
    except PlanError as error:
        raise InputError(f"{file} is not a result of serfer bench burst: {error}") from error
