"""Uniform scaling: as many like instances as the rate needs, each kept for a time after it was last needed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from serfer.control.windows import WarmLevels, WindowPolicy
from serfer_bench.study.policies.infless.fleet import Assignment, FrontQueue, Instance, Registry, Step
from serfer_bench.study.policies.infless.options import Function, Option
from serfer_bench.study.policies.infless.scheduling import spread
from serfer_bench.study.policies.infless.servers import Placement, Servers

KEEP_ALIVE_S: Final = 300.0
"""Both baselines' (5.1)."""


@dataclass
class _Instances:
    """A function's instances in the order of their launches; those beyond what is needed have a time since when.

    `stopped` is the configuration that was stopped last, with which an instance is warmed before it is needed.
    """

    running: list[Instance] = field(default_factory=list)
    spare_since: list[float] = field(default_factory=list)
    stopped: Option | None = None

    def needed(self, rate: float) -> int:
        """Return how many instances, oldest first, take a rate; more than there are where they do not."""
        left = rate
        for number, one in enumerate(self.running):
            if left <= 0:
                return number
            left -= one.option.up
        return len(self.running) + (left > 0)


class Uniform(ABC):
    """A policy that scales out by launching one kind of instance, and in by a keep-alive.

    With `windows`, as `Infless` has them, instances also stay warm as long as those say, and are started again before
    they are needed.
    """

    name: str

    def __init__(
        self,
        functions: Sequence[Function],
        servers: Servers,
        *,
        keep_alive_s: float = KEEP_ALIVE_S,
        windows: Callable[[], WindowPolicy] | None = None,
    ) -> None:
        self.functions, self.servers = functions, servers
        self._keep_alive_s = keep_alive_s
        self._chosen: dict[int, Option] = {}
        self._registry = Registry(servers)
        self._of = [_Instances() for _ in functions]
        self._levels = [WarmLevels(windows) for _ in functions] if windows else []

    def place(self, option: Option, servers: Servers) -> Placement | None:
        return spread(option, servers)

    @abstractmethod
    def option(self, function: int, rate: float) -> Option | None:
        """Return what to launch for a rate; None where nothing keeps the SLO."""

    @abstractmethod
    def front(self, function: int) -> FrontQueue | None:
        """Return the buffer before the instances."""

    def step(self, now_s: float, rates: Sequence[float]) -> Step:
        launched: list[Instance] = []
        stopped: list[Instance] = []
        prewarmed: list[Instance] = []
        warm: list[int] = []
        unplaced = 0.0
        for number, rate in enumerate(rates):
            mine = self._of[number]
            needed = mine.needed(rate)
            if needed > len(mine.running):
                unplaced += self._launch(number, rate, launched)
                needed = len(mine.running)
            mine.spare_since = mine.spare_since[: len(mine.running) - needed]
            mine.spare_since += [now_s] * (len(mine.running) - needed - len(mine.spare_since))
            warm.append(needed + self._warm_beyond(number, now_s, needed))
            stopped += self._expired(mine, now_s, warm[-1])
        for number, instances in enumerate(warm):  # last: what is needed has the room first
            prewarmed += self._prewarm(number, now_s, instances)
        return Step(tuple(launched), tuple(stopped), unplaced, tuple(prewarmed))

    def assigned(self, function: int, rate: float) -> list[Assignment]:
        mine = self._of[function].running
        up = sum(one.option.up for one in mine)
        return [Assignment(one, rate * one.option.up / up) for one in mine]

    def _warm_beyond(self, function: int, now_s: float, needed: int) -> int:
        """Let windows learn what is needed, and return how many instances are to be warm beyond that."""
        if not self._levels:
            return 0
        levels = self._levels[function]
        levels.observe(now_s, needed)
        return levels.wanted(now_s) - levels.busy

    def _expired(self, mine: _Instances, now_s: float, warm: int) -> Iterator[Instance]:
        """Stop what was not needed for the keep-alive, but for those that are to be `warm`."""
        while mine.spare_since and len(mine.running) > warm and now_s - mine.spare_since[0] >= self._keep_alive_s:
            mine.spare_since.pop(0)
            one = mine.running.pop()
            mine.stopped = one.option
            yield self._registry.stop(one)

    def _prewarm(self, function: int, now_s: float, warm: int) -> Iterator[Instance]:
        mine = self._of[function]
        while mine.stopped is not None and len(mine.running) < warm:
            placement = self.place(mine.stopped, self.servers)
            if placement is None:
                return
            one = self._registry.launch(function, mine.stopped, placement)
            mine.running.append(one)
            mine.spare_since.insert(0, now_s - self._keep_alive_s)
            yield one

    def _launch(self, function: int, rate: float, launched: list[Instance]) -> float:
        mine = self._of[function]
        option = self.option(function, rate)
        residual = rate - sum(one.option.up for one in mine.running)
        if option is None:
            return residual
        wanted = math.ceil(residual / option.up - _SLACK)
        for count in range(wanted):
            placement = self.place(option, self.servers)
            if placement is None:
                return residual - count * option.up
            one = self._registry.launch(function, option, placement)
            mine.running.append(one)
            launched.append(one)
        return 0.0


_SLACK: Final = 1e-9
