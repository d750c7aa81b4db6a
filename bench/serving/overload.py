"""Twice as many queries as can be answered, for a while: what becomes of those that are accepted, and of the others.

Queries arrive open loop, each with a deadline; times count from their arrivals. One in ten of those that are refused
with 429 obeys Retry-After, as often as that takes, on top of all that arrive. When the load ends, one query after the
other shows how soon the service is as fast as before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
import numpy as np
import psutil

from serfer_bench.core.processes import resident
from serfer_bench.core.quantiles import percentiles
from serfer_bench.core.tables import Table
from serfer_bench.core.workload import Sent, run
from serfer_bench.serving.recovery import NORMAL, recovery_s, unloaded_ms

_DEADLINE_S = 10.0
_OK, _REFUSED, _LATE = 200, 429, 504
_OBEYS = 10  # one in so many
_MAX_TRIES = 20  # of one that obeys; then it gives up
_SAMPLE_S = 0.25
_GIVE_UP_S = 120.0  # after the load, on a service that is never again as fast as before
_MB = 1 << 20
_MS_PER_S = 1000


@dataclass(frozen=True)
class Overload:
    """The load and its outcome; times are wall milliseconds.

    `accepted_p50_ms`, `accepted_p99_ms` and `late` (504) are of queries that were let in at their first try;
    `refused_p99_ms` is of refusals. Of the refused, `obeyed` obeyed Retry-After: `answered_later` were answered, after
    `tries` tries in the median, `most_tries` at most. `other` are all other ends: there should be none. Memory is the
    drivers' together, in MB: before the load, at most during it, and after. `normal_after_s` is None where the service
    was not as fast as before within two minutes.
    """

    offered_rate: float
    offered: int
    deadline_ms: float
    accepted: int
    accepted_p50_ms: float
    accepted_p99_ms: float
    late: int
    refused: int
    refused_p99_ms: float
    obeyed: int
    answered_later: int
    tries: float
    most_tries: int
    other: int
    memory_mb: tuple[float, float, float]
    normal_after_s: float | None


@dataclass
class _Retries:
    """The numbers of refused queries, of those that respect Retry-After, and the tries of those that were answered."""

    refused: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    tries: list[int] = field(default_factory=list)


@dataclass
class _Memory:
    """Megabytes of processes, sampled."""

    processes: Sequence[psutil.Process]
    max: float = 0.0

    def now(self) -> float:
        held = sum(resident(process) for process in self.processes) / _MB
        self.max = max(self.max, held)
        return held

    async def watch(self) -> None:
        """Sample again and again."""
        while True:
            self.now()
            await asyncio.sleep(_SAMPLE_S)


@dataclass(frozen=True)
class _Client:
    """Sends one image to one place."""

    http: aiohttp.ClientSession
    url: str
    image: bytes
    retries: _Retries = field(default_factory=_Retries)

    async def send(self) -> tuple[int, float]:
        """Return the status, and Retry-After in seconds."""
        target = f"{self.url}/v1/classify?deadline_ms={_DEADLINE_S * _MS_PER_S:.0f}"
        async with self.http.post(target, data=self.image, headers={"Content-Type": "image/jpeg"}) as reply:
            await reply.read()
            return reply.status, float(reply.headers.get("Retry-After", "0"))

    async def first_try(self) -> int:
        """Send a query and return its status, 0 for a refusal without Retry-After; some of the refused come again."""
        status, wait_s = await self.send()
        if status == _REFUSED:
            if wait_s < 1:
                return 0
            self.retries.refused += 1
            if self.retries.refused % _OBEYS == 0:
                self.retries.tasks.append(asyncio.create_task(self.obey(wait_s)))
        return status

    async def obey(self, wait_s: float) -> None:
        """Come again when Retry-After says so, until the query is answered, fails, or gives up."""
        status, tries = _REFUSED, 1
        while status == _REFUSED and tries < _MAX_TRIES:
            await asyncio.sleep(wait_s)
            status, wait_s = await self.send()
            tries += 1
        if status == _OK:
            self.retries.tries.append(tries)

    async def query_ms(self) -> float:
        """Return how long a query takes; one that is not answered takes for ever."""
        started = time.perf_counter()
        status, _ = await self.send()
        return (time.perf_counter() - started) * _MS_PER_S if status == _OK else float("inf")


async def overload(
    http: aiohttp.ClientSession, url: str, image: bytes, rate: float, seconds: float, drivers: Sequence[int]
) -> Overload:
    """Send twice `rate` queries a second for so long, to `drivers` (process ids) behind `url`."""
    client, memory = _Client(http, url, image), _Memory([psutil.Process(driver) for driver in drivers])
    before_ms = await unloaded_ms(client.query_ms)
    before_mb = memory.now()
    watching = asyncio.create_task(memory.watch())
    arrivals = np.cumsum(np.random.default_rng(0).exponential(0.5 / rate, int(2 * rate * seconds))).tolist()
    loading: asyncio.Task[list[Sent[int]]] = asyncio.create_task(
        run(lambda _: asyncio.create_task(client.first_try()), arrivals)
    )
    await asyncio.sleep(arrivals[-1])
    normal_after_s = await recovery_s(client.query_ms, NORMAL * before_ms, _GIVE_UP_S)
    ends = await loading
    await asyncio.gather(*client.retries.tasks)
    watching.cancel()
    ms = {
        status: [end.latency * _MS_PER_S for end in ends if end.result == status] for status in (_OK, _REFUSED, _LATE)
    }
    p50, p99 = percentiles(ms[_OK], 50, 99)
    tries = client.retries.tries
    return Overload(
        offered_rate=2 * rate,
        offered=len(arrivals),
        deadline_ms=_DEADLINE_S * _MS_PER_S,
        accepted=len(ms[_OK]),
        accepted_p50_ms=p50,
        accepted_p99_ms=p99,
        late=len(ms[_LATE]),
        refused=len(ms[_REFUSED]),
        refused_p99_ms=percentiles(ms[_REFUSED], 99)[0],
        obeyed=len(client.retries.tasks),
        answered_later=len(tries),
        tries=percentiles(tries, 50)[0],
        most_tries=max(tries, default=0),
        other=len(ends) - sum(map(len, ms.values())),
        memory_mb=(before_mb, memory.max, memory.now()),
        normal_after_s=normal_after_s,
    )


def overload_table(result: Overload) -> Table:
    before, peak, after = result.memory_mb
    tries = f"at try {result.tries:g} in the median, {result.most_tries} at most"
    recovery = "never" if result.normal_after_s is None else f"{result.normal_after_s:.1f} s after the load's end"
    rows = (
        ("offered", f"{result.offered} queries at {result.offered_rate:.1f}/s, twice the capacity"),
        ("deadline", f"{result.deadline_ms:.0f} ms"),
        ("accepted", f"{result.accepted}: p50 {result.accepted_p50_ms:.0f} ms, p99 {result.accepted_p99_ms:.0f} ms"),
        ("late, failed", f"{result.late}, {result.other}"),
        ("refused", f"{result.refused}: p99 {result.refused_p99_ms:.0f} ms"),
        ("obeyed Retry-After", f"{result.obeyed}: {result.answered_later} answered, {tries}"),
        ("drivers hold", f"{before:.0f} MB before, {peak:.0f} at most, {after:.0f} after"),
        ("as fast as before", recovery),
    )
    return Table(("overload", "outcome"), rows)
