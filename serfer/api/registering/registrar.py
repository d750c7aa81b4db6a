"""Registrations that were handed in over HTTP: one runs at a time in a driver, a few wait.

    POST ── form to disk ── unpacked ── submissions/ID.json "queued" ── 202
                                             │ a process of its own, as `serfer register` (serfer/variants/submitted.py)
    GET, any driver ◀── submissions/ID.json, registrations/ID.json ◀─┘ steps, heartbeats
    DELETE, any driver ── submissions/ID.json goes, and the driver that runs it stops it within seconds

The driver that runs a submission writes it every few seconds, each time in place of the version that it wrote last: one
that was deleted, or handed in to another driver after a silence, is lost to it, and stopped. What was uploaded goes
with its registration, and with the driver; what is done of the registration stays in the registry.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

from serfer.api.http.problems import OVERLOADED, Problem
from serfer.api.to_its_end import to_its_end
from serfer.api.upload_folder import UploadFolder
from serfer.core.errors import SerferError
from serfer.fleet.log_events import log_event
from serfer.registry import Registry, submission
from serfer.registry.submission import Held, Submission, SubmissionState

if TYPE_CHECKING:
    from serfer.variants.submitted import SubmittedNetwork  # driver functions have none of what that imports

HEARTBEAT_S: Final = 5.0
WAITING: Final = 4
"""Registrations that wait while one runs."""
RECEIVED_AT_ONCE: Final = 2
"""Uploads that arrive at once."""
_RETRY_S: Final = 30


@dataclass(frozen=True, slots=True)
class Event:
    """What a process that registers a network says: see serfer/variants/submitted.py."""

    event: str
    text: str
    version: int = 0
    live: bool = False


@dataclass(frozen=True)
class Handed:
    """What was handed in: its submission's id, what is to be done, and the folder with what was uploaded."""

    id: str
    job: SubmittedNetwork
    folder: Path


class Registrar:
    """The registrations of a driver; used on one event loop. `done` is called after each that ended well.

    `folder` is a place for uploads that drivers may share; `run` registers a network, in a process.
    """

    def __init__(
        self,
        registry: Registry,
        folder: Path,
        done: Callable[[], Awaitable[None]],
        run: Callable[[SubmittedNetwork, Callable[[Event], Awaitable[None]]], Awaitable[Event]],
        unix: Callable[[], float] = time.time,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.registry = registry
        self._heartbeat_s = heartbeat_s
        self._uploads = UploadFolder(folder)
        self._done = done
        self._run = run
        self._unix = unix
        self._turn = asyncio.Semaphore(1)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._receiving = 0

    def check_room(self) -> None:
        """Raise Problem 429 where too many registrations wait or arrive."""
        if len(self._tasks) > WAITING or self._receiving >= RECEIVED_AT_ONCE:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"one registration runs at a time and {WAITING} wait, {RECEIVED_AT_ONCE} arrive: come again later",
                slug=OVERLOADED,
                headers={"Retry-After": str(_RETRY_S)},
            )

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[Path]:
        """Yield a folder for an upload, which goes at the end unless `begin` has moved it on; raises Problem 429."""
        self.check_room()
        self._receiving += 1
        folder = await asyncio.to_thread(self._uploads.new)
        try:
            yield folder
        finally:
            self._receiving -= 1
            if not any(task.get_name() == str(folder) for task in self._tasks.values()):
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def known(self, submitted: str) -> Submission | None:
        """Return a submission that waits or runs, here or in another driver; None where it is to be begun."""
        held = await asyncio.to_thread(submission.read, self.registry.store, submitted)
        if held is None or not held.submission.is_open or held.submission.is_silent(self._unix()):
            return None
        is_gone = await asyncio.to_thread(self._uploads.is_gone, held.submission.driver)
        return None if is_gone else held.submission

    async def begin(self, handed: Handed) -> Submission:
        """Begin a registration, unless it waits or runs, here or in another driver; raises Problem 429."""
        store, job = self.registry.store, handed.job
        self.check_room()
        created = datetime.fromtimestamp(self._unix(), UTC).isoformat(timespec="seconds")
        fresh = Submission(handed.id, job.application, job.name, created, job.by, self._unix(), self._uploads.name)
        before = await asyncio.to_thread(submission.read, store, handed.id)
        if handed.id in self._tasks:
            return before.submission if before else fresh
        held = await asyncio.to_thread(submission.write, store, fresh, before.version if before else None)
        if held is None:  # another driver came first
            return await self.known(handed.id) or fresh
        task = asyncio.create_task(self._work(handed, held), name=str(handed.folder))
        self._tasks[handed.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(handed.id, None))
        return fresh

    async def forget(self, submitted: str) -> None:
        """Stop a submission wherever it runs, and forget it."""
        task = self._tasks.get(submitted)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await asyncio.to_thread(self.registry.remove, submission.document_name(submitted))

    async def close(self) -> None:
        """Interrupt what runs, so that it can go on later."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks.values()])
        await asyncio.to_thread(self._uploads.close)

    async def _work(self, handed: Handed, held: Held) -> None:
        """Wait for a turn, register, and write how that went; whatever happens, the upload is deleted."""
        record = _Record(self.registry, held, self._unix)
        beating = asyncio.create_task(record.beat(asyncio.current_task(), self._heartbeat_s))
        ended: dict[str, object] = {
            "state": SubmissionState.INTERRUPTED,
            "detail": "the service was stopped: hand it in again to go on",
        }
        try:
            async with self._turn:
                record.note(state=SubmissionState.RUNNING)
                done = await self._run(handed.job, record.told)
            ended = {"state": SubmissionState.DONE, "version": done.version, "live": done.live}
        except SerferError as error:
            ended = {"state": SubmissionState.FAILED, "detail": str(error)}
        except Exception as error:  # noqa: BLE001 - this task is not awaited
            ended = {"state": SubmissionState.FAILED, "detail": "a bug of the service's; its log says more"}
            words = {"application": handed.job.application, "message": repr(error)[:300]}
            log_event(logging.ERROR, "registration", error, **words)
        finally:
            beating.cancel()
            await asyncio.wait([beating])
            record.note(progress="", **ended)
            await record.write()
            await asyncio.to_thread(shutil.rmtree, handed.folder, ignore_errors=True)
            words = {"state": str(ended["state"]), "message": str(ended.get("detail", ""))[:300]}
            log_event(logging.INFO, "registration", application=handed.job.application, **words)
        if ended["state"] is SubmissionState.DONE:
            with suppress(SerferError):  # the next list of the registry's applications has it
                await self._done()


class _Record:
    """A submission that this driver works on, written from time to time."""

    def __init__(self, registry: Registry, held: Held, unix: Callable[[], float]) -> None:
        self._registry = registry
        self._held = held
        self._now = held.submission
        self._unix = unix
        self._changed = asyncio.Event()
        self._lost = False

    def note(self, **fields: object) -> None:
        """Take note of what is to be written."""
        self._now = replace(self._now, **fields)  # type: ignore[arg-type]
        if fields.keys() - {"progress"}:
            self._changed.set()

    async def told(self, event: Event) -> None:
        """Take note of what the process says."""
        if event.event == "registration":
            self.note(registration=event.text)
        elif event.event == "progress":
            self.note(progress=event.text)

    async def beat(self, working: asyncio.Task[None] | None, every_s: float) -> None:
        """Write at once what matters and all else every few seconds; cancel the work where the record is lost."""
        while not self._lost:
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):  # wait_for of Python 3.11 may lose a cancellation
                    await self._changed.wait()
            self._changed.clear()
            await self.write()
        if working is not None:
            working.cancel()

    async def write(self) -> None:
        """Write the record, unless it is another's now; what the registry does not take now it may take later."""
        if self._lost:
            return
        await to_its_end(self._write)  # a write that has begun decides which version comes next

    def _write(self) -> None:
        changed = replace(self._now, updated=self._unix())
        try:
            held = submission.write(self._registry.store, changed, self._held.version)
        except Exception as error:  # noqa: BLE001 - even a bug ends no heartbeats: others would take it for stopped
            log_event(logging.WARNING, "registration", error, part="registry", message=str(error)[:300])
            return
        if held is None:
            self._lost = True
        else:
            self._held = held
