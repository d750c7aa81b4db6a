"""Work that outlives its request: one record, one heartbeat, one way to cancel it, to begin it again and to end it.

    POST ── record "queued" ── 202        the same request again is answered by the record, or begins what failed again
                │ a task of this driver's: its turn, the work, the end
    GET, any driver ◀── record ◀── heartbeats, each a change of what this run wrote last
    DELETE, any driver ── the record goes; another driver that works on it stops at its next heartbeat

A record names the run that may change it (serfer.storage.coordination.change), so work that was deleted, or begun again
elsewhere, is lost to the driver that was at it, and stopped. An open record that was not written in time is that of a
driver that was killed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from typing import Any, ClassVar, Final, Generic, Self, TypeAlias, TypeVar

from serfer.api.http.problems import Problem, problem_of
from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import PlanError, SerferError, StoreError
from serfer.fleet.log_events import log_event
from serfer.storage.coordination import Coordination, Entry, change, set_once

SILENT_S: Final = 40.0
"""Seconds after the last heartbeat from which a job's driver counts as killed."""
BUG: Final = "a bug of the service's; its log says more"
"""The detail of a job that a bug has ended."""
_LOOKS: Final = 4  # at a record between two heartbeats
_MOST_TEXT: Final = 300  # of a message in the log


class JobState(StrEnum):
    """How far a job is: "silent" is not stored, but found where the driver of an open one was killed."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    SILENT = "silent"

    @property
    def is_open(self) -> bool:
        return self in (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job's record: `updated` is when its driver wrote it last, in Unix time, `detail` why it has failed."""

    id: str
    updated: float
    state: JobState = JobState.QUEUED
    detail: str = ""
    DETAILS: ClassVar[Mapping[JobState, str]] = {}
    """Of jobs that were interrupted, or are silent."""

    @property
    def silent_at(self) -> float:
        """From when on the driver of an open job counts as killed, in Unix time."""
        return self.updated + SILENT_S

    def at(self, now: float) -> Self:
        """Return the record as it is at a time: silent where it is open, and was not written in time."""
        return self.with_end(JobState.SILENT) if self.state.is_open and now > self.silent_at else self

    def with_end(self, state: JobState, problem: Problem | None = None) -> Self:
        """Return the record of a job that is done, has failed by a problem, was interrupted, or is silent."""
        return replace(self, state=state, detail=problem.detail if problem else self.DETAILS.get(state, ""))

    def shares_run(self, other: Self) -> bool:
        """Return whether one run of the job has written both records: by default a job has one."""
        return self.id == other.id

    def answers(self, request: Self) -> bool:
        """Return whether the same request, sent again, is answered by this record, and begins nothing."""
        del request
        return self.state.is_open

    def encode(self) -> bytes:
        return json.dumps(unstructure(self), allow_nan=False).encode()

    @classmethod
    def decode(cls, key: str, data: bytes) -> Self:
        """Read what is stored under a key; raises SerferError where this version cannot have written it."""
        try:
            return structure(cls, json.loads(data), key)
        except (PlanError, ValueError) as error:
            raise StoreError(f"{key} was not written by this version") from error


R = TypeVar("R", bound=JobRecord)


class ActiveJob(Generic[R]):
    """A job that this driver works on: `record` is how far it is, `lost` whether it was deleted or is another run's.

    Work that does not note how far it is sets `look`, which returns the record as it is now.
    """

    task: asyncio.Task[None]

    def __init__(self, runner: Runner[R], key: str, record: R, entry: Entry) -> None:
        self.key = key
        self.record = record
        self.look: Callable[[R], R] = lambda last: last
        self.lost = False
        self._runner = runner
        self._entry = entry

    def refresh(self) -> None:
        """Look how far the job is; a bug in that ends nothing."""
        try:
            self.record = self.look(self.record)
        except Exception as error:  # noqa: BLE001 - the work goes on, and has to end
            self._runner.log(logging.ERROR, error, part="progress")

    async def write(self) -> None:
        """Write the record unless it is lost; what the store does not take now it may take later.

        A cancelled caller waits until the write has ended: it decides which version comes next.
        """
        if not self.lost:
            await _outlast(asyncio.get_running_loop().run_in_executor(None, self._write, self.record))

    async def beat(self, every_s: float) -> None:
        """Write the record every few seconds, four times as often where it has changed; stop work that is lost."""
        written, unchanged = self.record, 0
        while not self.lost:
            await asyncio.sleep(every_s / _LOOKS)
            self.refresh()
            unchanged = unchanged + 1 if self.record == written else _LOOKS
            if unchanged >= _LOOKS:
                written, unchanged = self.record, 0
                await self.write()
        self.task.cancel()

    def _write(self, record: R) -> None:
        runner, is_own = self._runner, True
        written = replace(record, updated=runner.unix())

        def changed(there: bytes | None) -> bytes | None:
            nonlocal is_own
            is_own = there is not None and runner.kind.decode(self.key, there).shares_run(record)
            return written.encode() if is_own else None

        try:
            entry = change(runner.values, self.key, changed, runner.ttl_s(record), known=self._entry)
        except Exception as error:  # noqa: BLE001 - even a bug ends no heartbeats: others would take it for stopped
            runner.log(logging.WARNING, error, part="record")
            return
        self.lost = self.lost or not is_own
        self._entry = entry or self._entry


Work: TypeAlias = Callable[[ActiveJob[R]], Awaitable[None]]


def job_key(kind: str, owner: str, identifier: str) -> str:
    """Return where a store has what belongs to a job: only its owner can name it."""
    return f"serfer:{kind}:{sha256(f'{len(owner)}:{owner}:{identifier}'.encode()).hexdigest()}"


@dataclass(frozen=True, eq=False)
class Runner(Generic[R]):
    """The jobs of a kind that a driver works on, and the records of all drivers' in `values`; used on one event loop.

    A record is kept for `ttl_s(record)` seconds after each write. `event` is the jobs' name in the log. They work in
    `turns`, by default one at a time.
    """

    values: Coordination
    kind: type[R]
    ttl_s: Callable[[R], float]
    event: str
    beat_s: float
    turns: AbstractAsyncContextManager[object] = field(default_factory=lambda: asyncio.Semaphore(1))
    unix: Callable[[], float] = time.time
    _jobs: set[ActiveJob[R]] = field(default_factory=set, init=False)

    def __len__(self) -> int:
        return len(self._jobs)

    async def begin(self, key: str, record: R, work: Work[R], ended: Work[R]) -> R:
        """Start `work` unless a record is there that answers the same request; return that, or `record` itself.

        `ended` follows the work and the write of its end, however it ends. Of drivers that begin the same at once, one
        does. Raises what `answers` raises.
        """
        own, ttl_s = record.encode(), self.ttl_s(record)
        entry = await asyncio.to_thread(
            set_once, self.values, key, own, ttl_s, lambda there: self._current(key, there).answers(record)
        )
        if entry.value is not own:
            return self._current(key, entry.value)
        job = ActiveJob(self, key, record, entry)
        self._jobs.add(job)
        job.task = asyncio.create_task(self._run(job, work, ended))
        job.task.add_done_callback(lambda _: self._jobs.discard(job))
        return record

    async def find(self, key: str) -> R | None:
        entry = await asyncio.to_thread(self.values.get, key)
        return None if entry is None else self._current(key, entry.value)

    async def cancel(self, key: str) -> None:
        jobs = [job for job in self._jobs if job.key == key]
        for job in jobs:
            job.lost = True  # nothing of it is written any more
        await _stop([job.task for job in jobs])
        await asyncio.to_thread(self.values.delete, [key])

    async def close(self, most_s: float = 0.0) -> None:
        """Wait for what runs, and interrupt what takes longer than `most_s`, so that it can be begun again."""
        if self._jobs:
            _, left = await asyncio.wait([job.task for job in self._jobs], timeout=most_s)
            await _stop(left)

    def log(self, level: int, error: Exception, **fields: Any) -> None:  # noqa: ANN401 - any JSON value
        log_event(level, self.event, error, **fields, message=repr(error)[:_MOST_TEXT])

    def _current(self, key: str, value: bytes) -> R:
        record = self.kind.decode(key, value)
        is_here = any(job.key == key and not job.lost for job in tuple(self._jobs))  # though the wall clock has jumped
        return record if is_here else record.at(self.unix())

    async def _run(self, job: ActiveJob[R], work: Work[R], ended: Work[R]) -> None:
        state, problem = JobState.INTERRUPTED, None
        beating = asyncio.create_task(job.beat(self.beat_s))
        try:
            async with self.turns:
                await work(job)
            state = JobState.DONE
        except (SerferError, Problem) as error:
            state, problem = JobState.FAILED, problem_of(error)
        except Exception as error:  # noqa: BLE001 - nobody awaits this task
            state, problem = JobState.FAILED, Problem(500, BUG)
            self.log(logging.ERROR, error)
        finally:
            try:
                await _outlast(asyncio.ensure_future(_end(job, beating, state, problem)))
            finally:
                await self._after(job, ended)

    async def _after(self, job: ActiveJob[R], ended: Work[R]) -> None:
        try:
            await ended(job)
        except Exception as error:  # noqa: BLE001 - nobody awaits this task
            self.log(logging.ERROR, error, part="end")


async def _end(job: ActiveJob[R], beating: asyncio.Task[None], state: JobState, problem: Problem | None) -> None:
    beating.cancel()
    await asyncio.wait([beating])
    job.refresh()
    job.record = job.record.with_end(state, problem)
    await job.write()


async def _outlast(future: asyncio.Future[Any]) -> None:
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


async def _stop(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
