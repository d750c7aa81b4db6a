"""Many clients that never wait: what becomes of the answers, of health checks, and of the service afterwards.

Every client sends the next request as soon as it has a reply, whatever its status, on a kept-alive connection, and
ignores Retry-After. The capacity is measured before, by a few clients in the same closed loop. Meanwhile every driver's
/readyz is checked twice a second, with a balancer's patience.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.errors import SerferError, UnavailableError
from serfer.local.servers.redis import RedisServer
from serfer_bench.core.options import ModelOption, PlanOption, plan_of
from serfer_bench.core.photographs import photograph
from serfer_bench.core.processes import serving
from serfer_bench.core.quantiles import percentiles
from serfer_bench.core.tables import Results, Table, publish

_NORMAL = 2.0  # as fast as before: at most so many times the time
_TRIES, _TRY_EVERY_S = 5, 0.25
_FEW = 32  # clients while capacity is measured: as many as two drivers run at once
_CAPACITY_S = 10.0
_WARM_UPS = 6
_CHECK_EVERY_S, _CHECK_PATIENCE_S = 0.5, 1.0
_RECOVERS_S = 2.0
_GIVE_UP_S = 60.0
_SHARE_IN_TIME, _SHARE_OF_CAPACITY = 0.99, 0.8
_OK, _REFUSED = 200, 429
_MS_PER_S = 1000


@dataclass(frozen=True)
class Flood:
    """The outcome; times are wall milliseconds on the client's clock.

    `capacity` is answers a second before; `statuses` counts replies by status, 0 for connections that were closed
    without one. `in_time` are the answers within the deadline, `normal_after_s` is None where that never happened.
    """

    connections: int
    seconds: float
    deadline_ms: float
    capacity: float
    statuses: dict[int, int]
    in_time: int
    answered_p50_ms: float
    answered_p99_ms: float
    refused_p50_ms: float
    refused_p99_ms: float
    checks: int
    failed_checks: int
    slowest_check_ms: float
    normal_after_s: float | None

    @property
    def rate_in_time(self) -> float:
        return self.in_time / self.seconds

    def faults(self) -> list[str]:
        answered = self.statuses.get(_OK, 0)
        odd = {status: count for status, count in self.statuses.items() if status not in (_OK, _REFUSED, 504)}
        late = f"{answered - self.in_time} of {answered} answers came after the deadline"
        slow = f"{self.rate_in_time:.1f} answers a second in time, of {self.capacity:.1f} without the flood"
        recovery = "never" if self.normal_after_s is None else f"after {self.normal_after_s:.1f} s"
        criteria = {
            late: self.in_time < _SHARE_IN_TIME * answered,
            slow: self.rate_in_time < _SHARE_OF_CAPACITY * self.capacity,
            f"other statuses: {odd}": bool(odd),
            f"{self.failed_checks} of {self.checks} health checks failed": self.failed_checks > 0,
            f"as fast as before {recovery}": self.normal_after_s is None or self.normal_after_s > _RECOVERS_S,
        }
        return [text for text, missed in criteria.items() if missed]


@dataclass
class _Replies:
    """Replies while `counting`: milliseconds by status."""

    ms: dict[int, list[float]] = field(default_factory=dict)
    counting: bool = True

    def add(self, status: int, started: float) -> None:
        if self.counting:
            self.ms.setdefault(status, []).append((time.perf_counter() - started) * _MS_PER_S)


class _Client(asyncio.Protocol):
    def __init__(self, request: bytes, replies: _Replies) -> None:
        self._request = request
        self._replies = replies
        self._received = bytearray()
        self._started = 0.0  # the request that has no reply yet; 0 where there is none
        self.gone = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - asyncio types it too widely
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, complete, body = self._received.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        if not complete or len(body) < length:
            return
        self._replies.add(int(lines[0][9:12]), self._started)
        self._received.clear()
        if b"connection: close" in lines:
            self._started = 0.0
            self._transport.close()
        else:
            self._send()

    def connection_lost(self, _: Exception | None) -> None:
        if self._started:
            self._replies.add(0, self._started)
        if not self.gone.done():
            self.gone.set_result(None)

    def abort(self) -> None:
        self._transport.abort()

    def _send(self) -> None:
        self._started = time.perf_counter()
        self._transport.write(self._request)


async def _run_clients(url: str, request: bytes, size: int, seconds: float) -> _Replies:
    replies, (host, port), loop = _Replies(), _address(url), asyncio.get_running_loop()

    async def one() -> None:
        while True:
            _, client = await loop.create_connection(lambda: _Client(request, replies), host, port)
            try:
                await client.gone
            finally:
                client.abort()

    clients = [asyncio.create_task(one()) for _ in range(size)]
    await asyncio.wait(clients, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    replies.counting = False
    failed = [client.exception() for client in clients if client.done()]
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    for error in filter(None, failed):
        raise UnavailableError(f"{url}: a client could not connect: {error}") from error
    return replies


@dataclass
class _Checks:
    urls: Sequence[str]
    ms: list[float] = field(default_factory=list)
    failed: int = 0

    async def watch(self) -> None:
        await asyncio.gather(*(self._watch(url) for url in self.urls))

    async def _watch(self, url: str) -> None:
        while True:
            started = time.perf_counter()
            try:
                async with asyncio.timeout(_CHECK_PATIENCE_S):
                    status = await _status(url, b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            except (TimeoutError, OSError):
                status = 0
            self.failed += status != _OK
            self.ms.append((time.perf_counter() - started) * _MS_PER_S)
            await asyncio.sleep(_CHECK_EVERY_S)


async def _status(url: str, request: bytes) -> int:
    reader, writer = await asyncio.open_connection(*_address(url))
    try:
        writer.write(request)
        line = await reader.readline()
        await reader.read(1)
        return int(line[9:12] or 0)
    finally:
        writer.close()


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


def _request(image: bytes, deadline_ms: float) -> bytes:
    head = (
        f"POST /v1/classify?deadline_ms={deadline_ms:.0f} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
    )
    return f"{head}Content-Length: {len(image)}\r\n\r\n".encode() + image


async def _query_ms(url: str, request: bytes) -> float:
    started = time.perf_counter()
    status = await _status(url, request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
    return (time.perf_counter() - started) * _MS_PER_S if status == _OK else float("inf")


@dataclass(frozen=True)
class Testbed:
    """The running service: the addresses of its drivers and of the balancer, and an image to ask about."""

    driver_urls: Sequence[str]
    balancer: str
    image: bytes


@contextmanager
def running_service(directory: Path) -> Iterator[Testbed]:
    with RedisServer() as store, serving("serve", directory, [f"--store={store.url}", "--drivers=2"]) as report:
        yield Testbed([driver["url"] for driver in report["drivers"]], report["url"], photograph((640, 480), grain=16))


async def recovery_s(query_ms: Callable[[], Awaitable[float]], max_ms: float, give_up_s: float) -> float | None:
    started = time.perf_counter()
    while (passed_s := time.perf_counter() - started) < give_up_s:
        if await query_ms() <= max_ms:
            return passed_s
        await asyncio.sleep(_TRY_EVERY_S)
    return None


async def _flood(
    testbed: Testbed, connections: int, seconds: float, deadline_ms: float, progress: Callable[[str], None]
) -> Flood:
    patient, request = _request(testbed.image, 60_000), _request(testbed.image, deadline_ms)
    progress("warming up")
    for _ in range(_WARM_UPS):
        if (await _run_clients(testbed.balancer, patient, _FEW, _CAPACITY_S)).ms.get(_OK):
            break
    progress("capacity")
    before = await _run_clients(testbed.balancer, patient, _FEW, _CAPACITY_S)
    before_ms = min([await _query_ms(testbed.balancer, patient) for _ in range(_TRIES)])
    progress(f"{connections} clients")
    checks = _Checks(testbed.driver_urls)
    watching = asyncio.create_task(checks.watch())
    replies = await _run_clients(testbed.balancer, request, connections, seconds)
    normal_after_s = await recovery_s(lambda: _query_ms(testbed.balancer, request), _NORMAL * before_ms, _GIVE_UP_S)
    watching.cancel()
    answered, refused = replies.ms.get(_OK, []), replies.ms.get(_REFUSED, [])
    answered_p50, answered_p99 = percentiles(answered, 50, 99)
    refused_p50, refused_p99 = percentiles(refused, 50, 99)
    return Flood(
        connections=connections,
        seconds=seconds,
        deadline_ms=deadline_ms,
        capacity=len(before.ms.get(_OK, [])) / _CAPACITY_S,
        statuses={status: len(times) for status, times in sorted(replies.ms.items())},
        in_time=sum(ms <= deadline_ms for ms in answered),
        answered_p50_ms=answered_p50,
        answered_p99_ms=answered_p99,
        refused_p50_ms=refused_p50,
        refused_p99_ms=refused_p99,
        checks=len(checks.ms),
        failed_checks=checks.failed,
        slowest_check_ms=max(checks.ms, default=0.0),
        normal_after_s=normal_after_s,
    )


def results(flood: Flood) -> Results:
    recovery = "never" if flood.normal_after_s is None else f"{flood.normal_after_s:.1f} s after the load's end"
    rows = (
        ("load", f"{flood.connections} clients, {flood.seconds:g} s, deadline {flood.deadline_ms:.0f} ms"),
        ("statuses", ", ".join(f"{status}: {count}" for status, count in flood.statuses.items())),
        ("in time", f"{flood.in_time}: {flood.rate_in_time:.1f}/s, of {flood.capacity:.1f}/s before"),
        ("answered", f"p50 {flood.answered_p50_ms:.0f} ms, p99 {flood.answered_p99_ms:.0f} ms"),
        ("refused", f"p50 {flood.refused_p50_ms:.0f} ms, p99 {flood.refused_p99_ms:.0f} ms"),
        ("health checks", f"{flood.checks}, {flood.failed_checks} failed, {flood.slowest_check_ms:.0f} ms at most"),
        ("as fast as before", recovery),
    )
    return Results([{**asdict(flood), "faults": flood.faults()}], [Table(("flood", "outcome"), rows)])


def command(
    model: ModelOption = None,
    plan: PlanOption = None,
    connections: Annotated[int, typer.Option(min=1, max=4000, help="Clients that never wait.")] = 500,
    seconds: Annotated[float, typer.Option(min=1, help="How long.")] = 20.0,
    deadline_ms: Annotated[float, typer.Option(min=1, help="Of every query.")] = 5000.0,
    as_json: JsonOption = False,
) -> None:
    """Flood the service with clients that never wait; exit with 1 if it misses a criterion (docs/reference/api.md)."""
    directory = plan_of(model, plan)
    with status_line() as progress, running_service(directory) as testbed:
        flood = asyncio.run(_flood(testbed, connections, seconds, deadline_ms, progress))
    publish(results(flood), as_json=as_json)
    if faults := flood.faults():
        raise SerferError("; ".join(faults))
