"""An invoker that runs tasks in threads of this process: no isolation, no cold start, no limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from serfer.core.errors import UsageError
from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import Report, Task, TaskError
from serfer.drivers.invoker import to_failure

Handler = Callable[[Task], Report]
SharedHandler = Callable[[Sequence[Task]], Sequence[Report | TaskError]]
_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


class InProcessInvoker:
    """Calls a worker's `run` and `run_shared`, the same code as in Lambda, for every function name alike.

    It runs `at_once` tasks at once; its caller sends no more, since those would wait out of turn. Without `shared`,
    tasks that should share an invocation run one after the other in one thread. `events` runs a task whose caller does
    not wait, `close_worker` closes the worker once its tasks have ended.
    """

    def __init__(
        self,
        handler: Handler,
        threads: int,
        shared: SharedHandler | None = None,
        events: Callable[[Task], None] | None = None,
        close_worker: Callable[[], None] = lambda: None,
    ) -> None:
        self._handler = handler
        self._shared = shared or (lambda tasks: [handler(task) for task in tasks])
        self._events = events
        self._close_worker = close_worker
        self.at_once = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="serfer-worker")

    async def invoke(self, function: str, task: Task, timeout_s: float) -> Report | Failure:
        return await self._call(self._handler, task, function, timeout_s)

    async def invoke_shared(self, function: str, tasks: Sequence[Task], timeout_s: float) -> list[Report | Failure]:
        results = await self._call(self._shared, tasks, function, timeout_s)
        if isinstance(results, Failure):
            return [results] * len(tasks)
        return [to_failure(result) for result in results]

    async def start(self, function: str, task: Task) -> Failure | None:  # noqa: ARG002 - a contract
        if self._events is None:
            raise UsageError("this invoker was given no handler of events")
        self._threads.submit(self._events, task)
        return None

    async def _call(
        self, handler: Callable[[_Request], _Result], request: _Request, function: str, timeout_s: float
    ) -> _Result | Failure:
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, handler, request)
        except TimeoutError:
            return Failure(FailureKind.TIMED_OUT, "TimeoutError", f"{function} took longer than {timeout_s:g} s")
        except MemoryError:
            return Failure(FailureKind.OUT_OF_MEMORY, "MemoryError", f"{function} ran out of memory")
        except Exception as error:  # noqa: BLE001 - as Lambda does with whatever a handler raises
            return Failure(FailureKind.FAILED_IN_CODE, type(error).__name__, str(error).partition("\n")[0])

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        self._close_worker()
