"""Registrations that were sent over HTTP: one runs at a time in a driver, a few wait.

    POST ── form to disk ── unpacked ── submissions/ID.json "queued" ── 202
                                             │ a process, as `serfer app register` (serfer/variants/submitted.py)
    GET, any driver ◀── submissions/ID.json, registrations/ID.json ◀─┘ steps, heartbeats

A registration's id follows from the network's graph and weights, which are known only once it was read. What is sent
has a record and an id of its own from the first moment, a digest of what was sent, by which every driver finds it. What
was uploaded goes with its job, and with the driver; what is done of the registration stays in the registry.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import re
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

from serfer.api.http.problems import Problem
from serfer.api.jobs.processes import end, started
from serfer.api.jobs.runner import BUG, ActiveJob, JobRecord, JobState, Runner
from serfer.api.jobs.uploads import Uploads
from serfer.core.dataclass_codec import Bounds, structure
from serfer.core.errors import InputError, SerferError, UnavailableError
from serfer.core.variants import MAX_VARIANTS
from serfer.fleet.log_events import log_event
from serfer.registry import Registry
from serfer.registry.records import decode_record, encode_record
from serfer.registry.registration_record import SUBMISSIONS, document_name

if TYPE_CHECKING:
    from serfer.variants.submitted import SubmittedNetwork  # driver functions have none of what that imports

HEARTBEAT_S: Final = 5.0
WAITING: Final = 4
"""Registrations that wait while one runs."""
RECEIVED_AT_ONCE: Final = 2
"""Uploads that arrive at once."""
NETWORK_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}", re.ASCII)
"""Names of networks that are registered: variants have longer ones."""
_FILE: Final = {"format": "binary"}
FORMAT: Final = 1
_FULL: Final = f"one registration runs at a time and {WAITING} wait, {RECEIVED_AT_ONCE} arrive"
_MOST_TEXT: Final = 1000
_LONGEST_S: Final = 6 * 3600.0
_MOST_LINE: Final = 1 << 16


class RegistrationOptions(BaseModel):
    """The values of a form, as the options of `serfer app register`; `network` is a zoo name, unless it is a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = None
    name: Annotated[str | None, Field(pattern=rf"^{NETWORK_NAME.pattern}$")] = None
    output: Annotated[str | None, Field(pattern=r"^(softmax|sigmoid|none|boxes(:[a-z0-9.,=_-]{1,80})?)$")] = None
    most: Annotated[int | None, Field(ge=1, le=MAX_VARIANTS)] = None
    max_loss: Annotated[float | None, Field(ge=0, le=1)] = None
    latency_ms: Annotated[float | None, Field(gt=0, le=3_600_000)] = None
    instance: Annotated[str | None, Field(pattern=r"^[a-z0-9.-]{1,40}$")] = None
    usd_per_hour: Annotated[float | None, Field(gt=0, le=10_000)] = None
    size: Annotated[str | None, Field(pattern=r"^[1-9][0-9]{0,4}x[1-9][0-9]{0,4}$")] = None
    channels: Annotated[int, Field(ge=1, le=4096)] = 3

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """The input's channels, height and width, where they are given."""
        if self.size is None:
            return None
        height, width = map(int, self.size.split("x"))
        return self.channels, height, width


class RegistrationForm(RegistrationOptions):
    """The form as /openapi.json describes it."""

    network: Annotated[str, Field(description="An ONNX file, or the name of a network of the zoo.")]
    validation: Annotated[
        str | None, Field(description="A zip, tar or tar.gz of labelled images.", json_schema_extra=_FILE)
    ] = None
    preprocess: Annotated[str | None, Field(description="A file in TOML: how an image becomes the input.")] = None
    labels: Annotated[str | None, Field(description="A file with a class's name in each line.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission(JobRecord):
    """What was sent to be registered: `registration` is the id of its registration, "" before that is known.

    `driver` names the driver and the upload that it works on; `progress` is what is being done. `version` is the number
    that the network got, 0 before that, and `live` whether that answers queries.
    """

    application: str
    network: str
    created: str
    by: str
    driver: str = ""
    registration: str = ""
    progress: str = ""
    version: Annotated[int, Bounds(0)] = 0
    live: bool = False
    format: int = FORMAT
    DETAILS: ClassVar = {JobState.INTERRUPTED: "the service was stopped: hand it in again to go on"}

    def shares_run(self, other: Submission) -> bool:
        """Return whether one run has written both records: the same may be sent again, to any driver."""
        return self.driver == other.driver

    def encode(self) -> bytes:
        """Return its document."""
        bounded = replace(self, detail=self.detail[:_MOST_TEXT], progress=self.progress[:_MOST_TEXT])
        return encode_record(document_name(self.id, SUBMISSIONS), bounded)

    @classmethod
    def decode(cls, key: str, data: bytes) -> Submission:
        """Read its document; raises InputError that names it where it cannot be one."""
        record = decode_record(key, data, Submission, FORMAT)
        if document_name(record.id, SUBMISSIONS) != key:
            raise InputError(f"{key} of the registry is about another submission: delete it")
        return record


@dataclass(frozen=True, slots=True)
class Event:
    """What a process that registers a network says: see serfer/variants/submitted.py."""

    event: str
    text: str
    version: int = 0
    live: bool = False


def submission_id(parts: Mapping[str, object]) -> str:
    """Return the id of what was sent, 32 hex digits; `parts` are of JSON's types."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


async def register(network: SubmittedNetwork, on_event: Callable[[Event], Awaitable[None]]) -> Event:
    """Register a network in a process, pass on what that says, and return how it ended: the event done.

    Cancelled, it interrupts the process, which can go on later. Raises InputError or Problem with the reason of a
    failure.
    """
    process = await started("serfer.variants.submitted", network, limit=_MOST_LINE)
    try:
        async with asyncio.timeout(_LONGEST_S):
            return await _followed(process, on_event)
    except TimeoutError:
        raise _unavailable(f"it took more than {_LONGEST_S / 3600:g} hours") from None
    finally:
        await end(process, signal.SIGTERM)


async def _followed(process: asyncio.subprocess.Process, on_event: Callable[[Event], Awaitable[None]]) -> Event:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    async for line in process.stdout:
        event = structure(Event, json.loads(line), "event", error=UnavailableError)
        match event.event:
            case "done":
                return event
            case "failed":
                raise InputError(event.text)
            case "bug":
                log_event(logging.ERROR, "registration", message=event.text)
                raise Problem(HTTPStatus.INTERNAL_SERVER_ERROR, BUG)
        await on_event(event)
    raise _unavailable("its process was ended, by the system for want of memory perhaps")


def _unavailable(why: str) -> Problem:
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{why}: hand it in again to go on")


class Registrar:
    """The registrations of a driver; used on one event loop. `done` is called after each that ended well.

    `folder` is a place for uploads that drivers may share; `register` registers a network, in a process.
    """

    def __init__(
        self,
        registry: Registry,
        folder: Path,
        done: Callable[[], Awaitable[None]],
        register: Callable[[SubmittedNetwork, Callable[[Event], Awaitable[None]]], Awaitable[Event]] = register,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.registry = registry
        self.uploads = Uploads(folder, WAITING + 1, RECEIVED_AT_ONCE, _FULL)
        self._done = done
        self._register = register
        self._runner = Runner(
            registry.documents,
            Submission,
            lambda _: math.inf,
            "registration",
            heartbeat_s,
            is_gone=lambda found: self.uploads.is_gone(found.driver.partition("/")[0]),
        )

    async def find_open(self, submission: str) -> Submission | None:
        """Return a submission that waits or runs, here or in another driver; None where it is to be begun."""
        found = await self._runner.find(document_name(submission, SUBMISSIONS))
        return found if found and found.state.is_open else None

    async def begin(self, identifier: str, network: SubmittedNetwork, folder: Path) -> Submission:
        """Begin a registration of what was uploaded to a folder, unless it waits or runs, here or in another driver."""

        async def work(job: ActiveJob[Submission]) -> None:
            job.record = replace(job.record, state=JobState.RUNNING)

            async def on_event(event: Event) -> None:
                if event.event == "registration":
                    job.record = replace(job.record, registration=event.text)
                elif event.event == "progress":
                    job.record = replace(job.record, progress=event.text)

            done = await self._register(network, on_event)
            job.record = replace(job.record, version=done.version, live=done.live)

        async def after(job: ActiveJob[Submission]) -> None:
            await self.uploads.delete(folder)
            words = {"state": job.record.state.value, "message": job.record.detail[:300]}
            log_event(logging.INFO, "registration", application=network.application, **words)
            if job.record.state is JobState.DONE:
                with suppress(SerferError):  # the next list of the registry's applications has it
                    await self._done()

        now = self._runner.unix()
        created = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
        driver = f"{self.uploads.folder.name}/{folder.name}"
        fresh = Submission(
            id=identifier,
            updated=now,
            application=network.application,
            network=network.name,
            created=created,
            by=network.by,
            driver=driver,
        )
        begun = await self._runner.begin(document_name(identifier, SUBMISSIONS), fresh, work, after)
        if begun is fresh:
            self.uploads.keep(folder)
        return begun

    async def cancel(self, submission: str) -> None:
        """Stop a submission wherever it runs, and delete its record."""
        await self._runner.cancel(document_name(submission, SUBMISSIONS))

    async def close(self) -> None:
        """Interrupt what runs, so that it can go on later."""
        await self._runner.close()
        await self.uploads.close()
