"""The poll driver: tasks are events, and the driver polls the store for their replies (SerFer, section 5).

    driver                        Lambda                         store
      │ event: run tile 3 ─────────▶│ 202, at once
      │                             │ worker: reads, computes ──────▶│ output, then reply
      │ is the reply there? (backing off, for all tasks at once) ───▶│ no ... no ... yes
      │ read it, delete it ─────────────────────────────────────────▶│

The paper's engine polls every tile's output all the time, and cannot tell a failed task from a slow one. Here a worker
puts its task's result under a reply key. A poll reads no value, covers all tasks that are due in one round trip, and
backs off for each. Everything else is the push driver's: the same run machine decides, and this is one more invoker.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from serfer.core.checksum import verified
from serfer.core.errors import AlteredPieceError, InputError, MissingKeyError, StoreUnavailableError
from serfer.core.keys import StoreCounts, reply_key
from serfer.core.retry import Backoff
from serfer.core.run_machine import Failure, FailureKind, Retry
from serfer.core.wire import Report, Task, unpack_result
from serfer.drivers.clock import LOOP_CLOCK, Clock, timeout_at
from serfer.drivers.invoker import to_failure
from serfer.drivers.query_store import delete
from serfer.storage.store import Range, Store


class EventStarter(Protocol):
    """Starts tasks without waiting for their results."""

    async def start(self, function: str, task: Task) -> Failure | None:
        """Hand a task over to be run soon; return why that failed, or None."""
        ...

    async def close(self) -> None: ...


POLLING = Backoff(base=0.004, longest=0.25, factor=1.4)
"""The polling intervals of one task's reply; without jitter, so that replies that are due together are one request."""


@dataclass(slots=True, eq=False)
class _Awaited:
    answer: asyncio.Future[tuple[Report | Failure, StoreCounts]]
    due: float
    polls: int = 0


class PollInvoker:
    """Runs tasks as events of `starter`, and takes their results from `store`.

    The store requests of polling, reading and the worker's reply are added to the task's report.
    """

    def __init__(
        self, starter: EventStarter, store: Store, backoff: Backoff = POLLING, clock: Clock = LOOP_CLOCK
    ) -> None:
        self._starter = starter
        self._store = store
        self._backoff = backoff
        self._clock = clock
        self._awaited: dict[str, _Awaited] = {}
        self._numbers = itertools.count()
        self._added = asyncio.Event()  # a reply is awaited that was not
        self._poller: asyncio.Task[None] | None = None
        self._retry = Retry()
        self._deletions: set[asyncio.Task[None]] = set()

    async def invoke(self, function: str, task: Task, timeout_s: float) -> Report | Failure:
        number = next(self._numbers) % (1 << 31)
        key = reply_key(task.query, task.stage, task.tile, number)
        refused = await self._starter.start(function, replace(task, reply=number))
        if refused is not None:
            return refused
        now = self._clock.time()
        answer = asyncio.get_running_loop().create_future()
        awaited = self._awaited[key] = _Awaited(answer, now + self._backoff.wait(1))
        self._watch()
        try:
            async with timeout_at(self._clock, now + timeout_s):
                result, counts = await awaited.answer
        except TimeoutError:
            return Failure(FailureKind.TIMED_OUT, "TimeoutError", f"{function} did not reply within {timeout_s:g} s")
        finally:
            self._awaited.pop(key, None)
        return result if isinstance(result, Failure) else replace(result, counts=result.counts + counts)

    async def close(self) -> None:
        """Stop polling, and wait until the replies that were read are deleted."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait([self._poller])
        await asyncio.gather(*self._deletions)
        await self._starter.close()

    def _watch(self) -> None:
        self._added.set()
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        try:
            while self._awaited:
                await self._wait_until_due()
                await self._poll_once()
        except Exception as bug:  # noqa: BLE001 - this task is not awaited
            for awaited in self._awaited.values():
                if not awaited.answer.done():
                    awaited.answer.set_exception(bug)

    async def _wait_until_due(self) -> None:
        while self._awaited:
            due = min(awaited.due for awaited in self._awaited.values())
            if due <= self._clock.time():
                return
            self._added.clear()
            with contextlib.suppress(TimeoutError):
                async with timeout_at(self._clock, due):
                    await self._added.wait()

    async def _poll_once(self) -> None:
        now, backoff = self._clock.time(), self._backoff
        due = {
            key: awaited
            for key, awaited in self._awaited.items()
            if awaited.due - backoff.wait(awaited.polls + 1) / 2 <= now
        }
        with contextlib.suppress(StoreUnavailableError):  # it may come back; each task has its time limit
            await self._resolve_replies(due)
        now = self._clock.time()
        for awaited in due.values():
            awaited.polls += 1
            awaited.due = now + backoff.wait(awaited.polls + 1)

    async def _resolve_replies(self, due: dict[str, _Awaited]) -> None:
        exists = await asyncio.to_thread(self._store.exists, [*due])
        there = [key for key, is_there in zip(due, exists, strict=True) if is_there]
        if not there:
            return
        try:
            values = await asyncio.to_thread(self._store.get_many, [Range(key) for key in there])
        except MissingKeyError:
            return  # expired in between: its task's time is up as well
        for key, value in zip(there, values, strict=True):
            awaited = due[key]
            if not awaited.answer.done():
                size = len(value)
                counts = StoreCounts(bytes_put=size, bytes_get=size, puts=1, gets=1, exists=awaited.polls + 1)
                awaited.answer.set_result((_read(value, key), counts))
        self._delete_later(there)

    def _delete_later(self, keys: Sequence[str]) -> None:
        deletion = asyncio.get_running_loop().create_task(delete(self._store, keys, self._retry, self._clock))
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletions.discard)


def _read(value: bytes, key: str) -> Report | Failure:
    try:
        return to_failure(unpack_result(verified(value, key)))
    except (AlteredPieceError, InputError) as error:
        return Failure(FailureKind.FAILED_IN_CODE, type(error).__name__, str(error))
