"""Dynamic batching and load shedding: batches of a network are computed while the next ones are gathered.

    run ──▶ in time? ──▶ normalised (a thread) ──▶ queue ──▶ choose ──▶ computed (serfer/instance/device.py) ──▶ answers
               │ no                                  ▲         │ late          │
               └──▶ OverloadedError                  └─────────┼───────────────┘ free again: choose
                                                               └──▶ OverloadedError

The decisions are serfer/control/dispatch.py's. The engine learns how fast it is from every batch. Its network may be
elsewhere for a time: queries then wait for it as they wait for one another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.control.dispatch import (
    Batching,
    BusyWindow,
    QueuedQuery,
    ServiceTimeEstimator,
    choose,
    predicted_lateness_s,
)
from serfer.core.errors import DeadlineError, OverloadedError, TaskFailedError, UnavailableError
from serfer.core.http_messages import EngineSignals
from serfer.core.plan import Plan
from serfer.core.units import FLOAT_BYTES, MS_PER_S
from serfer.drivers.driver import RequestContext
from serfer.drivers.target import InstanceAnswer
from serfer.instance.device import Device, Offer
from serfer.instance.network import Array, Network
from serfer.pipeline.reference import normalised

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

    It computes on a device that other engines may share. `name` is what answers call the instance; `trouble` is why the
    last batch failed, empty where it did not. Without a network queries wait for one that is expected at `ready_at`, in
    seconds on the loop's clock. `on_missing` is called when a query is queued and there is none, `on_rest` whenever
    nothing waits or is computed any more.
    """

    def __init__(
        self,
        plan: Plan,
        network: Network | None,
        batching: Batching,
        times: ServiceTimeEstimator,
        *,
        name: str,
        device: Device,
        on_rest: Callable[[], None] = lambda: None,
        on_missing: Callable[[], None] = lambda: None,
    ) -> None:
        self.counts = Counts()
        self.trouble = ""
        self.ready_at = 0.0
        self.network = network
        self._plan = plan
        self._batching = batching
        self._times = times
        self._name = name
        self._device = device
        self._on_rest = on_rest
        self._on_missing = on_missing
        self._queue: list[_Entry] = []
        self._preparing = 0  # images that are being normalised
        self._utilised = BusyWindow(device.opened)
        self._closed = False
        device.join(self)

    @property
    def waiting(self) -> int:
        return self._preparing + sum(entry.query.images for entry in tuple(self._queue))

    @property
    def held_bytes(self) -> int:
        """The bytes of images that wait, as float32."""
        shape = self._plan.input
        return self.waiting * shape.channels * shape.height * shape.width * FLOAT_BYTES

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or self._device.computes(self)

    def signals(self, now: float) -> EngineSignals:
        counts, most = self.counts, self._batching.max_batch
        return EngineSignals(
            batches=counts.batches,
            images=counts.images,
            refused=counts.refused,
            waiting=self.waiting,
            utilisation=round(self._utilised.share(now, self._device.running_since(self)), 4),
            interference=round(self._times.slowdown, 4),
            max_batch=most,
            profiled_ms=round(self._times.profiled_s(most) * MS_PER_S, 3),
            expected_ms=round(self._times.seconds(most) * MS_PER_S, 3),
        )

    async def run(self, batch: NDArray[Any], deadline_s: float, context: RequestContext) -> InstanceAnswer:  # noqa: ARG002 - a Target's
        """Answer one query; see Target.

        Raises OverloadedError where it cannot be answered in `deadline_s` behind the others, DeadlineError where it was
        not, TaskFailedError where the network fails.
        """
        now = self._now()
        probe = self.network is not None and not self.busy
        query = QueuedQuery(now, len(batch), now + deadline_s, probe=probe)
        self._check_room(query, batch)
        try:
            async with asyncio.timeout_at(query.deadline):
                return await self._answer(query, batch)
        except TimeoutError:
            raise DeadlineError(f"no answer by the deadline of {deadline_s * MS_PER_S:.0f} ms") from None
        finally:
            self._rest()

    def set_batching(self, batching: Batching) -> None:
        self._batching = batching
        self._times.limit(batching.max_batch)
        self._device.look()

    def attach(self, network: Network) -> None:
        """Compute with a network from now on, first what waits for it."""
        self.network, self.ready_at = network, 0.0
        self._device.look()

    def detach(self) -> Network | None:
        network, self.network, self.trouble = self.network, None, ""
        return network

    def fail_waiting(self, error: Exception) -> None:
        for entry in self._queue:
            _fail(entry, error)
        self._queue.clear()

    async def close(self) -> None:
        self._closed = True
        self.fail_waiting(UnavailableError(_CLOSING))
        await self._device.leave(self)

    def due_s(self, deadline: float) -> float:
        """Return how many seconds of computing wait here that are due by a deadline, if there is a network."""
        if self.network is None:
            return 0.0
        return self._times.seconds(self._due(deadline))

    def offer(self, now: float) -> Offer | float | None:
        """Return the batch to compute now, or when to look again; queries that are late by now are refused."""
        if self._closed or self.network is None:
            return None
        queue = self._queue
        dispatch = choose([entry.query for entry in queue], now, self._batching, self._times)
        late, batch = [queue[number] for number in dispatch.late], [queue[number] for number in dispatch.batch]
        gone = {*late}
        self._queue = [entry for entry in queue if entry not in gone]
        for entry in late:
            self.counts.refused += 1
            _fail(entry, _overloaded(self._times.seconds(entry.query.images)))
        if not batch:
            return dispatch.look_at
        return Offer(
            deadline=min(entry.query.deadline for entry in batch),
            seconds=self._times.seconds(sum(entry.query.images for entry in batch)),
            compute=partial(_compute, self.network, batch),
            taken=lambda: self._take(batch),
            ended=partial(self._ended, batch, now),
        )

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError(_CLOSING)

    def _check_room(self, query: QueuedQuery, batch: NDArray[Any]) -> None:
        self._check_open()
        more = query.images * batch[0].size * FLOAT_BYTES
        if self._device.held_bytes + more > self._device.most_held and self.waiting:
            self.counts.refused += 1
            raise OverloadedError(
                "the queries that wait hold all the memory that there is for them", retry_after_s=_FULL_S
            )
        if query.probe:
            return
        free_at = max(self._now(), self._device.free_at, self.ready_at)
        free_at += self._device.ahead_s(self, query.deadline)
        late_s = predicted_lateness_s(query, self._due(query.deadline), free_at, self._now(), self._times)
        if late_s > 0:
            self.counts.refused += 1
            raise _overloaded(late_s)

    def _due(self, deadline: float) -> int:
        return self._preparing + sum(entry.query.images for entry in self._queue if entry.query.deadline <= deadline)

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
        if self.network is None:
            self._on_missing()
        self._device.look()
        try:
            return await entry.answer
        finally:
            if entry in self._queue:  # the caller has gone
                self._queue.remove(entry)

    def _take(self, batch: Sequence[_Entry]) -> None:
        taken = {*batch}
        self._queue = [entry for entry in self._queue if entry not in taken]

    def _ended(
        self, batch: Sequence[_Entry], began: float, logits: Array | None, error: Exception | None, seconds: float
    ) -> None:
        """Hand out what a batch that began at a time came to; neither logits nor an error means that it was stopped."""
        self._utilised.add(began, self._now())
        if error is not None:
            self.trouble = f"the network failed: {str(error).partition(chr(10))[0][:200]}"
        if logits is None:
            for entry in batch:
                _fail(entry, TaskFailedError(self.trouble) if error else UnavailableError(_CLOSING))
        else:
            self.trouble = ""
            self._times.learn(len(logits), seconds)
            self.counts.batches += 1
            self.counts.images += len(logits)
            self._hand_out(batch, logits, seconds * MS_PER_S)
        self._rest()

    def _hand_out(self, batch: Sequence[_Entry], logits: Array, ms: float) -> None:
        at = 0
        for entry in batch:
            own = logits[at : at + entry.query.images]
            at += entry.query.images
            if not entry.answer.done():
                entry.answer.set_result(InstanceAnswer(own, self._name, len(logits), ms, 0.0))

    def _rest(self) -> None:
        if not self.busy:
            self._on_rest()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _compute(network: Network, batch: Sequence[_Entry]) -> Array:
    images = batch[0].images if len(batch) == 1 else np.concatenate([entry.images for entry in batch])
    return network.run(images)


def _fail(entry: _Entry, error: Exception) -> None:
    if not entry.answer.done():
        entry.answer.set_exception(error)


def _overloaded(late_s: float) -> OverloadedError:
    wait_s = max(late_s, _FULL_S)
    return OverloadedError(
        f"the instance has too much to do to answer in time: come again in {wait_s:.0f} s, or give more time",
        retry_after_s=wait_s,
    )
