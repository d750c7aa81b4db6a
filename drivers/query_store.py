"""A driver's own requests to the store, for one query: with retries while there is time, and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from serfer.core.checksum import protect
from serfer.core.errors import StoreUnavailableError
from serfer.core.keys import StoreCounts
from serfer.core.retry import RetryPolicy, retry_async
from serfer.core.run_machine import Retry
from serfer.core.wire import Buffer
from serfer.drivers.clock import LOOP_CLOCK, Clock
from serfer.storage.store import Range, Store

STRAGGLER_S = 30.0
"""Seconds for which the clean-up of a query waits for tasks that may still write."""
_DELETE_ATTEMPTS = 3
_Value = TypeVar("_Value")


class QueryStore:
    """The store as one query's driver uses it until `deadline`, and what may still write there.

    Values are protected by checksums; `counts` are the requests that succeeded.
    """

    def __init__(self, store: Store, retry: Retry, deadline: float, clock: Clock) -> None:
        self._store = store
        self._retry = retry
        self._deadline = deadline
        self._clock = clock
        self._writers: set[asyncio.Task[Any]] = set()
        self.counts = StoreCounts()

    def watch(self, writer: asyncio.Task[Any]) -> None:
        """Make `delete` wait for tasks that may still write."""
        self._writers.add(writer)
        writer.add_done_callback(self._writers.discard)

    def start(self, work: Coroutine[Any, Any, _Value]) -> asyncio.Task[_Value]:
        task = asyncio.get_running_loop().create_task(work)
        self.watch(task)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # its caller may be gone
        return task

    async def put(self, values: Mapping[str, Buffer], ttl: float, *, once: bool = False) -> bool:
        """Put values by key, together; a started write continues if the caller is cancelled.

        Returns False where that is tried only `once` and the store does not answer.
        """
        retry = replace(self._retry, unavailable_attempts=1) if once else self._retry
        try:
            await asyncio.shield(self.start(self._put(values, ttl, retry)))
        except StoreUnavailableError:
            if not once:
                raise
            return False
        return True

    async def _put(self, values: Mapping[str, Buffer], ttl: float, retry: Retry) -> None:
        def put() -> int:
            protected = {key: protect(value, key) for key, value in values.items()}
            self._store.put_many(protected, ttl)
            return sum(map(len, protected.values()))

        size = await retry_store(put, retry, self._deadline, self._clock)
        self.counts += StoreCounts(bytes_put=size, puts=len(values))

    async def get(self, keys: Sequence[str]) -> Sequence[Buffer]:
        ranges = [Range(key) for key in keys]
        values = await retry_store(lambda: self._store.get_many(ranges), self._retry, self._deadline, self._clock)
        self.counts += StoreCounts(bytes_get=sum(map(len, values)), gets=len(values))
        return values

    async def delete(self, keys: Sequence[str], after_s: float = 0.0) -> None:
        if self._writers:
            await asyncio.wait(self._writers, timeout=STRAGGLER_S)
        if after_s:
            await self._clock.sleep(after_s)
        if keys:
            await delete(self._store, keys, self._retry, self._clock)


async def retry_store(call: Callable[[], _Value], retry: Retry, deadline: float, clock: Clock = LOOP_CLOCK) -> _Value:
    """Call the store in a thread, and again while it does not answer and there is time left on the clock."""
    policy = RetryPolicy("store", StoreUnavailableError, retry.backoff, retry.unavailable_attempts)
    return await retry_async(partial(asyncio.to_thread, call), policy, clock.sleep, lambda: deadline - clock.time())


async def delete(store: Store, keys: Sequence[str], retry: Retry, clock: Clock) -> None:
    policy = RetryPolicy("store", StoreUnavailableError, retry.backoff, _DELETE_ATTEMPTS)
    with suppress(StoreUnavailableError):
        await retry_async(partial(asyncio.to_thread, store.delete, keys), policy, clock.sleep)
