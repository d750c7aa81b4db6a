"""An invoker that runs tasks in threads of this process: no isolation, no cold start, no limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from serfer.core.run import Failure, FailureKind
from serfer.core.wire import Report, Task

Handler = Callable[[Task], Report]


class InProcessInvoker:
    """Calls a worker's `run`, the same code as in Lambda, for every function name alike."""

    def __init__(self, handler: Handler, threads: int) -> None:
        self._handler = handler
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="serfer-worker")

    async def invoke(self, function: str, task: Task, timeout_s: float) -> Report | Failure:
        """Run the task in a thread; whatever it raises comes back as a failure."""
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, self._handler, task)
        except TimeoutError:
            return Failure(FailureKind.TIMED_OUT, "TimeoutError", f"{function} took longer than {timeout_s:g} s")
        except MemoryError:
            return Failure(FailureKind.OUT_OF_MEMORY, "MemoryError", f"{function} ran out of memory")
        except Exception as error:  # noqa: BLE001 - as Lambda does with whatever a handler raises
            return Failure(FailureKind.FAILED_IN_CODE, type(error).__name__, str(error).partition("\n")[0])

    async def close(self) -> None:
        """Wait for running tasks and end the threads."""
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
