"""The event loops of pipelines: one in a thread of its own, for callers that are not asynchronous, or a service's.

All of them are uvloop's where it is installed, and asyncio's where it is not: packages of functions do without it, and
it runs on Linux and macOS alone.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

from serfer.core.errors import UsageError
from serfer.interrupts import signals_held

T = TypeVar("T")

_SLICE_S = 0.2  # an interrupt waits no longer for its handler
_STORE_CALLS = 64  # at once: as many as a store in Redis has connections (storage/redis/url.py)
_COMPUTING = 4  # threads
_QUICK_BYTES = 1 << 20  # copied or checked within a millisecond

try:
    from uvloop import Loop
except ImportError:
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:

    class _Loop(Loop):
        """uvloop's, by the clock that its timers count from; its own time is a turn's start, in whole milliseconds."""

        time = staticmethod(time.monotonic)

    new_event_loop = _Loop


_never_freed_in_forks: WeakSet[object] = WeakSet()


def never_free_in_forks(owner: object) -> None:
    """Keep an object, and all that it refers to, for ever in any fork of this process.

    Loops and ONNX Runtime's sessions wait, where they are freed, for threads that a fork does not have.
    """
    _never_freed_in_forks.add(owner)


def _keep() -> None:
    for owner in _never_freed_in_forks:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))  # the end of the interpreter frees whatever it can reach


os.register_at_fork(after_in_child=_keep)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


class LoopThread:
    """Runs coroutines for a thread that waits for them; an interrupt of that thread cancels what it waits for.

    The loop's default executor is that of its calls of the store; whatever must not wait for a slow store has another.
    """

    def __init__(self) -> None:
        self._use(new_event_loop())
        self._thread = threading.Thread(target=self._loop.run_forever, name="serfer-loop", daemon=True)
        self._thread.start()

    def _use(self, loop: asyncio.AbstractEventLoop) -> None:
        never_free_in_forks(self)
        self._loop, self._process = loop, os.getpid()
        loop.set_default_executor(ThreadPoolExecutor(_STORE_CALLS, "serfer-store"))
        self._computing = ThreadPoolExecutor(_COMPUTING, "serfer-compute")

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result; raises UsageError where its caller would wait for ever."""
        try:
            self.check_caller()
        except UsageError:
            coroutine.close()  # asyncio warns of one that never ran
            raise
        return result_of(self.submit(coroutine))

    @property
    def forked(self) -> bool:
        return os.getpid() != self._process  # no thread runs the loop here, and workers are the parent's

    def _fork_error(self) -> UsageError:
        return UsageError(f"the pipeline belongs to process {self._process}: open one in this fork of it")

    def check_caller(self) -> None:
        """Raise UsageError where a caller would wait for ever: in a fork, and on the loop's own thread."""
        if self.forked:
            raise self._fork_error()
        with suppress(RuntimeError):
            if asyncio.get_running_loop() is self._loop:
                raise UsageError(
                    "this would wait for its own event loop: await the asynchronous pipeline's method here"
                )

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        if os.getpid() != self._process:
            coroutine.close()
            raise self._fork_error()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Run a coroutine on the loop for one on this or another loop; a cancelled caller cancels it."""
        on_loop = asyncio.get_running_loop() is self._loop
        return coroutine if on_loop else asyncio.wrap_future(self.submit(coroutine))

    async def compute(self, size: float, call: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401 - the call's
        """Call what works on so many bytes, in a thread where that takes a loop more than a millisecond."""
        if os.getpid() != self._process:
            raise self._fork_error()
        if size <= _QUICK_BYTES:
            return call(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._computing, call, *arguments)

    def close(self, last: Callable[[], Awaitable[object]] | None = None) -> None:
        """Cancel what still runs, let it end, run `last`, and stop the loop and its thread; nothing in a fork."""
        if self.forked:
            return
        self.wait(_end_everything(last))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._computing.shutdown()


class RunningLoop(LoopThread):
    """The loop that makes it, on which a service runs: it awaits its pipelines there, and ends the loop itself.

    Its default executor, too, becomes that of calls of the store.
    """

    def __init__(self) -> None:
        self._use(asyncio.get_running_loop())

    def close(self, last: Callable[[], Awaitable[object]] | None = None) -> None:
        """Leave the loop running."""


def result_of(future: Future[T]) -> T:
    """Wait for a coroutine's result; an interrupted caller cancels it.

    It waits in slices, between which signals are let through: this thread then holds no lock that the loop needs.
    """
    with signals_held() as let_through:
        try:
            while True:
                let_through()
                try:
                    return future.result(_SLICE_S)
                except TimeoutError:  # the slice's, or the coroutine's own
                    if future.done():
                        return future.result()
        except BaseException:
            future.cancel()
            raise


async def _end_everything(last: Callable[[], Awaitable[object]] | None) -> None:
    """Do what `asyncio.run` does at its end, with `last` once no other task runs."""
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    if last is not None:
        await last()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
