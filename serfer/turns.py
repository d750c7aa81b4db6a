"""Turns of many that want to run, of whom a few do at once, in the order in which they came."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Runner = TypeVar("_Runner", bound=Hashable)


class Turns(Generic[_Runner]):
    """Calls `begin` for those that wait while fewer than `most` run."""

    def __init__(self, most: int, begin: Callable[[_Runner], object]) -> None:
        self._most = most
        self._begin = begin
        self._waiting: dict[_Runner, None] = {}
        self._running: set[_Runner] = set()

    def wait(self, runner: _Runner) -> None:
        """Have one begin when its turn comes."""
        self._waiting[runner] = None
        self._admit()

    def end(self, runner: _Runner) -> None:
        """Let others run instead of one that has ended, or no longer wants to."""
        self._waiting.pop(runner, None)
        self._running.discard(runner)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._most:
            runner = next(iter(self._waiting))
            del self._waiting[runner]
            self._running.add(runner)
            self._begin(runner)
