"""One device, which computes one batch at a time for all engines that share it: the batch with the earliest deadline.

    engine A ──▶ offer ──┐
    engine B ──▶ offer ──┼──▶ the earliest deadline ──▶ computed (the device's thread) ──▶ that engine's answers
    engine C ──▶ offer ──┘                                    └── free again: look

A batch has all of the device, so that its time can be predicted and its profile holds; networks that compute at once
slow each other down, and answer no more queries (`serfer bench instance turns` measures it). Earliest deadline first
is the rule within an engine's queue, too: it answers all in time wherever some order would, and lets no engine wait
for ever, as what waits becomes the earliest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from serfer.control.dispatch import BusyWindow

MAX_HELD = 1024 * 1024 * 1024  # bytes of images, as float32, that may wait


@dataclass(frozen=True, eq=False)
class Offer:
    """A batch that an engine could compute now, predicted to take `seconds`, its first query due at `deadline`.

    `compute` runs in the device's thread; `taken` is called before it and `ended` after it, with its result or error
    and the seconds that it took.
    """

    deadline: float
    seconds: float
    compute: Callable[[], Any]
    taken: Callable[[], None]
    ended: Callable[[Any, Exception | None, float], None]


class Sharer(Protocol):
    """An engine, as its device sees it."""

    @property
    def held_bytes(self) -> int: ...

    def offer(self, now: float) -> Offer | float | None:
        """Return a batch to compute now, or when to ask again, or None for not before something arrives."""
        ...

    def due_s(self, deadline: float) -> float:
        """Return how many seconds of computing wait that are due by a deadline."""
        ...


class Device:
    """Computes for the engines that joined it, on one event loop; at most `most_held` bytes of images wait in all."""

    def __init__(self, most_held: int = MAX_HELD) -> None:
        self.most_held = most_held
        self.free_at = 0.0
        self.opened = time.monotonic()  # as the event loop's clock
        self._busy = BusyWindow(self.opened)
        self._engines: list[Sharer] = []
        self._computing: asyncio.Task[None] | None = None
        self._current: Sharer | None = None
        self._began = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="serfer-engine")

    @property
    def held_bytes(self) -> int:
        return sum(engine.held_bytes for engine in self._engines)

    def join(self, engine: Sharer) -> None:
        self._engines.append(engine)

    async def leave(self, engine: Sharer) -> None:
        """Let an engine's batch end, and compute for it no more; with the last engine the thread ends."""
        if self._current is engine and self._computing is not None:
            await asyncio.wait((self._computing,))
        if engine in self._engines:
            self._engines.remove(engine)
        if not self._engines:
            self._stop_timer()
            await asyncio.to_thread(self._thread.shutdown)

    def computes(self, engine: Sharer) -> bool:
        return self._current is engine

    def ahead_s(self, engine: Sharer, deadline: float) -> float:
        """Return how many seconds of other engines' computing are due by a deadline."""
        return sum(other.due_s(deadline) for other in self._engines if other is not engine)

    def utilisation(self, now: float) -> float:
        return self._busy.share(now, self._began if self._current is not None else None)

    def running_since(self, engine: Sharer) -> float | None:
        return self._began if self._current is engine else None

    def look(self) -> None:
        self._stop_timer()
        if self._computing is not None:
            return
        now = asyncio.get_running_loop().time()
        best: tuple[Sharer, Offer] | None = None
        look_at: float | None = None
        for engine in self._engines:
            offer = engine.offer(now)
            if isinstance(offer, Offer):
                if best is None or offer.deadline < best[1].deadline:
                    best = engine, offer
            elif offer is not None:
                look_at = offer if look_at is None else min(look_at, offer)
        if best is not None:
            self._start(*best, now)
        elif look_at is not None:
            self._timer = asyncio.get_running_loop().call_at(look_at, self.look)

    def _start(self, engine: Sharer, offer: Offer, now: float) -> None:
        self._current, self._began = engine, now
        self.free_at = now + offer.seconds
        offer.taken()
        self._computing = asyncio.get_running_loop().create_task(self._compute(offer))

    async def _compute(self, offer: Offer) -> None:
        result, failure, seconds = None, None, 0.0
        try:
            result, seconds = await asyncio.get_running_loop().run_in_executor(self._thread, _timed, offer.compute)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's have no base of their own
            failure = error
        finally:
            self._busy.add(self._began, asyncio.get_running_loop().time())
            self._computing = self._current = None
            offer.ended(result, failure, seconds)
            self.look()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _timed(compute: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = compute()
    return result, time.perf_counter() - began
