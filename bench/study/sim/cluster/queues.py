"""Batch queues: one for each instance (INFless), or one in front of all instances of a function (its baselines)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Final

from serfer_bench.study.policies.infless.fleet import FrontQueue, Instance
from serfer_bench.study.sim.cluster.counters import Counters

PATIENCE: Final = 5.0
"""SLOs after which a request that waits in a platform's queue is given up."""


@dataclass
class Server:
    """A running instance: when it is free again (once ready: after its cold start), and seconds by batch size."""

    instance: Instance
    free_s: float
    exec_s: Callable[[int], float]
    units: float
    pending: list[float] = field(default_factory=list)

    def run(self, arrivals: list[float], start_s: float, counters: Counters) -> None:
        seconds = self.exec_s(len(arrivals))
        counters.answer(arrivals, start_s, seconds)
        counters.busy_unit_s += seconds * self.units
        self.free_s = start_s + seconds


def offer(one: Server, arrivals: Iterable[float], timeout_s: float, counters: Counters) -> None:
    """Put requests, in order of time, into an instance's own queue (3.2, figure 6a).

    A batch starts when it is full or timed out, and the one before it is done. While a full batch waits, what comes is
    dropped.
    """
    batch, pending = one.instance.option.configuration.batch, one.pending
    start_s = _start(one, batch, timeout_s)
    for arrival in arrivals:
        if start_s <= arrival:
            one.run(pending, start_s, counters)
            pending.clear()
        elif len(pending) >= batch:
            counters.dropped += 1
            continue
        pending.append(arrival)
        start_s = _start(one, batch, timeout_s)


def advance(one: Server, until_s: float, timeout_s: float, counters: Counters) -> None:
    if one.pending:
        start_s = _start(one, one.instance.option.configuration.batch, timeout_s)
        if start_s <= until_s:
            one.run(one.pending, start_s, counters)
            one.pending.clear()


def _start(one: Server, batch: int, timeout_s: float) -> float:
    """Return when the batch that waits starts: never where nothing waits."""
    pending = one.pending
    if not pending:
        return float("inf")
    due = pending[0] + timeout_s
    if len(pending) >= batch:
        due = min(due, pending[-1])
    return max(due, one.free_s)


class FrontBuffer:
    """Requests wait before a platform until a batch is full or timed out; the batch then goes to what is free first.

    The platform queues batches without bound, and gives up those whose first request has waited for `PATIENCE` SLOs.
    """

    def __init__(self) -> None:
        self.pending: list[float] = []

    def offer(self, arrivals: Iterable[float], front: FrontQueue, servers: list[Server], counters: Counters) -> None:
        heap = [(one.free_s, one.instance.number, one) for one in servers]
        heapify(heap)
        batch, timeout_s = front.batch, front.timeout_s
        for arrival in arrivals:
            if self.pending and self.pending[0] + timeout_s <= arrival:
                self._submit(self.pending[0] + timeout_s, heap, counters)
            self.pending.append(arrival)
            if len(self.pending) >= batch:
                self._submit(arrival, heap, counters)

    def advance(self, until_s: float, front: FrontQueue, servers: list[Server], counters: Counters) -> None:
        if self.pending and self.pending[0] + front.timeout_s <= until_s:
            heap = [(one.free_s, one.instance.number, one) for one in servers]
            heapify(heap)
            self._submit(self.pending[0] + front.timeout_s, heap, counters)

    def _submit(self, now_s: float, heap: list[tuple[float, int, Server]], counters: Counters) -> None:
        batch, self.pending = self.pending, []
        start_s = max(now_s, heap[0][0]) if heap else float("inf")
        if start_s - batch[0] > PATIENCE * counters.slo_s:
            counters.dropped += len(batch)
            return
        _, number, one = heap[0]
        one.run(batch, start_s, counters)
        heapreplace(heap, (one.free_s, number, one))
