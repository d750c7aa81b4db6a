"""An invoker that notes what the responses of a plan's functions say of their environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self, TypeVar

from drivers.clock import LOOP_CLOCK, Clock
from drivers.dispatching.environments import Environments, Use
from drivers.dispatching.prewarming import WarmingInvoker
from drivers.invoker import SharedInvoker
from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import Report, Task, Warmed, WarmUp

_Result = TypeVar("_Result", Report | Failure, Warmed | Failure)


class FunctionInvoker(SharedInvoker, WarmingInvoker, Protocol):
    """An invoker of functions, which have names where they are."""

    def called(self, function: str) -> str:
        """Return the name of a function at its service."""
        ...


class ObservedInvoker:
    """Passes everything on to `invoker`, and notes in `environments`, by function, how each invocation has ended."""

    def __init__(
        self, invoker: FunctionInvoker, environments: Mapping[str, Environments], clock: Clock = LOOP_CLOCK
    ) -> None:
        self._invoker = invoker
        self._environments = environments
        self._clock = clock

    def called(self, function: str) -> str:
        """Return the name of a function at its service."""
        return self._invoker.called(function)

    async def invoke(self, function: str, task: Task, timeout_s: float) -> Report | Failure:
        """Invoke a function for one task."""
        with _Watched(self._environments[function], self._clock) as watched:
            return watched.noted(await self._invoker.invoke(function, task, timeout_s))

    async def invoke_shared(self, function: str, tasks: Sequence[Task], timeout_s: float) -> list[Report | Failure]:
        """Invoke a function once for several tasks."""
        with _Watched(self._environments[function], self._clock) as watched:
            results = await self._invoker.invoke_shared(function, tasks, timeout_s)
            watched.noted(next((each for each in results if isinstance(each, Report)), results[0]))
            return results

    async def warm(self, function: str, request: WarmUp) -> Warmed | Failure:
        """Send a warm-up request, and wait until its environment is free again."""
        with _Watched(self._environments[function], self._clock) as watched:
            return watched.noted(await self._invoker.warm(function, request))

    async def close(self) -> None:
        """Release connections."""
        await self._invoker.close()


class _Watched:
    """An invocation of one function; one that ends without a result may have lost its environment."""

    def __init__(self, environments: Environments, clock: Clock) -> None:
        self._environments = environments
        self._clock = clock
        self._use: Use | None = None

    def __enter__(self) -> Self:
        self._use = self._environments.began(self._clock.time())
        return self

    def noted(self, result: _Result) -> _Result:
        """Note the result of the invocation, and return it."""
        use, self._use = self._use, None
        if use is None:
            return result
        if isinstance(result, Failure):  # one that was refused has reached no environment
            self._environments.failed(use, lost=result.kind is not FailureKind.THROTTLED)
        else:
            now = self._clock.time()
            self._environments.answered(use, result.environment, now, cold=result.init_ms > 0)
        return result

    def __exit__(self, *_: object) -> None:
        if self._use is not None:
            self._environments.failed(self._use, lost=True)
