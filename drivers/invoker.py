"""The contract of an invoker: how a driver starts a task."""

from __future__ import annotations

from typing import Protocol

from serfer.core.run import Failure
from serfer.core.wire import Report, Task


class Invoker(Protocol):
    """Starts tasks and waits for their end; failures come back as values of a closed set, never as exceptions."""

    async def invoke(self, function: str, task: Task, timeout_s: float) -> Report | Failure:
        """Run a task on a function and return its report, or why there is none.

        Cancelling gives up waiting; the task itself may still run to its end.
        """
        ...

    async def close(self) -> None:
        """Give back connections and threads."""
        ...
