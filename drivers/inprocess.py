"""An invoker that runs tasks in threads of this process: no isolation, no cold start, no limits."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import TypeVar

from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import Report, Task, TaskError
from serfer.drivers.invoker import timed_out, to_failure

Handler = Callable[[Task], Report]
SharedHandler = Callable[[Sequence[Task]], Sequence[Report | TaskError]]
_Request = TypeVar("_Request")
_Result = TypeVar("_Result")
_Call = tuple[Callable[[], object], Callable[[], object]]
_Calls = SimpleQueue[_Call | None]


class InProcessInvoker:
    """Calls a worker's `run` and `run_shared`, the same code as in Lambda, for every function name alike.

    It runs `at_once` tasks at once; its caller sends no more, since those would wait out of turn. Without `shared`,
    tasks of one invocation run one after the other. `events` runs a task whose caller does not wait.
    """

    def __init__(
        self,
        handler: Handler,
        threads: int,
        shared: SharedHandler | None = None,
        events: Callable[[Task], object] = bool,
        close_worker: Callable[[], None] = lambda: None,
    ) -> None:
        self._handler = handler
        self._shared = shared or (lambda tasks: [handler(task) for task in tasks])
        self._events = events
        self._close_worker = close_worker
        self.at_once = threads
        shared_threads = _Threads(threads)
        self.submit = shared_threads.submit
        self._end_threads = weakref.finalize(self, shared_threads.end)

    async def invoke(self, function: str, task: Task, timeout_s: float) -> Report | Failure:
        return await self._call(self._handler, task, function, timeout_s)

    async def invoke_shared(self, function: str, tasks: Sequence[Task], timeout_s: float) -> list[Report | Failure]:
        results = await self._call(self._shared, tasks, function, timeout_s)
        if isinstance(results, Failure):
            return [results] * len(tasks)
        return [result if isinstance(result, Report) else to_failure(result) for result in results]

    async def start(self, function: str, task: Task) -> Failure | None:  # noqa: ARG002 - a contract
        self.submit(partial(self._events, task), int)
        return None

    def run(self, function: str, task: Task, timeout_s: float) -> Report | Failure:
        try:
            return self._handler(task)
        except Exception as error:  # noqa: BLE001 - as Lambda does with whatever a handler raises
            return _failure(function, error, timeout_s)

    async def _call(
        self, handler: Callable[[_Request], _Result], request: _Request, function: str, timeout_s: float
    ) -> _Result | Failure:
        ended, results, left = asyncio.Event(), list[_Result | Failure](), list[bool]()

        def work() -> None:
            if not left:
                try:
                    results.append(handler(request))
                except BaseException as error:  # noqa: BLE001 - as Lambda does with whatever a handler raises
                    results.append(_failure(function, error, timeout_s))

        self.submit(work, ended.set)
        try:
            async with asyncio.timeout(timeout_s):
                await ended.wait()
        except TimeoutError:
            return timed_out(function, timeout_s)
        finally:
            left.append(True)  # its caller: what has not begun need not
        return results.pop()

    async def close(self) -> None:
        await asyncio.to_thread(self._end_threads)
        self._close_worker()


class _Threads:
    """So many threads, of which the idle one that was busy last does the next work.

    In turns, as an executor's, they cost a query three switches more. They are there from the beginning: `Thread.start`
    waits for ever for a thread that finds no memory. Each tells of its work's end once it is idle.
    """

    def __init__(self, number: int) -> None:
        self._lock = Lock()
        self._waiting: deque[_Call] = deque()
        self._calls: list[_Calls] = [SimpleQueue() for _ in range(number)]
        self._idle = [*self._calls]
        self._all = [Thread(target=self._serve, args=(each,), name="serfer-worker", daemon=True) for each in self._idle]
        for thread in self._all:
            thread.start()

    def submit(self, work: Callable[[], object], then: Callable[[], object]) -> None:
        call = work, partial(asyncio.get_running_loop().call_soon_threadsafe, then)
        with self._lock:
            if self._idle:
                self._idle.pop().put(call)
            else:
                self._waiting.append(call)

    def end(self) -> None:
        for calls in self._calls:
            calls.put(None)  # a thread looks at it once nothing waits
        for thread in self._all:
            if thread is not current_thread():
                thread.join()

    def _serve(self, calls: _Calls) -> None:
        while call := calls.get():
            while call:
                work, tell = call
                with suppress(Exception):  # an event's: nobody waits for it
                    work()
                with self._lock:
                    call = self._waiting.popleft() if self._waiting else None
                    if call is None:
                        self._idle.append(calls)
                with suppress(RuntimeError):  # a loop that has ended waits for nobody
                    tell()
                del work, tell  # and the arrays that they refer to


def _failure(function: str, error: BaseException, timeout_s: float) -> Failure:
    if isinstance(error, TimeoutError):
        return timed_out(function, timeout_s)
    if isinstance(error, MemoryError):
        return Failure(FailureKind.OUT_OF_MEMORY, "MemoryError", f"{function} ran out of memory")
    return Failure(FailureKind.FAILED_IN_CODE, type(error).__name__, str(error).partition("\n")[0])
