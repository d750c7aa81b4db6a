"""Asynchronous invocation: a function's events wait in line and are tried again when throttled or failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from serfer.local.lambda_.environment import Invocation, Outcome

Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True)
class EventPolicy:
    """The retries of an event: their number and time, in seconds; the defaults are Lambda's."""

    retry_delays: tuple[float, ...] = (60.0, 120.0)  # after each function error
    throttle_delay: float = 1.0  # after the first throttled try, doubled after each
    throttle_delay_max: float = 300.0
    age_max: float = 6 * 3600.0


@dataclass(frozen=True)
class _Event:
    request_id: str
    payload: bytes
    born: float
    failures: int = 0


class EventQueue:
    """The events of one function, started in order; `dispatch` says whether an environment took one."""

    def __init__(
        self,
        dispatch: Callable[[Invocation], bool],
        policy: EventPolicy,
        *,
        clock: Callable[[], float],
        sleep: Sleep,
        on_drop: Callable[[str], None],
    ) -> None:
        self._dispatch = dispatch
        self._policy = policy
        self._clock = clock
        self._sleep = sleep
        self._on_drop = on_drop
        self._waiting: asyncio.Queue[_Event] = asyncio.Queue()
        self._tasks = {asyncio.create_task(self._run())}

    def put(self, request_id: str, payload: bytes) -> None:
        """Take an event; its outcome goes nowhere."""
        self._waiting.put_nowait(_Event(request_id, payload, self._clock()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            event = await self._waiting.get()
            delay = self._policy.throttle_delay
            while not self._start(event):
                if self._clock() - event.born > self._policy.age_max:
                    self._on_drop(f"event {event.request_id} dropped: throttled for too long")
                    break
                await self._sleep(delay)
                delay = min(2 * delay, self._policy.throttle_delay_max)

    def _start(self, event: _Event) -> bool:
        def done(outcome: Outcome) -> None:
            if outcome.error:
                self._failed(event, outcome.error)

        return self._dispatch(Invocation(event.request_id, event.payload, done))

    def _failed(self, event: _Event, error: str) -> None:
        delays = self._policy.retry_delays
        if event.failures >= len(delays) or self._clock() - event.born > self._policy.age_max:
            self._on_drop(f"event {event.request_id} dropped after {event.failures + 1} tries: {error}")
            return
        retry = _Event(event.request_id, event.payload, event.born, event.failures + 1)
        task = asyncio.create_task(self._again(retry, delays[event.failures]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _again(self, event: _Event, delay: float) -> None:
        await self._sleep(delay)
        self._waiting.put_nowait(event)
