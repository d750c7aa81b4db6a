"""A thread that does one thing after the other, so that neither queries nor decisions wait for it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread

from serfer.fleet.log_events import log_event


class Background:
    """Runs what it is given in order; at most `bound` things wait. It ends with the process, whatever it does then."""

    def __init__(self, name: str, bound: int) -> None:
        self._bound = bound
        self._waiting: deque[Callable[[], None]] = deque()
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> bool:
        """Have something done, an error of which is logged; returns whether there was room for it."""
        with self._changed:
            if self._closed or len(self._waiting) >= self._bound:
                return False
            self._waiting.append(work)
            self._changed.notify()
            return True

    def close(self, patience_s: float) -> bool:
        """Take nothing more, and wait for what was given before; returns whether all of it was done in time."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                work = self._waiting.popleft()
            try:
                work()
            except Exception as error:  # noqa: BLE001 - what comes next is done all the same
                log_event(logging.ERROR, "background", error, of=self._thread.name, message=repr(error)[:300])
