"""A clock that does not wait: when everything has come to rest, it jumps to the next timer (as trio's MockClock)."""

import asyncio
import heapq
import itertools

AT_REST = 100  # turns of the event loop in which neither the clock is called nor a thread begins or ends its work


class FakeClock:
    """Time that passes only while nothing else can happen: no callback is ready, and no thread of the loop's works.

    `slept` are the waits, in order.
    """

    def __init__(self):
        self.now = 1000.0
        self.slept = []
        self._threads = 0
        self._no_threads = asyncio.Event()
        self._no_threads.set()
        self._timers = []
        self._order = itertools.count()
        self._calls = 0

    def time(self):
        self._calls += 1
        return self.now

    def call_at(self, when, callback, *args):
        self._calls += 1
        timer = _Timer(callback, args)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    async def sleep(self, seconds):
        self.slept.append(seconds)
        done = asyncio.get_running_loop().create_future()
        timer = self.call_at(self.now + max(seconds, 0), lambda: done.done() or done.set_result(None))
        try:
            await done
        finally:
            timer.cancel()

    def run(self, main):
        async def with_jumps():
            jumps = asyncio.create_task(self._jump())
            try:
                return await main
            finally:
                jumps.cancel()

        with asyncio.Runner(loop_factory=lambda: _CountingLoop(self)) as runner:
            return runner.run(with_jumps())

    def count(self, threads):
        self._calls += 1
        self._threads += threads
        if self._threads:
            self._no_threads.clear()
        else:
            self._no_threads.set()

    async def _jump(self):
        while True:
            calls = self._calls
            await self._no_threads.wait()
            for _ in range(AT_REST):
                await asyncio.sleep(0)
            if calls == self._calls and self._timers and not self._threads:
                when, _, timer = heapq.heappop(self._timers)
                if timer.callback:
                    self.now = max(self.now, when)
                    timer.callback(*timer.args)


class _Timer:
    def __init__(self, callback, args):
        self.callback, self.args = callback, args

    def cancel(self):
        self.callback = None


class _CountingLoop(asyncio.SelectorEventLoop):
    """Counts the calls that threads do for it."""

    def __init__(self, clock):
        super().__init__()
        self._clock = clock

    def run_in_executor(self, executor, func, *args):
        future = super().run_in_executor(executor, func, *args)
        self._clock.count(1)
        future.add_done_callback(self._done)
        return future

    def _done(self, _future):
        self._clock.count(-1)
