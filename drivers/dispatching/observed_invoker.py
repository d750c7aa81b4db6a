"""An invoker that notes what the responses of a plan's functions say of their environments."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol, TypeVar

from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import Report, Task, WarmUp, WarmUpAnswer
from serfer.drivers.clock import LOOP_CLOCK, Clock
from serfer.drivers.dispatching.environments import Environments
from serfer.drivers.dispatching.prewarming import WarmingInvoker
from serfer.drivers.invoker import SharedInvoker

_Result = TypeVar("_Result", Report | Failure, WarmUpAnswer | Failure, list[Report | Failure])


class FunctionInvoker(SharedInvoker, WarmingInvoker, Protocol):
    """An invoker of functions, which have names where they are."""

    def called(self, function: str) -> str: ...


class ObservedInvoker:
    """Passes everything on to `invoker`, and notes in `environments`, by function, how each invocation has ended."""

    def __init__(
        self, invoker: FunctionInvoker, environments: Mapping[str, Environments], clock: Clock = LOOP_CLOCK
    ) -> None:
        self._invoker = invoker
        self._environments = environments
        self._clock = clock

    def called(self, function: str) -> str:
        return self._invoker.called(function)

    async def invoke(self, function: str, task: Task, timeout_s: float) -> Report | Failure:
        return await self._observe(function, self._invoker.invoke(function, task, timeout_s))

    async def invoke_shared(self, function: str, tasks: Sequence[Task], timeout_s: float) -> list[Report | Failure]:
        return await self._observe(function, self._invoker.invoke_shared(function, tasks, timeout_s))

    async def warm(self, function: str, request: WarmUp) -> WarmUpAnswer | Failure:
        return await self._observe(function, self._invoker.warm(function, request))

    async def close(self) -> None:
        await self._invoker.close()

    async def _observe(self, function: str, invocation: Awaitable[_Result]) -> _Result:
        environments, results = self._environments[function], list[Report | WarmUpAnswer | Failure]()
        use = environments.began(self._clock.time())
        try:
            result = await invocation
            results += result if isinstance(result, list) else [result]
            return result
        finally:
            report = next((result for result in results if not isinstance(result, Failure)), None)
            failure = results[0] if results else None
            if report:
                environments.answered(use, report.environment, self._clock.time(), cold=report.init_ms > 0)
            else:  # one that was refused has reached no environment
                refused = isinstance(failure, Failure) and failure.kind is FailureKind.THROTTLED
                environments.failed(use, lost=not refused)
