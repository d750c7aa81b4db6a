"""The gate that tasks of an offline job pass: as many at once as the online load leaves room for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Event, Thread

from serfer.control.throttle import PERIOD_S, OfflineThrottle, OnlineLoad, Thresholds
from serfer.core.errors import SerferError
from serfer.offline.load_source import LoadSource

_LOG = logging.getLogger("serfer.offline")


class OfflineGate:
    """Lets tasks start; a thread of its own asks the `sources` every two seconds, and never stops a task that runs.

    `refused` returns how many invocations of the job's own tasks have been refused with 429 so far. `clock` is in
    seconds.
    """

    def __init__(
        self,
        sources: Sequence[LoadSource] = (),
        *,
        limits: Thresholds | None = None,
        most: int = 1,
        refused: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources
        self._refused, self._refused_before = refused, refused()
        self._clock = clock
        self._throttle = OfflineThrottle(clock(), most, watches=bool(sources), limits=limits)
        self._running = 0
        self._paused_since: float | None = None
        self._paused_s = 0.0
        self._changed = Condition()
        self._closed = Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe within the block; raises what a source raises at first, so that a wrong URL is no silent pause."""
        self.observe([source.read() for source in self._sources])
        thread = Thread(target=self._watch, name="serfer-offline", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._closed.set()
            thread.join(PERIOD_S)  # an interrupt may have left our lock locked

    def observe(self, loads: Sequence[OnlineLoad | None]) -> None:
        with self._changed:
            total = self._refused()
            self._throttle.observe(self._clock(), loads, total - self._refused_before)
            self._refused_before = total
            self._note()
            self._changed.notify_all()

    def resize(self, most: int) -> None:
        with self._changed:
            self._throttle.resize(most)

    def try_enter(self) -> bool:
        with self._changed:
            if self._running >= self._throttle.limit(self._clock()):
                return False
            self._running += 1
            return True

    def leave(self) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        with self._changed:
            if self._running >= self._throttle.limit(self._clock()):
                self._changed.wait(timeout_s)

    @contextmanager
    def task(self) -> Iterator[None]:
        while not self.try_enter():
            self.wait(PERIOD_S)
        try:
            yield
        finally:
            self.leave()

    @property
    def reason(self) -> str:
        with self._changed:
            return self._note()

    @property
    def paused_s(self) -> float:
        with self._changed:
            self._note()
            since = self._paused_since
            return self._paused_s + (0.0 if since is None else self._clock() - since)

    def _note(self) -> str:
        now = self._clock()
        reason = self._throttle.reason(now)
        if reason and self._paused_since is None:
            self._paused_since = now
        elif not reason and self._paused_since is not None:
            self._paused_s += now - self._paused_since
            self._paused_since = None
        return reason

    def _watch(self) -> None:
        while not self._closed.wait(PERIOD_S):
            self.observe([_read_load(source) for source in self._sources])


def _read_load(source: LoadSource) -> OnlineLoad | None:
    try:
        return source.read()
    except SerferError:
        return None
    except Exception:  # noqa: BLE001 - the thread must go on looking: the job would stand still, or take no notice of the load
        _LOG.exception("online load")
        return None
