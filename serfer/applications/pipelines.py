"""The pipelines of variants: fetched and opened once when they are first selected, closed when nothing needs them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Final

from serfer.control.selection import FUNCTIONS
from serfer.core.errors import UsageError
from serfer.core.variants import Variant
from serfer.fleet.log_events import log_event
from serfer.pipeline.pipeline import AsyncPipeline

AT: Final = "@"
"""What stands between a variant's served name and its place, where that is an instance."""


def served_name(application: str, variant: str, place: str = FUNCTIONS) -> str:
    name = f"{application}:{variant}"
    return name if place == FUNCTIONS else f"{name}{AT}{place}"


class VariantPipelines:
    """Pipelines by served name, which `served` holds beside others while they are open; on one event loop.

    `open_` fetches a variant, whose name it is given, and opens it at a place; cancelled, it leaves nothing.
    """

    def __init__(
        self, open_: Callable[[str, Variant, str], Awaitable[AsyncPipeline]], served: MutableMapping[str, AsyncPipeline]
    ) -> None:
        self._open = open_
        self._served = served
        self._own: set[str] = set()
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._in_flight: Counter[str] = Counter()
        self._kept: frozenset[str] = frozenset()
        self._places: frozenset[str] | None = None

    def is_open(self, name: str) -> bool:
        return name in self._own

    def get(self, name: str) -> AsyncPipeline:
        return self._served[name]

    async def open(self, name: str, variant: Variant, place: str) -> None:
        """Open a variant, unless it is; several callers wait for one opening. Raises what `open_` raises."""
        if name in self._own:
            return
        if name not in self._opening:
            self._opening[name] = asyncio.create_task(self._opened(name, variant, place))
        await asyncio.shield(self._opening[name])

    async def warm(self, name: str, variant: Variant, place: str) -> bool:
        """Open a variant and warm its functions up for one query; returns whether they are warm.

        Raises what `open` raises.
        """
        with self.running(name):
            await self.open(name, variant, place)
            try:
                warmths = await self._served[name].warm()
            except UsageError:  # workers in process are always warm
                return True
        return not any(warmth.problem for warmth in warmths)

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        self._in_flight[name] += 1
        try:
            yield
        finally:
            self._in_flight[name] -= 1
            self._close_unused(name)

    def keep(self, variants: Iterable[str]) -> None:
        self._kept = frozenset(variants)
        for name in [*self._own]:
            self._close_unused(name)

    def use_places(self, instances: Iterable[str]) -> None:
        self._places = frozenset(instances)
        for name in [*self._own]:
            self._close_unused(name)

    @property
    def busy_places(self) -> frozenset[str]:
        return frozenset(name.partition(AT)[2] for name, count in self._in_flight.items() if count and AT in name)

    async def close(self) -> None:
        for task in [*self._opening.values()]:
            task.cancel()
        if waiting := [*self._opening.values(), *self._closing]:
            await asyncio.wait(waiting)

    async def _opened(self, name: str, variant: Variant, place: str) -> None:
        begun = asyncio.get_running_loop().time()
        try:
            pipeline = await self._open(name, variant, place)
        finally:
            del self._opening[name]
        self._served[name] = pipeline
        self._own.add(name)
        took_s = round(asyncio.get_running_loop().time() - begun, 3)
        log_event(logging.INFO, "variant opened", variant=name, seconds=took_s)
        self._close_unused(name)

    def _is_kept(self, name: str) -> bool:
        variant, _, instance = name.partition(AT)
        gone = instance and self._places is not None and instance not in self._places
        return variant in self._kept and not gone

    def _close_unused(self, name: str) -> None:
        if self._is_kept(name) or name not in self._own or self._in_flight[name]:
            return
        self._own.discard(name)
        del self._in_flight[name]
        pipeline = self._served.pop(name)
        log_event(logging.INFO, "variant closed", variant=name)
        closing = asyncio.create_task(pipeline.close())  # `close` waits for it
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
