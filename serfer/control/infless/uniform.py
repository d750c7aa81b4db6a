"""Uniform scaling: as many like instances as the rate needs, each kept for a fixed time after it was last needed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from serfer.control.infless.fleet import Assignment, FrontQueue, Instance, Registry, Step
from serfer.control.infless.options import Function, Option
from serfer.control.infless.scheduling import spread
from serfer.control.infless.servers import Placement, Servers

KEEP_ALIVE_S: Final = 300.0
"""Both baselines' (5.1)."""
Place = Callable[[Option, Servers], Placement | None]


@dataclass
class _Instances:
    """A function's instances in the order of their launches; those beyond what is needed have a time since when."""

    running: list[Instance] = field(default_factory=list)
    spare_since: list[float] = field(default_factory=list)

    def needed(self, rate: float) -> int:
        """Return how many instances, oldest first, take a rate; more than there are where they do not."""
        left = rate
        for number, one in enumerate(self.running):
            if left <= 0:
                return number
            left -= one.option.up
        return len(self.running) + (left > 0)


class Uniform(ABC):
    """A policy that scales out by launching one kind of instance, and in by a fixed keep-alive."""

    name: str

    def __init__(
        self,
        functions: Sequence[Function],
        servers: Servers,
        *,
        keep_alive_s: float = KEEP_ALIVE_S,
        place: Place = spread,
    ) -> None:
        self.functions, self.servers = functions, servers
        self._keep_alive_s, self._place = keep_alive_s, place
        self._registry = Registry(servers)
        self._of = [_Instances() for _ in functions]

    @abstractmethod
    def option(self, function: int, rate: float) -> Option | None:
        """Return what to launch for a rate; None where nothing keeps the SLO."""

    @abstractmethod
    def front(self, function: int) -> FrontQueue | None:
        """Return the buffer before the instances."""

    def step(self, now_s: float, rates: Sequence[float]) -> Step:
        """Launch what the rates need, and stop what they have not needed for the keep-alive; see `ClusterPolicy`."""
        launched: list[Instance] = []
        stopped: list[Instance] = []
        unplaced = 0.0
        for number, rate in enumerate(rates):
            mine = self._of[number]
            needed = mine.needed(rate)
            if needed > len(mine.running):
                unplaced += self._launch(number, rate, launched)
                needed = len(mine.running)
            mine.spare_since = mine.spare_since[: len(mine.running) - needed]
            mine.spare_since += [now_s] * (len(mine.running) - needed - len(mine.spare_since))
            while mine.spare_since and now_s - mine.spare_since[0] >= self._keep_alive_s:
                mine.spare_since.pop(0)
                stopped.append(self._registry.stop(mine.running.pop()))
        return Step(tuple(launched), tuple(stopped), unplaced)

    def assigned(self, function: int, rate: float) -> list[Assignment]:
        """Return all instances: a platform sends a request to any, in proportion to what they take."""
        mine = self._of[function].running
        up = sum(one.option.up for one in mine)
        return [Assignment(one, rate * one.option.up / up) for one in mine]

    def _launch(self, function: int, rate: float, launched: list[Instance]) -> float:
        """Launch for what the running instances do not take; returns what is unplaced."""
        mine = self._of[function]
        option = self.option(function, rate)
        residual = rate - sum(one.option.up for one in mine.running)
        if option is None:
            return residual
        wanted = math.ceil(residual / option.up - _SLACK)
        for count in range(wanted):
            placement = self._place(option, self.servers)
            if placement is None:
                return residual - count * option.up
            one = self._registry.launch(function, option, placement)
            mine.running.append(one)
            launched.append(one)
        return 0.0


_SLACK: Final = 1e-9
