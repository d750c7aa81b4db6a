"""The pool as a target of queries: each goes to an instance that will answer in time, else to the plan's functions.

    query ──> Router.route ──> an instance ──> its answer
                 │                 └── refused, too slow, gone ──> another target, within the time that is left
                 ├──> None: the plan's functions
                 └──> OverloadedError, CeilingError: neither

A query is pure, so one that an instance never answered is sent to another target: nothing is lost with the instance.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from serfer.control.policy import NO_QUERIES, LatencyWindow
from serfer.control.router import SERVERLESS, Endpoint, Reason, Router
from serfer.control.scenario import S_PER_HOUR
from serfer.core.errors import CeilingError, DeadlineError, OverloadedError
from serfer.core.units import MS_PER_S
from serfer.core.wire import Crop
from serfer.drivers.driver import NO_CONTEXT, Answer, Driver, RequestContext
from serfer.drivers.instance.client import Fault, FaultKind, InstanceClient
from serfer.drivers.instance.open_inference import InferenceOutput
from serfer.drivers.target import InstanceAnswer
from serfer.fleet.log_events import log_event
from serfer.fleet.purchase import Purchase

_SLOS = 4.0  # an instance that is silent for so many times the objective hangs
_LEAST_S = 1.0  # and is given this long where the objective is short
_SOON_S = 1.0  # when room on Lambda is looked for again
_LONGEST_S = 60.0
_SLICE_S = 60.0  # of a sum over the last hour
_KEPT = 10_000  # latencies of which the 99th percentile is taken: the latest
_SILENT = (FaultKind.UNREACHABLE, FaultKind.NO_RESPONSE)


@dataclass(frozen=True)
class ServingInstance:
    """An instance that queries may be sent to: its URL, its type and market, which the scenario has, its batch size."""

    name: str
    url: str
    purchase: Purchase
    batch: int = 0


@dataclass
class _Endpoint:
    """An instance as this driver knows it: `waiting` images were sent to it and not answered.

    `heard` is when its last response came, or else the first of these images was sent.
    """

    name: str
    client: InstanceClient
    purchase: Purchase
    batch: int = 0
    waiting: int = 0
    heard: float = 0.0
    listed: bool = True
    down: bool = False


@dataclass(frozen=True)
class _Query:
    """A query that goes to an instance first; `spare` where it may go to the functions next."""

    batch: NDArray[Any]
    deadline: float
    request: str
    spare: bool


@dataclass(frozen=True)
class DriverStats:
    """A driver's activity since it was last asked, and its present load."""

    images: int
    in_flight: int
    paid_usd: float
    hour_usd: float
    busy: tuple[str, ...]
    latency: LatencyWindow


class RollingSum:
    """A sum over the last hour, in slices of a minute; times are in seconds and never go back."""

    def __init__(self) -> None:
        self._slices: deque[list[float]] = deque()  # [begin, sum]

    def add(self, now: float, value: float) -> None:
        begin = now - now % _SLICE_S
        if not self._slices or self._slices[-1][0] < begin:
            self._slices.append([begin, 0.0])
        self._slices[-1][1] += value

    def total(self, now: float) -> float:
        while self._slices and self._slices[0][0] + S_PER_HOUR <= now:
            self._slices.popleft()
        return sum(value for _, value in self._slices)


class Latencies:
    """What queries took since the last observation: counts those that were answered, and those later than `slo_ms`."""

    def __init__(self, slo_ms: float) -> None:
        self._slo_ms = slo_ms
        self._answered = self._late = 0
        self._latest: deque[float] = deque(maxlen=_KEPT)

    def add(self, latency_ms: float) -> None:
        self._answered += 1
        self._late += latency_ms > self._slo_ms
        self._latest.append(latency_ms)

    def take(self) -> LatencyWindow:
        if not self._answered:
            return NO_QUERIES
        ordered = sorted(self._latest)
        window = LatencyWindow(self._answered, self._late, ordered[(99 * len(ordered) - 1) // 100])
        self._answered = self._late = 0
        self._latest.clear()
        return window


def of_all(windows: Iterable[LatencyWindow]) -> LatencyWindow:
    """Return the window of several drivers; its 99th percentile is the largest of theirs, which bounds that of all."""
    listed = list(windows)
    answered, late = sum(window.answered for window in listed), sum(window.late for window in listed)
    return LatencyWindow(answered, late, max((window.p99_ms for window in listed), default=0.0))


class Pool:
    """Routes one driver's queries; `connect` makes the client of a URL. It lives on one event loop.

    `drivers` is how many drivers send to the same instances, `elsewhere` how many queries the others have on Lambda.
    """

    def __init__(
        self, router: Router, connect: Callable[[str], InstanceClient], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.router = router
        self.drivers = 1
        self.elsewhere = 0
        self.faults: Counter[FaultKind] = Counter()
        self._connect = connect
        self._clock = clock
        self._endpoints: dict[str, _Endpoint] = {}
        self._images = 0
        self._in_flight = 0
        self._paid_usd = 0.0
        self._hour = RollingSum()
        self._latencies = Latencies(router.scenario.slo_ms)
        self._kind_numbers = {kind.name: number for number, kind in enumerate(router.scenario.instances)}

    async def run(
        self, batch: NDArray[Any], deadline_s: float, context: RequestContext = NO_CONTEXT
    ) -> InstanceAnswer | None:
        """Answer a query, or return None where it should run through the plan's functions.

        Raises CeilingError where the hour's dollars are spent, OverloadedError where no target has room, DeadlineError.
        """
        deadline, images = self._clock() + deadline_s, len(batch)
        self._images += images
        decision = self.router.route(self._clock(), self.endpoints(), self._in_flight + self.elsewhere, images)
        if not decision.targets:
            raise self._refusal(decision.reason, images)
        if decision.targets[0] == SERVERLESS:
            self._pay(images)
            return None
        query = _Query(batch, deadline, context.request, SERVERLESS in decision.targets)
        begun = self._clock()
        served = await self._try_in_turn(decision.targets[0], query)
        if served is not None:
            self._latencies.add((self._clock() - begun) * MS_PER_S)
        return served

    def pay_pings(self, count: int) -> None:
        self.router.budget_limiter.pay(self._clock(), count * self.router.scenario.serverless.usd_per_query)
        self._pay(count)

    def counted(self, driver: Driver) -> Driver:
        """Return a driver whose queries count as in flight on Lambda, and whose latencies are observed."""
        return CountingDriver(driver, self._count, self._latencies.add, self._clock)

    def use(self, instances: Iterable[ServingInstance]) -> None:
        """Send queries to these instances, and to no others; queries in flight may finish."""
        members = {instance.name: instance for instance in instances}
        for name, endpoint in list(self._endpoints.items()):
            endpoint.listed = name in members and _is_of(endpoint, members[name])
            if not endpoint.listed and not endpoint.waiting:
                del self._endpoints[name]
        for name, member in members.items():
            known = self._endpoints.get(name)
            if known is None or not _is_of(known, member):
                known = self._endpoints[name] = _Endpoint(name, self._connect(member.url), member.purchase)
            known.batch = member.batch

    def take_stats(self) -> DriverStats:
        images, self._images = self._images, 0
        busy = tuple(endpoint.name for endpoint in self._endpoints.values() if endpoint.waiting)
        hour_usd, latency = self._hour.total(self._clock()), self._latencies.take()
        return DriverStats(images, self._in_flight, self._paid_usd, hour_usd, busy, latency)

    def down(self) -> Sequence[InstanceClient]:
        return [endpoint.client for endpoint in self._endpoints.values() if endpoint.down and endpoint.listed]

    def revive(self, client: InstanceClient) -> None:
        for endpoint in self._endpoints.values():
            if endpoint.client is client:
                endpoint.down = False

    @property
    def serving(self) -> int:
        return self.serving_by_type.total()

    @property
    def serving_by_type(self) -> Counter[Purchase]:
        there = list(self._endpoints.values())  # the metrics' thread calls it
        return Counter(endpoint.purchase for endpoint in there if endpoint.listed and not endpoint.down)

    def endpoints(self) -> list[Endpoint]:
        """Return what the router may choose from; other drivers are assumed to have sent as much as this one."""
        return [
            Endpoint(
                endpoint.name,
                endpoint.waiting * self.drivers,
                self._kind_numbers[endpoint.purchase.kind],
                endpoint.batch,
            )
            for endpoint in self._endpoints.values()
            if endpoint.listed and not endpoint.down
        ]

    async def _try_in_turn(self, name: str, query: _Query) -> InstanceAnswer | None:
        """Send a query to an instance; where that fails, to the functions if they may, else to the other instances."""
        tried: set[str] = set()
        target: str | None = name
        while target is not None:
            served = await self._send(self._endpoints[target], query)
            if served is not None:
                return served
            if self._clock() >= query.deadline:
                raise DeadlineError("no answer by the deadline: an instance took the query and did not answer")
            if self.router.fall_back(self._clock(), len(query.batch)):
                self._pay(len(query.batch))
                return None
            tried.add(target)
            left = [endpoint for endpoint in self.endpoints() if endpoint.name not in tried]
            target = self.router.soonest(left, len(query.batch)).name if left else None
        raise self._refusal(Reason.CEILING if query.spare else Reason.NO_INSTANCE, len(query.batch))

    async def _send(self, endpoint: _Endpoint, query: _Query) -> InstanceAnswer | None:
        """Send a query to an instance, for as long as leaves the functions time enough if they come next."""
        begun = self._clock()
        timeout_s = patience_s = query.deadline - begun
        if query.spare:
            patience_s, slo_s = self._patience_s(patience_s), self.router.scenario.slo_ms / MS_PER_S
            timeout_s = min(patience_s, slo_s)
        if not endpoint.waiting:
            endpoint.heard = begun
        endpoint.waiting += len(query.batch)
        try:
            result = await endpoint.client.infer(query.batch, timeout_s, patience_s, query.request)
        finally:
            endpoint.waiting -= len(query.batch)
            if not endpoint.listed and not endpoint.waiting and self._endpoints.get(endpoint.name) is endpoint:
                del self._endpoints[endpoint.name]
        if isinstance(result, Fault):
            self._note(endpoint, result, patience_s)
            return None
        endpoint.heard = self._clock()
        return self._served(endpoint, result, (self._clock() - begun) * MS_PER_S)

    def _patience_s(self, left_s: float) -> float:
        target = self.router.scenario.serverless
        spared_s = (target.latency_ms + target.cold_ms) / MS_PER_S
        return min(self._hangs_s, max(left_s - spared_s, left_s / 2))

    @property
    def _hangs_s(self) -> float:
        return max(_LEAST_S, _SLOS * self.router.scenario.slo_ms / MS_PER_S)

    def _served(self, endpoint: _Endpoint, result: InferenceOutput, took_ms: float) -> InstanceAnswer:
        images, kind = len(result.logits), self.router.scenario.kind(endpoint.purchase.kind)
        usd_per_s = kind.market_usd_per_hour(endpoint.purchase.market) / S_PER_HOUR
        return InstanceAnswer(
            result.logits,
            endpoint.name,
            result.batch or images,  # not reported: the query's own images, and the round trip
            took_ms if result.computed_ms is None else result.computed_ms,
            images * usd_per_s / kind.qps,
        )

    def _note(self, endpoint: _Endpoint, fault: Fault, patience_s: float) -> None:
        """Count a fault of an instance after `patience_s`; one that is gone gets no more queries."""
        self.faults[fault.kind] += 1
        if fault.kind not in _SILENT:
            endpoint.heard = self._clock()
        # One query's short deadline says nothing about an instance that answers others.
        hangs = max(patience_s, self._clock() - endpoint.heard) >= self._hangs_s
        gone = fault.kind is FaultKind.UNREACHABLE or (fault.kind is FaultKind.NO_RESPONSE and hangs)
        if (gone and not endpoint.down) or fault.kind is FaultKind.INVALID:
            log_event(
                logging.WARNING,
                "instance failed",
                instance=endpoint.name,
                fault=fault.kind.value,
                message=fault.message,
            )
        endpoint.down = endpoint.down or gone

    def _pay(self, images: int) -> None:
        usd = images * self.router.scenario.serverless.usd_per_query
        self._paid_usd += usd
        self._hour.add(self._clock(), usd)

    def _refusal(self, reason: Reason, images: int) -> OverloadedError:
        scenario = self.router.scenario
        if reason is Reason.CEILING:
            usd = images * scenario.serverless.usd_per_query
            wait_s = self.router.budget_limiter.wait_s(self._clock(), usd)
            return CeilingError("the dollars that an hour may cost are spent (max_usd_per_hour)", retry_after_s=wait_s)
        wait_s = _SOON_S
        if reason is Reason.NO_INSTANCE:
            wait_s = min(max(scenario.instance.boot_s, _SOON_S), _LONGEST_S)
        return OverloadedError(f"no target has room for the query: {reason}", retry_after_s=wait_s)

    def _count(self, change: int) -> None:
        self._in_flight += change


def _is_of(endpoint: _Endpoint, listed: ServingInstance) -> bool:
    return (endpoint.client.url, endpoint.purchase) == (listed.url.rstrip("/"), listed.purchase)


class CountingDriver:
    """A driver whose queries are counted as they begin and end; `answered` gets the milliseconds of those answered."""

    def __init__(
        self,
        driver: Driver,
        count: Callable[[int], None],
        answered: Callable[[float], None] = lambda _ms: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._count = count
        self._answered = answered
        self._clock = clock

    async def run(
        self, crops: Sequence[Crop], batch: int, deadline_s: float, context: RequestContext = NO_CONTEXT
    ) -> Answer:
        begun = self._clock()
        self._count(1)
        try:
            answer = await self._driver.run(crops, batch, deadline_s, context)
        finally:
            self._count(-1)
        self._answered((self._clock() - begun) * MS_PER_S)
        return answer

    async def close(self) -> None:
        await self._driver.close()
