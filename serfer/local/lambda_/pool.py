"""The environments of all functions under one concurrency limit."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING

from serfer.local.lambda_.environment import Environment, Host, Invocation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from serfer.core.costs.aws import LambdaFacts
    from serfer.local.lambda_.conditions import Conditions, Counts
    from serfer.local.lambda_.events import Sleep
    from serfer.local.lambda_.function import FunctionConfig

_MEMORY_CHECK_S = 0.05


class EnvironmentPool:
    """Gives each invocation the most recently used idle environment of its function, or a new one, and counts it."""

    def __init__(  # noqa: PLR0913 - of a service's settings
        self,
        facts: LambdaFacts,
        runtimes: Mapping[Path, Path],
        *,
        concurrency: int,
        keep_alive_s: float,
        clock: Callable[[], float],
        on_log: Callable[[str], None] | None,
        counts: Counts,
        conditions: Conditions,
        freezes: bool = False,
        sizes: Mapping[str, int],
    ) -> None:
        self._host = Host(
            facts, runtimes, clock, on_log, self._freed, self._orphaned, self._reaped, counts, freezes, conditions
        )
        self._sizes = sizes
        self._crashed: Counter[str] = Counter()  # environments that no other has taken the place of, by function
        self._concurrency = concurrency
        self._keep_alive_s = keep_alive_s
        self._idle: dict[str, deque[Environment]] = {}  # by function, the most recently used last; some may have died
        self._busy: set[Environment] = set()
        self._all: set[Environment] = set()
        self._memory_check: asyncio.TimerHandle | None = None
        self._stopping = False

    @property
    def environments(self) -> int:
        return sum(not environment.dead for environment in self._all)

    def dispatch(self, function: FunctionConfig, invocation: Invocation) -> bool:
        """Give the invocation to an environment; False if as many are busy as the account may have."""
        counts = self._host.counts
        environment = self._place(function, invocation)
        if environment is None:
            counts.refused += 1
            return False
        counts.invocations[function.name] += 1
        counts.slowed += environment.slowness > 1
        return True

    def _place(self, function: FunctionConfig, invocation: Invocation) -> Environment | None:
        if len(self._busy) >= self._concurrency or self._stopping:
            return None
        environment = self._take_idle(function)
        if environment is not None:
            environment.assign(invocation)
        else:
            environment = self._create(function, invocation)
        self._busy.add(environment)
        if self._memory_check is None:
            self._watch_memory()
        return environment

    def expire(self) -> None:
        oldest = self._host.clock() - self._keep_alive_s
        for idle in self._idle.values():
            while idle and (idle[0].dead or idle[0].idle_since <= oldest):
                idle.popleft().kill()

    async def expire_forever(self, sleep: Sleep) -> None:
        """Expire on time, within a tenth of the keep-alive time."""
        while True:
            await sleep(self._keep_alive_s / 10)
            self.expire()

    async def stop(self) -> None:
        self._stopping = True
        if self._memory_check is not None:
            self._memory_check.cancel()
        for environment in list(self._all):
            environment.kill()
        await asyncio.gather(*(environment.reaped.wait() for environment in list(self._all)))

    def _take_idle(self, function: FunctionConfig) -> Environment | None:
        idle = self._idle.get(function.reference)
        oldest = self._host.clock() - self._keep_alive_s
        while idle:
            environment = idle.pop()
            same = environment.function is function  # its settings and code may have changed
            if same and not environment.dead and environment.idle_since > oldest:
                return environment
            environment.kill()
        return None

    def _create(self, function: FunctionConfig, invocation: Invocation) -> Environment:
        again = self._host.freezes and self._crashed[function.reference] > 0
        self._crashed[function.reference] -= again
        environment = Environment(function, self._host, self._host.conditions.slowness(), again=again)
        environment.assign(invocation)
        self._all.add(environment)
        environment.start_in(self._host.conditions.placing_s(self._sizes[function.reference]))
        return environment

    def _freed(self, environment: Environment) -> None:
        self._busy.discard(environment)
        self._crashed[environment.function.reference] += environment.crashed
        if not environment.dead:
            self._idle.setdefault(environment.function.reference, deque()).append(environment)

    def _orphaned(self, environment: Environment, invocation: Invocation) -> None:
        if not self._stopping:
            self._place(environment.function, invocation)  # the dead one's slot is free

    def _reaped(self, environment: Environment) -> None:
        self._all.discard(environment)

    def _watch_memory(self) -> None:
        for environment in list(self._busy):
            environment.check_memory()
        loop = asyncio.get_running_loop()
        self._memory_check = loop.call_later(_MEMORY_CHECK_S, self._watch_memory) if self._busy else None
