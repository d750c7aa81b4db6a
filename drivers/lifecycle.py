"""The life of a query around its runs, whatever engine makes them: restarts after lost data, clean-up, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

from drivers.driver import Answer, Overheads
from serfer.core.errors import StoreUnavailableError
from serfer.core.run_machine import LOST, Retry

_Value = TypeVar("_Value")


class Query(Protocol):
    """One run of a query, with keys of its own."""

    @property
    def overheads(self) -> Overheads:
        """The overheads so far."""
        ...

    async def run(self) -> Answer:
        """Run it to its end; raises one of LOST where some of its pieces were lost or altered."""
        ...

    async def clean_up(self) -> None:
        """Delete its keys, after whatever may still write."""
        ...


class InFlight:
    """The queries of a driver that run, and the clean-ups of runs that have ended."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._cleanups: set[asyncio.Task[None]] = set()
        self._running: set[asyncio.Task[Any]] = set()  # those that a query runs in

    async def run(self, work: Coroutine[Any, Any, _Value]) -> _Value:
        """Do a query's work, which `close` cancels."""
        running = cast("asyncio.Task[Any]", asyncio.current_task())
        self._running.add(running)
        try:
            return await work
        finally:
            self._running.discard(running)

    async def until_answered(
        self, begin: Callable[[], Query], discard: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> Answer:
        """Run a query, and restart it whenever the store has lost or altered what its tasks had written.

        Where it fails, `discard` is done once nothing of it writes any more: restarts write to one result.
        """
        cleanups: list[asyncio.Task[None]] = []
        try:
            return await self._restarted(begin, cleanups)
        except BaseException:
            if discard is not None:
                self._later(_after(cleanups, discard))
            raise

    async def _restarted(self, begin: Callable[[], Query], cleanups: list[asyncio.Task[None]]) -> Answer:
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
                cleanups.append(self._later(query.clean_up()))  # its answer does not wait for that

    async def close(self) -> None:
        """Cancel what runs, and wait until what it and others left behind is deleted."""
        for running in self._running:
            running.cancel()
        if self._running:
            await asyncio.wait([*self._running])
        while self._cleanups:
            await asyncio.gather(*self._cleanups)

    def _later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Delete keys without making anyone wait but `close`."""
        cleanup = asyncio.get_running_loop().create_task(work)
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._cleanups.discard)
        return cleanup


async def _after(cleanups: Sequence[asyncio.Task[None]], discard: Callable[[], Coroutine[Any, Any, None]]) -> None:
    if cleanups:
        await asyncio.wait(cleanups)
    await discard()
