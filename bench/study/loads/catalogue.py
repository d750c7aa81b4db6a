"""Public traces that pages of results use: where they are, whose they are, and how they become loads' CSV files.

counts   a tar file of bzip2 whose one member has a count for each second ──> counts of whole minutes, or seconds
times    a CSV file whose first column has a date and time in each row ──> counts of seconds from the first one on
rates    a rate in each line ──> rates, each held for `step_s` seconds
"""

from __future__ import annotations

import bz2
import io
import tarfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Final, Literal

import numpy as np

from serfer.core.dataclass_codec import LATER, structure
from serfer.core.errors import InputError
from serfer.core.units import MIB
from serfer.cost.loads.trace import MAX_BYTES, MAX_ROWS

MAX_SOURCE_BYTES: Final = 16 * MIB
_CATALOGUE: Final = Path(__file__).with_name("catalogue.toml")
_UNREADABLE: Final = (tarfile.TarError, ValueError, TypeError, ArithmeticError, LookupError, EOFError, OSError)
_MINUTE_S: Final = 60
_MICROSECONDS: Final = 26  # characters of a date and time as far as Python reads it; Azure has seven digits


@dataclass(frozen=True)
class PublicTrace:
    """A trace: a file of a GitHub repository at a commit, and the SHA-256 of the CSV file that it is converted into.

    `step_s` is the length of a row, `rows` how many are taken from the beginning, 0 for all.
    """

    about: str
    repository: str
    commit: str
    path: str
    licence: str
    form: Literal["counts", "times", "rates"]
    step_s: int
    sha256: str
    rows: int = field(default=0, metadata=LATER)

    def address(self, host: str) -> str:
        return f"{host.rstrip('/')}/{self.repository}/{self.commit}/{self.path}"

    def converted(self, source: bytes) -> bytes:
        if len(source) > MAX_SOURCE_BYTES:
            raise InputError(f"{self.path} has more than {MAX_SOURCE_BYTES:,} bytes")
        try:
            return _FORMS[self.form](self, source)
        except _UNREADABLE as error:
            raise InputError(f"{self.path} is not what it is said to be ({self.form}): {error}") from error


@cache
def catalogue() -> Mapping[str, PublicTrace]:
    tables = tomllib.loads(_CATALOGUE.read_text(encoding="utf-8"))
    return {name: structure(PublicTrace, table, name, error=InputError) for name, table in tables.items()}


def _of_counts(trace: PublicTrace, source: bytes) -> bytes:
    unpacked = bz2.BZ2Decompressor().decompress(source, MAX_BYTES + 1)
    if len(unpacked) > MAX_BYTES:
        raise InputError(f"{trace.path} has more than {MAX_BYTES:,} bytes, unpacked")
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as archive:
        member = archive.next()
        content = archive.extractfile(member) if member else None
        counts = np.array(content.read().split() if content else (), np.int64)
    whole = len(counts) // trace.step_s * trace.step_s  # the last minute may be part of one
    steps = counts[:whole].reshape(-1, trace.step_s).sum(axis=1)[: trace.rows or None]
    if trace.step_s == _MINUTE_S:
        return _csv("minute,requests", range(len(steps)), steps)
    return _csv("t_seconds,rps", range(len(steps)), steps)


def _of_times(trace: PublicTrace, source: bytes) -> bytes:
    del trace
    lines = source.decode().splitlines()[1:]
    times = [datetime.fromisoformat(line.partition(",")[0][:_MICROSECONDS]) for line in lines]
    seconds = [int((time - times[0]).total_seconds()) for time in times]
    if not 0 <= max(seconds, default=-1) < MAX_ROWS:
        raise ValueError(f"it has no times, or more than {MAX_ROWS:,} seconds")
    counts = np.bincount(seconds)
    return _csv("t_seconds,rps", range(len(counts)), counts)


def _of_rates(trace: PublicTrace, source: bytes) -> bytes:
    rates = np.array(source.split(), np.float64)
    return _csv("t_seconds,rps", range(0, len(rates) * trace.step_s, trace.step_s), rates)


def _csv(head: str, times: Iterable[int], values: Iterable[float]) -> bytes:
    rows = "".join(f"{time},{value:.15g}\n" for time, value in zip(times, values, strict=True))
    return f"{head}\n{rows}".encode()


_FORMS: Final[Mapping[str, Callable[[PublicTrace, bytes], bytes]]] = {
    "counts": _of_counts,
    "times": _of_times,
    "rates": _of_rates,
}
