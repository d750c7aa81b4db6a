"""Dynamic batching and load shedding: a thread computes batches of the network while the next ones are gathered.

    run ──▶ in time? ──▶ normalised (a thread) ──▶ queue ──▶ choose ──▶ computed (the engine's thread) ──▶ answers
               │ no                                  ▲         │ late          │
               └──▶ OverloadedError                  └─────────┼───────────────┘ free again: choose
                                                               └──▶ OverloadedError

The decisions are serfer/control/dispatch.py's. The engine learns how fast it is from every batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drivers.driver import RequestContext
from drivers.target import InstanceAnswer
from serfer.control.dispatch import Batching, QueuedQuery, ServiceTimeEstimator, choose, predicted_lateness_s
from serfer.core.errors import DeadlineError, OverloadedError, TaskFailedError, UnavailableError
from serfer.core.plan import Plan
from serfer.instance.network import Array, Network
from serfer.pipeline.reference import normalised

MAX_HELD = 1024 * 1024 * 1024  # bytes of images, as float32, that may wait
_FLOAT_BYTES, _MS_PER_S = 4, 1000.0
_CLOSING = "the instance is closing"
_FULL_S = 1.0  # what is refused because memory is full may come again then


@dataclass(eq=False)
class Counts:
    """Counters of an engine: batches, the images in them, queries that it refused."""

    batches: int = 0
    images: int = 0
    refused: int = 0


@dataclass(frozen=True, eq=False)
class _Entry:
    """A query in the queue, its images, and the answer to come."""

    query: QueuedQuery
    images: Array
    answer: asyncio.Future[InstanceAnswer] = field(repr=False)


class Engine:
    """Answers queries with a network, those that wait together in one batch; a Target, used on one event loop.

    `name` is what answers call the instance. `trouble` is why the last batch failed, empty where it did not.
    """

    def __init__(
        self,
        plan: Plan,
        network: Network,
        batching: Batching,
        times: ServiceTimeEstimator,
        *,
        name: str,
        most_held: int = MAX_HELD,
    ) -> None:
        self.counts = Counts()
        self.trouble = ""
        self._plan = plan
        self._network = network
        self._batching = batching
        self._times = times
        self._name = name
        self._most_held = most_held
        self._queue: list[_Entry] = []
        self._preparing = 0  # images that are being normalised
        self._computing: asyncio.Task[None] | None = None
        self._free_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="serfer-engine")

    @property
    def waiting(self) -> int:
        """The number of images that wait to be computed."""
        return self._preparing + sum(entry.query.images for entry in self._queue)

    async def run(self, batch: NDArray[Any], deadline_s: float, context: RequestContext) -> InstanceAnswer:  # noqa: ARG002 - a Target's
        """Answer one query; see Target.

        Raises OverloadedError where it cannot be answered in `deadline_s` behind the others, DeadlineError where it was
        not, TaskFailedError where the network fails.
        """
        now = self._now()
        query = QueuedQuery(now, len(batch), now + deadline_s, probe=self._computing is None and not self.waiting)
        self._check_room(query, batch)
        try:
            async with asyncio.timeout_at(query.deadline):
                return await self._answer(query, batch)
        except TimeoutError:
            raise DeadlineError(f"no answer by the deadline of {deadline_s * _MS_PER_S:.0f} ms") from None

    async def close(self) -> None:
        """End what waits with UnavailableError, and let the batch that runs end."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for entry in self._queue:
            _fail(entry, UnavailableError(_CLOSING))
        self._queue.clear()
        if self._computing is not None:
            await asyncio.wait((self._computing,))
        await asyncio.to_thread(self._thread.shutdown)

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError(_CLOSING)

    def _check_room(self, query: QueuedQuery, batch: NDArray[Any]) -> None:
        """Refuse a query that would be late, or for which there is no memory."""
        self._check_open()
        image_bytes = batch[0].size * _FLOAT_BYTES
        if (self.waiting + query.images) * image_bytes > self._most_held and self.waiting:
            self.counts.refused += 1
            raise OverloadedError(
                "the queries that wait hold all the memory that there is for them", retry_after_s=_FULL_S
            )
        if query.probe:
            return
        before = [entry.query.images for entry in self._queue if entry.query.deadline <= query.deadline]
        late_s = predicted_lateness_s(query, sum(before) + self._preparing, self._free_at, self._now(), self._times)
        if late_s > 0:
            self.counts.refused += 1
            raise _overloaded(late_s)

    async def _answer(self, query: QueuedQuery, batch: NDArray[Any]) -> InstanceAnswer:
        images: Array = batch
        if batch.dtype == np.uint8:
            self._preparing += query.images
            try:
                images = await asyncio.to_thread(normalised, self._plan, batch)
            finally:
                self._preparing -= query.images
            self._check_open()
        entry = _Entry(query, images, asyncio.get_running_loop().create_future())
        self._queue.append(entry)
        self._look()
        try:
            return await entry.answer
        finally:
            if entry in self._queue:  # the caller has gone
                self._queue.remove(entry)

    def _look(self) -> None:
        """Start the next batch if the engine is free."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._computing is not None or self._closed:
            return
        now, queue = self._now(), self._queue
        dispatch = choose([entry.query for entry in queue], now, self._batching, self._times)
        late, batch = [queue[number] for number in dispatch.late], [queue[number] for number in dispatch.batch]
        gone = {*late, *batch}
        self._queue = [entry for entry in queue if entry not in gone]
        for entry in late:
            self.counts.refused += 1
            _fail(entry, _overloaded(self._times.seconds(entry.query.images)))
        if batch:
            self._computing = asyncio.get_running_loop().create_task(self._compute(batch, now))
        elif dispatch.look_at is not None:
            self._timer = asyncio.get_running_loop().call_at(dispatch.look_at, self._look)

    async def _compute(self, batch: Sequence[_Entry], now: float) -> None:
        count = sum(entry.query.images for entry in batch)
        self._free_at = now + self._times.seconds(count)
        try:
            logits, seconds = await asyncio.get_running_loop().run_in_executor(self._thread, self._timed, batch)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's have no base of their own
            self.trouble = f"the network failed: {str(error).partition(chr(10))[0][:200]}"
            for entry in batch:
                _fail(entry, TaskFailedError(self.trouble))
        else:
            self.trouble = ""
            self._times.learn(count, seconds)
            self.counts.batches += 1
            self.counts.images += count
            self._hand_out(batch, logits, seconds * _MS_PER_S)
        finally:
            self._computing = None
            self._look()

    def _timed(self, batch: Sequence[_Entry]) -> tuple[Array, float]:
        """Compute a batch, in the engine's thread."""
        began = time.perf_counter()
        images = batch[0].images if len(batch) == 1 else np.concatenate([entry.images for entry in batch])
        logits = self._network.run(images)
        return logits, time.perf_counter() - began

    def _hand_out(self, batch: Sequence[_Entry], logits: Array, ms: float) -> None:
        at = 0
        for entry in batch:
            own = logits[at : at + entry.query.images]
            at += entry.query.images
            if not entry.answer.done():
                entry.answer.set_result(InstanceAnswer(own, self._name, len(logits), ms, 0.0))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _fail(entry: _Entry, error: Exception) -> None:
    if not entry.answer.done():
        entry.answer.set_exception(error)


def _overloaded(late_s: float) -> OverloadedError:
    wait_s = max(late_s, _FULL_S)
    return OverloadedError(
        f"the instance has too much to do to answer in time: come again in {wait_s:.0f} s, or give more time",
        retry_after_s=wait_s,
    )
