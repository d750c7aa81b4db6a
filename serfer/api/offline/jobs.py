"""Offline jobs of a driver: one runs at a time, image by image, while online queries leave room (INFaaS, section 5).

POST ── archive to disk ── unpacked ── record "queued" ── 202
                                          │ an image at a time, where the throttle lets one start
GET, any driver ◀── record: answered, paused and why ◀─┤
GET .../results ◀── JSON lines, once it has ended ◀────┘ ── webhook, to allowed hosts alone
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from serfer.api.http.problems import OVERLOADED, Problem, problem_of
from serfer.api.offline.record import OfflineRecord, OfflineRecords, OfflineState
from serfer.api.to_its_end import to_its_end
from serfer.api.upload_folder import UploadFolder
from serfer.control.offline.throttle import PERIOD_S, OfflineThrottle, OnlineLoad
from serfer.core.errors import QueryError, SerferError
from serfer.fleet.log_events import log_event
from serfer.offline.notify.delivery import PATIENT, deliver
from serfer.offline.notify.event import JobEvent, JobStatus, OfflineJob
from serfer.offline.notify.target import Target

MOST_JOBS: Final = 4
"""Jobs that run, wait or arrive in a driver."""
MOST_IMAGES: Final = 10_000
MOST_LINES_BYTES: Final = 32 * 1024 * 1024
"""Bytes of a job's results."""
_RETRY_S: Final = 30
_TRIES: Final = 5  # of an image for which there was no room
_TOLD: Final = {OfflineState.DONE: JobStatus.DONE, OfflineState.FAILED: JobStatus.FAILED}


@dataclass(frozen=True)
class Handed:
    """A job that was handed in: its images, the folder that goes with it, and how one of them is answered.

    `answer` takes an image's file, and returns the report of a query.
    """

    owner: str
    model: str
    images: Sequence[Path]
    folder: Path
    answer: Callable[[Path], Awaitable[dict[str, Any]]] = field(repr=False)
    targets: Sequence[Target] = field(default=(), repr=False)


class OfflineJobs:
    """The jobs of a driver; used on one event loop. `load` says how much online load it has now."""

    def __init__(
        self,
        records: OfflineRecords,
        folder: Path,
        load: Callable[[], OnlineLoad],
        unix: Callable[[], float] = time.time,
        period_s: float = PERIOD_S,
    ) -> None:
        self.records = records
        self._uploads = UploadFolder(folder)
        self._load = load
        self._unix = unix
        self._period_s = period_s
        self._turn = asyncio.Semaphore(1)
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._folders: set[Path] = set()
        self._receiving = 0

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[Path]:
        """Yield a folder for an upload, which goes at the end unless a job has begun with it; raises Problem 429."""
        if len(self._tasks) + self._receiving >= MOST_JOBS:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{MOST_JOBS} offline jobs are here already: come again later",
                slug=OVERLOADED,
                headers={"Retry-After": str(_RETRY_S)},
            )
        self._receiving += 1
        folder = await asyncio.to_thread(self._uploads.new)
        try:
            yield folder
        finally:
            self._receiving -= 1
            if folder not in self._folders:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def begin(self, handed: Handed) -> OfflineRecord:
        """Begin a job, and return its record; its id cannot be guessed."""
        created = datetime.fromtimestamp(self._unix(), UTC).isoformat(timespec="seconds")
        record = OfflineRecord(secrets.token_hex(16), handed.model, created, len(handed.images), self._unix())
        version = await asyncio.to_thread(self.records.write, handed.owner, record, None)
        work = _Work(handed, record, version, self.records, self._unix, self._load, self._period_s)
        key = (handed.owner, record.id)
        self._folders.add(handed.folder)
        self._tasks[key] = task = asyncio.create_task(self._run(work))
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return record

    async def cancel(self, owner: str, job: str) -> None:
        """Stop a job wherever it runs, and forget it with its results."""
        if task := self._tasks.get((owner, job)):
            task.cancel()
            await asyncio.wait([task])
        await asyncio.to_thread(self.records.delete, owner, job)

    async def close(self) -> None:
        """Interrupt what runs."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks.values()])
        await asyncio.to_thread(self._uploads.close)

    async def _run(self, work: _Work) -> None:
        ended, detail = OfflineState.INTERRUPTED, "the service was stopped: what was answered is in the results"
        beating = asyncio.create_task(work.beat(asyncio.current_task()))
        try:
            async with self._turn:
                await work.run()
            ended, detail = OfflineState.DONE, ""
        except SerferError as error:
            ended, detail = OfflineState.FAILED, problem_of(error).detail
        except Exception as error:  # noqa: BLE001 - this task is not awaited
            ended, detail = OfflineState.FAILED, "a bug of the service's; its log says more"
            log_event(logging.ERROR, "offline job", error, message=repr(error)[:300])
        finally:
            beating.cancel()
            await asyncio.wait([beating])
            self._folders.discard(work.handed.folder)
            await asyncio.to_thread(shutil.rmtree, work.handed.folder, ignore_errors=True)
            try:
                await work.end(ended, detail)
            except Exception as error:  # noqa: BLE001 - same
                log_event(logging.ERROR, "offline job", error, part="end", message=repr(error)[:300])


class _Work:
    """One job that runs."""

    def __init__(
        self,
        handed: Handed,
        record: OfflineRecord,
        version: str | None,
        records: OfflineRecords,
        unix: Callable[[], float],
        load: Callable[[], OnlineLoad],
        period_s: float,
    ) -> None:
        self.handed = handed
        self._record = record
        self._version = version
        self._records = records
        self._unix = unix
        self._load = load
        self._period_s = period_s
        self._lines = bytearray()
        self._throttle = OfflineThrottle(time.monotonic(), 1, watches=True)
        self._observed = float("-inf")
        self._lost = False
        self._refused = 0

    async def run(self) -> None:
        """Answer the images one after the other; raises QueryError for too many results."""
        self._record = replace(self._record, state=OfflineState.RUNNING)
        for path in self.handed.images:
            line = await self._answered(path)
            self._lines += json.dumps(line, allow_nan=False).encode() + b"\n"
            if len(self._lines) > MOST_LINES_BYTES:
                raise QueryError(f"the results have more than {MOST_LINES_BYTES:,} bytes: ask for fewer classes")
            failed = self._record.failed + ("error" in line)
            self._record = replace(self._record, answered=self._record.answered + 1, failed=failed)

    async def _answered(self, path: Path) -> dict[str, Any]:
        """Return an image's report, or why there is none; where there is no room, it is tried again."""
        why = ""
        for _ in range(_TRIES):
            await self._until_there_is_room()
            try:
                return await self.handed.answer(path)
            except (Problem, SerferError) as error:
                problem = problem_of(error)
                why = problem.detail
                if problem.status != HTTPStatus.TOO_MANY_REQUESTS:
                    break
                self._refused += 1
        return {"images": [{"name": path.name, "predictions": []}], "error": why}

    async def _until_there_is_room(self) -> None:
        while True:
            now = time.monotonic()
            if now - self._observed >= self._period_s:
                self._throttle.observe(now, [self._load()], self._refused)
                self._observed, self._refused = now, 0
            self._record = replace(self._record, paused=self._throttle.reason(now))
            if self._throttle.limit(now):
                return
            await asyncio.sleep(self._period_s)

    async def beat(self, working: asyncio.Task[None] | None) -> None:
        """Write the record every few seconds; cancel the work where it was deleted meanwhile."""
        while not self._lost:
            await asyncio.sleep(self._period_s)
            await self._write()
        if working is not None:
            working.cancel()

    async def _write(self) -> None:
        """Write the record; what the store does not take now it may take later."""
        await to_its_end(self._written)  # a write that has begun decides which version comes next

    def _written(self) -> None:
        record = replace(self._record, updated=self._unix())
        try:
            version = self._records.write(self.handed.owner, record, self._version)
        except Exception as error:  # noqa: BLE001 - even a bug ends no heartbeats: others would take it for stopped
            log_event(logging.WARNING, "offline job", error, part="store", message=str(error)[:300])
            return
        self._lost = version is None
        self._version = version or self._version

    async def end(self, state: OfflineState, detail: str) -> None:
        """Keep the results, write the end, and notify; of a job that was deleted nothing is kept."""
        owner, job = self.handed.owner, self._record.id
        self._record = replace(self._record, state=state, detail=detail, paused="")
        found = await asyncio.to_thread(self._records.read, owner, job)
        if self._lost or found is None:
            return
        await asyncio.to_thread(self._records.put_lines, owner, job, bytes(self._lines))
        await self._write()
        if self.handed.targets and state in _TOLD:
            told = await asyncio.to_thread(deliver, self._event(), self.handed.targets, PATIENT)
            failed = [f"{each.target}: {each.error}" for each in told if each.error]
            self._record = replace(self._record, notified="; ".join(failed)[:500] or "delivered")
            await self._write()

    def _event(self) -> JobEvent:
        record = self._record
        job = OfflineJob("classify", record.model, [record.id], f"/v1/jobs/{record.id}/results", record.id)
        figures = {"images": record.images, "answered": record.answered, "failed": record.failed}
        now = datetime.fromtimestamp(self._unix(), UTC)
        return JobEvent(job, _TOLD[record.state], now, [job.out], figures, record.detail)
