import asyncio
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest

from serfer.core.errors import UsageError
from serfer.interrupts import signals_held
from serfer.pipeline.event_loop import LoopThread, RunningLoop, result_of, run
from tests.support.signals import signalled

PATIENCE = 60.0


def loop_threads():
    return [thread for thread in threading.enumerate() if thread.name == "serfer-loop"]


@pytest.fixture
def loop():
    before = loop_threads()
    thread = LoopThread()
    yield thread
    if not thread._loop.is_closed():
        thread.close()
    assert loop_threads() == before


def test_a_coroutine_runs_on_the_loops_own_thread(loop):
    async def where():
        return threading.current_thread().name

    assert loop.wait(where()) == "serfer-loop"


@pytest.mark.parametrize("error", [ZeroDivisionError, TimeoutError])
def test_error_of_a_coroutine_reaches_the_waiting_caller(loop, error):
    async def fail():
        await asyncio.sleep(0)
        raise error("its own")

    with pytest.raises(error, match="its own"):
        loop.wait(fail())


@pytest.mark.two_at_once
def test_several_threads_may_wait_at_once(loop):
    async def main():
        both = asyncio.Barrier(2)

        async def meet():
            await both.wait()

        return meet

    meet = loop.wait(main())
    other = threading.Thread(target=lambda: loop.wait(meet()))
    other.start()
    loop.wait(meet())
    other.join(PATIENCE)
    assert not other.is_alive()


@pytest.mark.killed
def test_an_interrupt_cancels_the_awaited_coroutine(loop, monkeypatch):
    started, cancelled = threading.Event(), threading.Event()

    async def hang():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def interrupted(_future, _timeout=None):
        assert started.wait(PATIENCE)
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.Future.result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.wait(hang())
    monkeypatch.undo()
    assert cancelled.wait(PATIENCE)


@pytest.mark.killed
def test_an_interrupt_that_comes_while_the_loop_is_busy_is_not_lost(loop):
    """The kernel may hand it to the loop's thread, as while that one starts a worker, and the caller blocks on."""
    ended = []

    async def slow_start():
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("in its own time")

    with pytest.raises(KeyboardInterrupt):
        loop.wait(slow_start())
    loop.close()
    assert ended == ["cancelled"]


@pytest.mark.killed
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_line_of_a_wait_is_obeyed_and_leaves_no_lock_locked(loop, monkeypatch, number):
    """Those of the standard library count, too: the loop's thread takes the locks of a future's condition."""
    monkeypatch.setattr("serfer.pipeline.event_loop._SLICE_S", 0.001)
    lines = signalled(partial(result_of, loop.submit(asyncio.sleep(0.003))), number)
    assert lines > 100
    for line in range(1, lines):
        with pytest.raises(KeyboardInterrupt):
            signalled(partial(result_of, loop.submit(asyncio.sleep(PATIENCE))), number, line)
        loop.submit(asyncio.sleep(0)).result(PATIENCE)


def test_closing_cancels_running_tasks_and_awaits_their_clean_up(loop):
    steps = []

    async def main():
        async def work():
            try:
                await asyncio.Event().wait()
            finally:
                for step in range(5):
                    await asyncio.sleep(0)
                    steps.append(step)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        return task

    task = loop.wait(main())
    loop.close()
    assert task.cancelled()
    assert steps == list(range(5))


def test_the_clock_of_a_loop_goes_on_below_a_millisecond_and_while_a_callback_runs():
    async def look():
        times = [asyncio.get_running_loop().time() for _ in range(1000)]
        assert times == sorted(set(times))
        return asyncio.get_running_loop().call_later(1.0, print).when() - times[-1]

    assert run(look()) == pytest.approx(1.0, abs=0.1)  # timers are of the same clock


WITHOUT = """
import asyncio, sys
sys.modules["uvloop"] = None
from serfer.pipeline.event_loop import LoopThread, new_event_loop, run
assert new_event_loop is asyncio.new_event_loop
assert run(asyncio.sleep(0, "ran")) == "ran"
loop = LoopThread()
assert loop.wait(asyncio.sleep(0, "ran")) == "ran"
loop.close()
"""


def test_without_uvloop_the_loop_is_asyncios_and_nothing_is_said_of_it():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_waiting_for_the_own_loop_is_refused(loop):
    async def wait(waiting):
        with pytest.raises(UsageError, match="its own event loop"):
            waiting().wait(asyncio.sleep(0))

    loop.wait(wait(lambda: loop))
    loop.close()
    run(wait(RunningLoop))


@pytest.mark.killed
def test_all_signals_reach_their_handlers_though_the_first_raises():
    came = []

    def interrupt(number, _frame):
        came.append(number)
        raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGINT, signal.SIGTERM]
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(KeyboardInterrupt), signals_held() as let_through:  # noqa: PT012 - a block is what is tested
            for number in numbers:
                signal.raise_signal(number)
            let_through()
        assert {signal.getsignal(number) for number in before} == {interrupt}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert came == numbers


def test_interpreter_that_may_handle_no_signals_holds_none():
    block = "from serfer.interrupts import signals_held\nwith signals_held() as let_through:\n    let_through()"
    code = f"import sys\nsys.path[:] = {sys.path}\n{block}"
    assert pytest.importorskip("_testcapi").run_in_subinterp(code) == 0
