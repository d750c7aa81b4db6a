"""Batch queues: one for each instance (INFless), or one in front of all instances of a function (its baselines)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Final

from serfer_bench.study.policies.infless.fleet import FrontQueue, Instance

PER_SLO: Final = 100
"""Steps of a latency's histogram in an SLO."""
_LONGEST: Final = 20 * PER_SLO
_ROUNDING: Final = 1 + 1e-9  # a batch that timed out ends exactly at the SLO of its first request


@dataclass
class Counters:
    """Counts of a function; `batches` are requests by the size of the batch that they were answered in.

    `latencies` counts answers by latency in hundredths of the SLO, the last step has all that are longer.
    """

    slo_s: float
    requests: int = 0
    met: int = 0
    late: int = 0
    dropped: int = 0
    launches: int = 0
    busy_unit_s: float = 0.0
    wait_s: float = 0.0
    exec_s: float = 0.0
    batches: Counter[int] = field(default_factory=Counter)
    latencies: list[int] = field(default_factory=lambda: [0] * (_LONGEST + 1))

    def answer(self, arrivals: list[float], start_s: float, exec_s: float) -> None:
        done, slo_s, latencies = start_s + exec_s, self.slo_s, self.latencies
        size, late, latest = len(arrivals), 0, slo_s * _ROUNDING
        for arrival in arrivals:
            latency = done - arrival
            late += latency > latest
            latencies[min(int(latency / slo_s * PER_SLO), _LONGEST)] += 1
        self.late += late
        self.met += size - late
        self.batches[size] += size
        self.exec_s += exec_s * size
        self.wait_s += start_s * size - sum(arrivals)

    def quantile(self, share: float) -> float | None:
        """Return a quantile of the latencies as a multiple of the SLO, None without any."""
        left = share * sum(self.latencies)
        for step, count in enumerate(self.latencies):
            left -= count
            if count and left <= 0:
                return (step + 1) / PER_SLO
        return None


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
