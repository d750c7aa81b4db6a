import asyncio
import threading

import pytest

from serfer.core.errors import StoreUnavailableError
from serfer.core.keys import StoreCounts
from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import Report, Task, TaskError
from serfer.drivers.inprocess import InProcessInvoker

PATIENCE = 60.0
TASK = Task("d" * 64, "0" * 32, 0, 1, 2, 60.0)
REPORT = Report("e", 0.0, 1.0, 2.0, 3.0, 6.0, 1, 1, StoreCounts())


def invoke(handler, *, times=1, threads=2, timeout_s=PATIENCE):
    async def main():
        calling = InProcessInvoker(handler, threads)
        try:
            return await asyncio.gather(*(calling.invoke("f", TASK, timeout_s) for _ in range(times)))
        finally:
            await calling.close()

    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_a_task_runs_in_a_thread_and_returns_its_report():
    names = []

    def handler(task):
        assert task is TASK
        names.append(threading.current_thread().name)
        return REPORT

    assert invoke(handler) == [REPORT]
    assert names[0].startswith("serfer-worker")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("serfer-worker")]


async def test_closing_ends_the_worker_after_its_last_task():
    ended = []
    calling = InProcessInvoker(
        lambda _: REPORT, 1, events=lambda _: ended.append("task"), close_worker=lambda: ended.append("worker")
    )
    await calling.start("f", TASK)
    await calling.close()
    assert ended == ["task", "worker"]


def test_tasks_run_side_by_side():
    both = threading.Barrier(2, timeout=PATIENCE)

    def handler(_task):
        both.wait()
        return REPORT

    assert invoke(handler, times=2) == [REPORT, REPORT]


def test_a_task_that_takes_too_long_is_given_up():
    leave = threading.Event()

    def handler(_task):
        leave.wait(0.3)
        return REPORT

    [failure] = invoke(handler, timeout_s=0.05)
    assert failure.kind is FailureKind.TIMED_OUT


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (StoreUnavailableError("gone"), FailureKind.FAILED_IN_CODE, "gone"),
        (ZeroDivisionError("oops\ntwice"), FailureKind.FAILED_IN_CODE, "oops"),
        (MemoryError(), FailureKind.OUT_OF_MEMORY, "f ran out of memory"),
    ],
)
def test_worker_exceptions_are_failures_as_in_lambda(error, kind, message):
    def handler(_task):
        raise error

    assert invoke(handler) == [Failure(kind, type(error).__name__, message)]


def invoke_shared(handler, shared, count=2):
    async def main():
        calling = InProcessInvoker(handler, 1, shared)
        try:
            return await calling.invoke_shared("f", [TASK] * count, PATIENCE)
        finally:
            await calling.close()

    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


class TestShared:
    def test_tasks_are_handed_over_together_and_one_may_fail_alone(self):
        def shared(tasks):
            assert tasks == [TASK, TASK]
            return [REPORT, TaskError("MissingKeyError", "gone")]

        report, failure = invoke_shared(None, shared)
        assert report == REPORT
        assert failure == Failure(FailureKind.FAILED_IN_CODE, "MissingKeyError", "gone")

    def test_a_worker_exception_fails_all_shared_queries(self):
        def shared(_tasks):
            raise MemoryError

        failures = invoke_shared(None, shared, count=3)
        assert [failure.kind for failure in failures] == [FailureKind.OUT_OF_MEMORY] * 3

    def test_a_worker_that_cannot_batch_runs_them_one_after_the_other(self):
        seen = []

        def handler(task):
            seen.append(task)
            return REPORT

        assert invoke_shared(handler, None) == [REPORT, REPORT]
        assert seen == [TASK, TASK]
