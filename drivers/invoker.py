"""The contract of an invoker: how a driver starts a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import Report, Task, TaskError


class Invoker(Protocol):
    """Starts tasks and waits for their end; failures come back as values of a closed set, never as exceptions."""

    async def invoke(self, function: str, task: Task, timeout_s: float) -> Report | Failure:
        """Run a task on a function and return its report or its failure.

        Cancelling gives up waiting; the task itself may still run to its end.
        """
        ...

    async def close(self) -> None: ...


@runtime_checkable
class SharedInvoker(Invoker, Protocol):
    """An invoker that also runs several tasks of one stage's function as one invocation."""

    async def invoke_shared(self, function: str, tasks: Sequence[Task], timeout_s: float) -> list[Report | Failure]:
        """Run tasks of one stage together and return the result of each, in their order.

        Where the invocation itself fails, all of them have failed.
        """
        ...


@runtime_checkable
class ThreadInvoker(Invoker, Protocol):
    """An invoker of functions in this process, whose threads also do what comes before and after a task."""

    def run(self, function: str, task: Task, timeout_s: float) -> Report | Failure:
        """Run a task in the calling thread, which is one of `submit`'s."""
        ...

    def submit(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Do work, which raises nothing, in a thread, and then the other on the running event loop."""
        ...


def timed_out(function: str, timeout_s: float) -> Failure:
    return Failure(FailureKind.TIMED_OUT, "TimeoutError", f"{function} took longer than {timeout_s:g} s")


def to_failure(result: Report | TaskError) -> Report | Failure:
    """Return a report as it is, and a task's own error in a shared invocation as a failure in code."""
    if isinstance(result, TaskError):
        return Failure(FailureKind.FAILED_IN_CODE, result.error_type, result.message)
    return result
