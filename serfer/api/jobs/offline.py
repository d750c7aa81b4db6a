"""Offline jobs of a driver: one runs at a time, image by image, while online queries leave room (INFaaS, section 5).

POST ── images listed ──────────────── record "queued" ── 202
                                          │ an image at a time, where the throttle lets one start
GET, any driver ◀── record: answered, paused and why ◀─┤
GET .../results ◀── JSON lines, once it has ended ◀────┘
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from serfer.api.admission import Places
from serfer.api.http.problems import Problem, problem_of
from serfer.api.jobs.runner import ActiveJob, JobRecord, JobState, Runner, job_key
from serfer.control.throttle import PERIOD_S, OfflineThrottle, OnlineLoad
from serfer.core.dataclass_codec import Bounds
from serfer.core.errors import ImageError, ImageTooLargeError, InputError, MissingKeyError, SerferError
from serfer.images import SUFFIXES, image_files
from serfer.storage.store import Store

if TYPE_CHECKING:
    from serfer.storage.s3.client import S3Client

MOST_JOBS: Final = 4
"""Jobs that run or wait in a driver."""
MOST_LINES_BYTES: Final = 32 * 1024 * 1024
"""Bytes of a job's results."""
_RETRY_S: Final = 30.0  # until a job that was refused may come again
_TRIES: Final = 5  # of an image for which there was no room


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineRecord(JobRecord):
    """How far a job is: of its `images` so many are `answered`, and so many of these `failed`.

    `paused` says why nothing is asked now, "" where something is.
    """

    model: str
    created: str
    images: int
    answered: Annotated[int, Bounds(0)] = 0
    failed: Annotated[int, Bounds(0)] = 0
    paused: str = ""
    DETAILS: ClassVar = {
        JobState.INTERRUPTED: "the service was stopped: what was answered is in the results",
        JobState.SILENT: "its driver was killed: send it again",
    }


@dataclass(frozen=True)
class OfflineJob:
    """What is to be done: images by name, and what answers one of them with the report of a query."""

    owner: str
    model: str
    images: Sequence[str]
    answer: Callable[[str], Awaitable[dict[str, Any]]] = field(repr=False)


class OfflineJobs:
    """The jobs of a driver, and the records of all drivers', kept for `ttl_s` seconds; used on one event loop.

    Their `images` are those of one place; `load` says how much online load the driver has now. A job is found for its
    owner alone.
    """

    def __init__(
        self, store: Store, ttl_s: float, images: JobImages, load: Callable[[], OnlineLoad], period_s: float = PERIOD_S
    ) -> None:
        self.images = images
        self._places = Places(MOST_JOBS, f"{MOST_JOBS} offline jobs are here already", between_s=lambda: _RETRY_S)
        self._store = store
        self._ttl_s = ttl_s
        self._load = load
        self._period_s = period_s
        self._runner = Runner(store.coordination(), OfflineRecord, lambda _: ttl_s, "offline job", period_s)

    async def begin(self, job: OfflineJob) -> OfflineRecord:
        """Begin a job, and return its record; its id cannot be guessed. Raises Problem 429 for too many."""
        place = self._places.take(kept=True)
        now = self._runner.unix()
        created = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
        record = OfflineRecord(
            id=secrets.token_hex(16), updated=now, model=job.model, created=created, images=len(job.images)
        )

        async def work(active: ActiveJob[OfflineRecord]) -> None:
            answers = _Answers(job, active, self._load, self._period_s)
            try:
                await answers.collect()
            finally:
                await self._keep(job.owner, active, bytes(answers.lines))

        async def after(_: ActiveJob[OfflineRecord]) -> None:
            place.release()

        try:
            return await self._runner.begin(job_key("job", job.owner, record.id), record, work, after)
        except BaseException:
            place.release()
            raise

    async def find(self, owner: str, identifier: str) -> OfflineRecord | None:
        return await self._runner.find(job_key("job", owner, identifier))

    async def lines(self, owner: str, identifier: str) -> bytes | None:
        """Return a job's results, JSON lines; None where there are none yet, or any more."""
        try:
            return bytes(await asyncio.to_thread(self._store.get, job_key("job-lines", owner, identifier)))
        except MissingKeyError:
            return None

    async def cancel(self, owner: str, identifier: str) -> None:
        await self._runner.cancel(job_key("job", owner, identifier))
        await asyncio.to_thread(self._store.delete, [job_key("job-lines", owner, identifier)])

    async def close(self) -> None:
        await self._runner.close()

    async def _keep(self, owner: str, active: ActiveJob[OfflineRecord], lines: bytes) -> None:
        await active.write()
        if not active.lost:
            key = job_key("job-lines", owner, active.record.id)
            await asyncio.to_thread(self._store.put, key, lines, self._ttl_s)


class _Answers:
    def __init__(
        self, job: OfflineJob, active: ActiveJob[OfflineRecord], load: Callable[[], OnlineLoad], period_s: float
    ) -> None:
        self.lines = bytearray()
        self._job = job
        self._active = active
        self._load = load
        self._period_s = period_s
        self._throttle = OfflineThrottle(time.monotonic(), 1, watches=True)
        self._observed = float("-inf")
        self._refused = 0

    async def collect(self) -> None:
        self._note(state=JobState.RUNNING)
        for name in self._job.images:
            line = await self._answer_image(name)
            self.lines += json.dumps(line, allow_nan=False).encode() + b"\n"
            if len(self.lines) > MOST_LINES_BYTES:
                raise InputError(f"the results have more than {MOST_LINES_BYTES:,} bytes: ask for fewer classes")
            record = self._active.record
            self._note(answered=record.answered + 1, failed=record.failed + ("error" in line))

    def _note(self, **fields: Any) -> None:  # noqa: ANN401 - of a record
        self._active.record = replace(self._active.record, **fields)

    async def _answer_image(self, name: str) -> dict[str, Any]:
        why = ""
        for _ in range(_TRIES):
            await self._until_there_is_room()
            try:
                return await self._job.answer(name)
            except (Problem, SerferError) as error:
                problem = problem_of(error)
                why = problem.detail
                if problem.status != HTTPStatus.TOO_MANY_REQUESTS:
                    break
                self._refused += 1
        return {"images": [{"name": name, "predictions": []}], "error": why}

    async def _until_there_is_room(self) -> None:
        while True:
            now = time.monotonic()
            if now - self._observed >= self._period_s:
                self._throttle.observe(now, [self._load()], self._refused)
                self._observed, self._refused = now, 0
            self._note(paused=self._throttle.reason(now))
            if self._throttle.limit(now):
                return
            await asyncio.sleep(self._period_s)


MOST_IMAGES: Final = 10_000
_PREFIX: Final = re.compile(r"(?!.*//)(?!(.*/)?\.{1,2}(/|$))[^/\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,499}")
_S3: Final = "s3://"


class JobImages:
    """The images at a place, `s3://BUCKET/PREFIX` (with the options of a store's URL) or a directory."""

    def __init__(self, place: str) -> None:
        self._place = place

    def names(self, prefix: str) -> Sequence[str]:
        """Return the images below a prefix, by their suffixes and in their order; raises InputError for none."""
        if not _PREFIX.fullmatch(prefix):
            raise InputError("images is a prefix: relative, at most 500 characters, without . and .. as names")
        prefix = prefix.rstrip("/")
        names = self._objects(prefix) if self._place.startswith(_S3) else self._files(prefix)
        if not names:
            raise InputError(f"there are no images below {prefix!r}: none of its objects ends in {', '.join(SUFFIXES)}")
        if len(names) > MOST_IMAGES:
            raise InputError(f"there are more than {MOST_IMAGES:,} images below {prefix!r}: give a longer prefix")
        return sorted(names)

    def read(self, name: str, most_bytes: int) -> bytes:
        """Return an image's bytes; raises ImageTooLargeError for more than `most_bytes`, ImageError for none."""
        if self._place.startswith(_S3):
            data = self._object(name, most_bytes)
        else:
            try:
                with Path(self._place, name).open("rb") as file:
                    data = file.read(most_bytes + 1)
            except OSError as error:
                raise ImageError(f"{name} cannot be read: {error.strerror}") from error
        if len(data) > most_bytes:
            raise ImageTooLargeError(f"{name} has more than the {most_bytes:,} bytes that an image may have")
        return data

    @cached_property
    def _bucket(self) -> tuple[S3Client, str]:
        from botocore.session import Session  # noqa: PLC0415 - most services read no bucket

        from serfer.storage.s3.address import address, parse_url  # noqa: PLC0415 - same
        from serfer.storage.s3.client import S3Client  # noqa: PLC0415 - same

        where, session = parse_url(self._place), Session()
        return S3Client(where.bucket, address(where, session), session), where.prefix

    def _objects(self, prefix: str) -> list[str]:
        client, own = self._bucket
        names: list[str] = []
        for page in client.names(f"{own}{prefix}/", time.time() + 1):
            names += [name.removeprefix(own) for name in page if PurePosixPath(name).suffix.lower() in SUFFIXES]
            if len(names) > MOST_IMAGES:
                break
        return names

    def _object(self, name: str, most_bytes: int) -> bytes:
        from serfer.storage.s3.client import RefusedError  # noqa: PLC0415 - as above

        client, own = self._bucket
        try:
            return bytes(client.get(f"{own}{name}", length=most_bytes + 1).body)
        except RefusedError as error:
            raise ImageError(f"{name} cannot be read: the bucket answers {error}") from error

    def _files(self, prefix: str) -> list[str]:
        root = Path(self._place)
        folder = root / prefix
        if not folder.is_dir() or not folder.resolve().is_relative_to(root.resolve()):
            return []
        return [path.relative_to(root).as_posix() for path in image_files(folder)]
