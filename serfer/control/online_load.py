"""The load of online queries, which offline work yields to: `GET /v1/load`, polled every two seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from serfer.control.throttle import WINDOW_S, Interference, Occupancy
from serfer.core.report import FunctionLoad, QueryReport

_MARK_S = 1.0  # between two notes of how many invocations were refused
_CACHE = "cache"  # the target of answers that were kept: they say nothing of what computes


class Measured(Protocol):
    """A pipeline, whose target is an instance where it has one."""

    @property
    def target(self) -> object: ...

    def function_load(self) -> FunctionLoad | None: ...


@dataclass(frozen=True)
class QueryLoad:
    """What the queries of a service say of its load; see `serfer.api.routes.health.Load`."""

    utilisation: float
    of_account: bool
    throttled: int
    latency: float | None


class LoadMonitor:
    """Notes the queries of a service as they run and end, on its event loop; `clock` is in seconds.

    The share in use is that of the functions' slots. Where a pipeline has none, it is the share of `most` queries at
    once, and for an instance, which computes one batch at a time, the share of time with a query.
    """

    def __init__(self, pipelines: Mapping[str, Measured], most: int, clock: Callable[[], float]) -> None:
        self._pipelines = pipelines
        self._most = most
        self._clock = clock
        self._count = 0
        self._running, self._offline = Occupancy(), Occupancy()
        self._offline_count = 0
        self._interference = Interference()
        self._marks: deque[tuple[float, int]] = deque([(clock(), 0)])

    def change(self, now: float, count: int) -> None:
        self._count += count
        self._running.change(now, self._count)
        if now - self._marks[-1][0] >= _MARK_S:
            self._count_throttled(now, sum(load.throttled for load in self._functions()))

    @contextmanager
    def offline(self) -> Iterator[None]:
        """Count one of the queries that run as offline work within the context."""
        self._offline_count += 1
        self._offline.change(self._clock(), self._offline_count)
        try:
            yield
        finally:
            self._offline_count -= 1
            self._offline.change(self._clock(), self._offline_count)

    def online(self) -> QueryLoad:
        """Return the load without offline queries: of what is in use, their share of the queries that run is theirs."""
        now, load = self._clock(), self.read()
        running, offline = self._running.mean(now), self._offline.mean(now)
        share = max(0.0, 1.0 - offline / running) if running > 0 else 1.0
        return replace(load, utilisation=load.utilisation * share)

    def answered(self, now: float, model: str, images: int, report: QueryReport) -> None:
        if report.target != _CACHE:
            self._interference.add(now, (model, report.target, report.plan, images), report.latency_ms)

    def read(self) -> QueryLoad:
        """Return the load now: of several models the one whose functions have the largest share in use."""
        now, loads = self._clock(), self._functions()
        busiest = max(loads, key=lambda load: load.utilisation, default=None)
        return QueryLoad(
            utilisation=busiest.utilisation if busiest else self._own(now),
            of_account=busiest is not None and busiest.of_account,
            throttled=self._count_throttled(now, sum(load.throttled for load in loads)),
            latency=self._interference.ratio(now),
        )

    def _functions(self) -> list[FunctionLoad]:
        return [load for pipeline in self._pipelines.values() if (load := pipeline.function_load()) is not None]

    def _own(self, now: float) -> float:
        mean, share = self._running.read(now)
        return share if all(pipeline.target is not None for pipeline in self._pipelines.values()) else mean / self._most

    def _count_throttled(self, now: float, total: int) -> int:
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= now - WINDOW_S:
            marks.popleft()
        if now - marks[-1][0] >= _MARK_S:
            marks.append((now, total))
        return total - marks[0][1]
