"""What was handed in over HTTP to be registered: a record beside that of its registration, which has the steps.

A registration's id follows from the network's graph and weights, which are known only once it was read. What is handed
in has an id of its own from the first moment, a digest of what was sent, by which every driver finds it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Final

from serfer.core.errors import InputError, UsageError
from serfer.core.structure import Bounds
from serfer.registry.records import decode_record, encode_record
from serfer.registry.store import RegistryStore

FOLDER: Final = "submissions/"
FORMAT: Final = 1
SILENT_S: Final = 40.0
"""Seconds without a change after which a submission counts as left by its driver."""
_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MOST_TEXT: Final = 1000


class SubmissionState(StrEnum):
    """How far a submission is; one that is interrupted or failed goes on when the same is handed in again."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Submission:
    """What was handed in: `registration` is the id of its registration, "" before that is known.

    `driver` works on it; `updated` is when that wrote last, in seconds since the epoch; `detail` says why it
    failed, `progress` what is being done. `version` is the number that the network got, 0 before that, and `live`
    whether that answers queries.
    """

    id: str
    application: str
    network: str
    created: str
    by: str
    updated: float
    driver: str = ""
    state: SubmissionState = SubmissionState.QUEUED
    registration: str = ""
    progress: str = ""
    detail: str = ""
    version: Annotated[int, Bounds(0)] = 0
    live: bool = False
    format: int = FORMAT

    @property
    def is_open(self) -> bool:
        """Whether it waits or runs, as far as it says."""
        return self.state in (SubmissionState.QUEUED, SubmissionState.RUNNING)

    @property
    def is_resumable(self) -> bool:
        """Whether it has ended without a network, so that the same may be handed in again."""
        return self.state in (SubmissionState.FAILED, SubmissionState.INTERRUPTED)

    def is_silent(self, now: float) -> bool:
        """Whether it should wait or run, and its driver has not written for long; `now` in seconds since the epoch."""
        return self.is_open and now - self.updated > SILENT_S


@dataclass(frozen=True, slots=True)
class Held:
    """A submission as it was read or written, and its version in the registry."""

    submission: Submission
    version: str


def submission_id(parts: Mapping[str, object]) -> str:
    """Return the id of what was handed in, 32 hex digits; `parts` are of JSON's types."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def read(store: RegistryStore, submission: str) -> Held | None:
    """Return a submission, None where there is none; raises UsageError for what cannot be an id."""
    name = document_name(submission)
    document = store.read(name)
    if document is None:
        return None
    record = decode_record(name, document.data, Submission, FORMAT)
    if record.id != submission:
        raise InputError(f"{name} of the registry is about another submission: delete it")
    return Held(record, document.version)


def write(store: RegistryStore, submission: Submission, expected: str | None) -> Held | None:
    """Write a submission in place of a version of it (None: of nothing); None where another one is there by now."""
    name = document_name(submission.id)
    bounded = replace(submission, detail=submission.detail[:_MOST_TEXT], progress=submission.progress[:_MOST_TEXT])
    version = store.compare_and_set(name, expected, encode_record(name, bounded))
    return Held(bounded, version) if version is not None else None


def document_name(submission: str) -> str:
    """Return the name of a submission's document; raises UsageError for what cannot be an id."""
    if not _ID.fullmatch(submission):
        raise UsageError(f"{submission!r:.100} is not the id of a registration: give 32 hex digits")
    return f"{FOLDER}{submission}.json"
