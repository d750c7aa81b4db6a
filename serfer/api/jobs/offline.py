"""Offline jobs of a driver: one runs at a time, image by image, while online queries leave room (INFaaS, section 5).

POST ── images listed ──────────────── record "queued" ── 202
                                          │ an image at a time, where the throttle lets one start
GET, any driver ◀── record: answered, paused and why ◀─┤
GET .../results ◀── JSON lines, once it has ended ◀────┘
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Final

from serfer.api.admission import Places
from serfer.api.http.problems import Problem, problem_of
from serfer.api.jobs.job_images import JobImages
from serfer.api.jobs.runner import ActiveJob, JobRecord, JobState, Runner, job_key
from serfer.control.throttle import PERIOD_S, OfflineThrottle, OnlineLoad
from serfer.core.dataclass_codec import Bounds
from serfer.core.errors import InputError, MissingKeyError, SerferError
from serfer.storage.store import Store

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
        """Return a job's record; None where there is none, or it is another owner's."""
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
            line = await self._answered(name)
            self.lines += json.dumps(line, allow_nan=False).encode() + b"\n"
            if len(self.lines) > MOST_LINES_BYTES:
                raise InputError(f"the results have more than {MOST_LINES_BYTES:,} bytes: ask for fewer classes")
            record = self._active.record
            self._note(answered=record.answered + 1, failed=record.failed + ("error" in line))

    def _note(self, **fields: Any) -> None:  # noqa: ANN401 - of a record
        self._active.record = replace(self._active.record, **fields)

    async def _answered(self, name: str) -> dict[str, Any]:
        """Return an image's report, or why there is none; where there is no room, it is tried again."""
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
