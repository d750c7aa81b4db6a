"""The record of an offline job, which lies in the store that drivers share, with its results beside it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from serfer.core.errors import MissingKeyError, PlanError, StoreError
from serfer.core.structure import Bounds, structure, unstructure
from storage.store import Store

SILENT_S: Final = 40.0
"""Seconds without a change after which a job that should run counts as interrupted: its driver was killed."""


class OfflineState(StrEnum):
    """How far a job is."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class OfflineRecord:
    """How far a job is: of its `images` so many are `answered`, and so many of these `failed`.

    `paused` says why nothing is asked now, "" where something is; `updated` is in seconds since the epoch. `notified`
    says what became of its notification, "" before that.
    """

    id: str
    model: str
    created: str
    images: int
    updated: float
    state: OfflineState = OfflineState.QUEUED
    answered: Annotated[int, Bounds(0)] = 0
    failed: Annotated[int, Bounds(0)] = 0
    paused: str = ""
    detail: str = ""
    notified: str = ""


class OfflineRecords:
    """Records and results of jobs, for whose owner alone each is found; methods block."""

    def __init__(self, store: Store, ttl_s: float) -> None:
        self._store = store
        self._coordination = store.coordination()
        self._ttl_s = ttl_s

    def read(self, owner: str, job: str) -> tuple[OfflineRecord, str] | None:
        """Return a record and its version; None where there is none, or it is another owner's."""
        entry = self._coordination.get(_key("job", owner, job))
        if entry is None:
            return None
        try:
            return structure(OfflineRecord, json.loads(entry.value), "job"), entry.version
        except (PlanError, ValueError) as error:
            raise StoreError("the record of an offline job was not written by this version") from error

    def write(self, owner: str, record: OfflineRecord, expected: str | None) -> str | None:
        """Write a record in place of a version of it, and return the new one; None where another is there."""
        value = json.dumps(unstructure(record)).encode()
        return self._coordination.compare_and_set(_key("job", owner, record.id), expected, value, self._ttl_s)

    def delete(self, owner: str, job: str) -> None:
        """Delete a record and its results."""
        self._coordination.delete([_key("job", owner, job)])
        self._store.delete([_key("job-lines", owner, job)])

    def put_lines(self, owner: str, job: str, lines: bytes) -> None:
        """Keep a job's results, JSON lines."""
        self._store.put(_key("job-lines", owner, job), lines, self._ttl_s)

    def lines(self, owner: str, job: str) -> bytes | None:
        """Return a job's results; None where there are none yet, or any more."""
        try:
            return bytes(self._store.get(_key("job-lines", owner, job)))
        except MissingKeyError:
            return None


def _key(kind: str, owner: str, job: str) -> str:
    return f"serfer:{kind}:{hashlib.sha256(f'{len(owner)}:{owner}:{job}'.encode()).hexdigest()}"
