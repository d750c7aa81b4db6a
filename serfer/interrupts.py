"""Signals of a thread that waits for others: their handlers are called where it holds no lock."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

_NUMBERS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_held() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C and SIGTERM back within the block, which calls what it gets wherever their handlers may raise.

    Python calls handlers between any two instructions of the main thread. An exception that comes just when a lock was
    taken leaves it locked for ever, and a thread that then needs it hangs, as does whoever waits for that thread.
    Handlers of signals that nobody let through are called at the end; of several all are called, whatever they raise.
    Other threads, and sub-interpreters, have none: nothing is held there.
    """
    handlers: dict[int, Any] = {}
    came: deque[tuple[int, FrameType | None]] = deque()
    held = True

    def let_through() -> None:
        with ExitStack() as calls:  # it begins with the last
            while came:
                number, frame = came.pop()
                calls.callback(handlers[number], number, frame)

    def note(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))
        if not held:
            let_through()

    try:
        for number in _NUMBERS:
            if callable(handler := signal.getsignal(number)):
                handlers[number] = handler
                try:
                    signal.signal(number, note)
                except ValueError:  # in another thread than the main one, or a sub-interpreter
                    del handlers[number]
        yield let_through
    finally:
        held = False
        try:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        finally:
            let_through()
