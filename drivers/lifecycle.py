"""What makes a query last, whatever engine runs it: patience with the store, new beginnings, nothing left behind."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from drivers.driver import Answer, Overheads
from serfer.core.errors import StoreUnavailableError
from serfer.core.run import LOST, Retry
from storage.store import Store

ONE_SLOT = 1 << 20
"""Bytes of a query up to which one node of a cluster serves it with fewer round trips than several."""
STRAGGLER_S = 30.0
"""How long the clean-up of a query waits for what may still write."""
_CLEAN_UP_TRIES = 3
_Value = TypeVar("_Value")


class Query(Protocol):
    """One beginning of a query, with keys of its own."""

    @property
    def overheads(self) -> Overheads:
        """What it took so far."""
        ...

    async def run(self) -> Answer:
        """Run it to its end; raises one of LOST where some of its pieces were lost or altered."""
        ...

    async def clean_up(self) -> None:
        """Delete its keys, after whatever may still write."""
        ...


class InFlight:
    """The queries of a driver that run, and the clean-ups of those that have ended."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._cleanups: set[asyncio.Task[None]] = set()
        self._running: set[asyncio.Task[Any]] = set()  # those that a query runs in

    async def run(self, work: Coroutine[Any, Any, _Value]) -> _Value:
        """Do a query's work, which `close` cancels."""
        me = asyncio.current_task()
        if me is None:
            raise AssertionError("coroutines run in tasks")
        self._running.add(me)
        try:
            return await work
        finally:
            self._running.discard(me)

    async def until_answered(self, begin: Callable[[], Query]) -> Answer:
        """Run a query, and restart it whenever the store has lost or altered what its tasks had written."""
        overheads = Overheads()
        while True:
            query = begin()
            try:
                answer = await query.run()
                return replace(answer, overheads=overheads + answer.overheads)
            except LOST as error:
                if overheads.restarts == self._retry.restarts:
                    raise StoreUnavailableError(
                        f"the store loses or alters what is written to it ({error}): let --store be one that keeps it"
                    ) from error
                overheads += query.overheads + Overheads(restarts=1)
            finally:
                self._clean_up_later(query)

    async def close(self) -> None:
        """Cancel what runs, and wait until what it and others left behind is deleted."""
        for running in self._running:
            running.cancel()
        if self._running:
            await asyncio.wait([*self._running])
        await asyncio.gather(*self._cleanups)

    def _clean_up_later(self, query: Query) -> None:
        """Delete a query's keys without making its answer wait."""
        cleanup = asyncio.get_running_loop().create_task(query.clean_up())
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._cleanups.discard)


async def retry_store(call: Callable[[], _Value], retry: Retry, deadline: float) -> _Value:
    """Ask the store in a thread, and again while it does not answer and there is time left on the loop's clock."""
    loop = asyncio.get_running_loop()
    for failures in itertools.count(1):
        try:
            return await asyncio.to_thread(call)
        except StoreUnavailableError:
            wait = retry.backoff.wait(failures, random.random())  # noqa: S311 - jitter, no secret
            if failures >= retry.unavailable_attempts or loop.time() + wait >= deadline:
                raise
            await asyncio.sleep(wait)
    raise AssertionError("unreachable: counting has no end")


async def delete(store: Store, keys: Sequence[str], retry: Retry) -> None:
    """Delete keys, or let them expire where the store stays away."""
    for failures in range(1, _CLEAN_UP_TRIES + 1):
        try:
            await asyncio.to_thread(store.delete, keys)
        except StoreUnavailableError:
            await asyncio.sleep(retry.backoff.wait(failures, random.random()))  # noqa: S311 - as above
        else:
            return
