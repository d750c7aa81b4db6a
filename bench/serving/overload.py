"""Twice as many queries as can be answered, for a while: what becomes of those who get in, and of the others.

Queries arrive when they are due (open loop), each with a deadline. One in ten of those that are refused with 429 obeys:
it comes again when Retry-After says so, as often as that takes, on top of all that arrive. When the load ends, one
query after the other shows how soon the service is as fast as before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
import numpy as np
import psutil

from bench.core.processes import resident

_DEADLINE_S = 10.0
_OK, _REFUSED, _LATE = 200, 429, 504
_OBEYS = 10  # one in so many
_MOST_TRIES = 20  # of one that obeys; then it gives up
_TICK_S = 0.25
_GIVE_UP_S = 120.0  # after the load, on a service that is never again as fast as before
_NORMAL = 2.0  # as before: no more than so many times the time
_MB = 1 << 20
_MS_PER_S = 1000


@dataclass(frozen=True)
class Overload:
    """What was offered and what came of it; times are wall milliseconds.

    `accepted_p50_ms`, `accepted_p99_ms` and `late` (504) are of queries that were let in at their first try;
    `refused_p99_ms` is how long it took to say no. Of the refused, `obeyed` came again as told: `answered_later` were
    answered, after `tries` tries in the median, `most_tries` at most. `other` are all other ends: there should be none.
    Memory is the drivers' together, in MB: before the load, most of the time during it, and after. `normal_after_s` is
    None where the service was not as fast as before within two minutes.
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
class _Ends:
    """What queries came to."""

    accepted_ms: list[float] = field(default_factory=list)
    refused_ms: list[float] = field(default_factory=list)
    obeyed: int = 0
    tries: list[int] = field(default_factory=list)
    late: int = 0
    other: int = 0


@dataclass
class _Memory:
    """Megabytes of processes, sampled."""

    processes: Sequence[int]
    most: float = 0.0

    def now(self) -> float:
        """Return what they hold now."""
        found = sum(resident(psutil.Process(process)) for process in self.processes) / _MB
        self.most = max(self.most, found)
        return found

    async def watch(self) -> None:
        """Look again and again."""
        while True:
            self.now()
            await asyncio.sleep(_TICK_S)


@dataclass(frozen=True)
class _Client:
    """Sends one image to one place."""

    http: aiohttp.ClientSession
    url: str
    image: bytes

    async def send(self) -> tuple[int, float, float]:
        """Return the status, the milliseconds that it took, and Retry-After in seconds."""
        target = f"{self.url}/v1/classify?deadline_ms={_DEADLINE_S * _MS_PER_S:.0f}"
        started = time.perf_counter()
        async with self.http.post(target, data=self.image, headers={"Content-Type": "image/jpeg"}) as reply:
            await reply.read()
            took = (time.perf_counter() - started) * _MS_PER_S
            return reply.status, took, float(reply.headers.get("Retry-After", "0"))

    async def ask(self, ends: _Ends) -> None:
        """Ask once, and again as told if it is this one's turn to obey."""
        status, took, wait_s = await self.send()
        if status == _OK:
            ends.accepted_ms.append(took)
        elif status == _LATE:
            ends.late += 1
        elif status == _REFUSED and wait_s >= 1:
            ends.refused_ms.append(took)
            if len(ends.refused_ms) % _OBEYS == 0:
                await self._obey(ends, wait_s)
        else:
            ends.other += 1

    async def _obey(self, ends: _Ends, wait_s: float) -> None:
        ends.obeyed += 1
        status, tries = _REFUSED, 1
        while status == _REFUSED and tries < _MOST_TRIES:
            await asyncio.sleep(wait_s)
            status, _, wait_s = await self.send()
            tries += 1
        if status == _OK:
            ends.tries.append(tries)

    async def alone_ms(self) -> float:
        """Return how long a query takes; one that is not answered takes for ever."""
        status, took, _ = await self.send()
        return took if status == _OK else float("inf")

    async def normal_after(self, most_ms: float, give_up_s: float = _GIVE_UP_S) -> float | None:
        """Return the seconds until a query takes at most so long; None where it does not within `give_up_s`."""
        started = time.perf_counter()
        while (passed_s := time.perf_counter() - started) < give_up_s:
            if await self.alone_ms() <= most_ms:
                return passed_s
            await asyncio.sleep(_TICK_S)
        return None


async def overload(
    http: aiohttp.ClientSession, url: str, image: bytes, rate: float, seconds: float, drivers: Sequence[int]
) -> Overload:
    """Offer twice `rate` queries a second for so long, to `drivers` (process ids) behind `url`."""
    client, ends, memory = _Client(http, url, image), _Ends(), _Memory(drivers)
    before_ms = min([await client.alone_ms() for _ in range(5)])
    before_mb = memory.now()
    watching = asyncio.create_task(memory.watch())
    arrivals = np.cumsum(np.random.default_rng(0).exponential(0.5 / rate, int(2 * rate * seconds)))
    started, asking = time.perf_counter(), []
    for due in arrivals:
        await asyncio.sleep(max(0.0, started + due - time.perf_counter()))
        asking.append(asyncio.create_task(client.ask(ends)))
    normal_after_s = await client.normal_after(_NORMAL * before_ms)
    await asyncio.gather(*asking)
    watching.cancel()
    return Overload(
        offered_rate=2 * rate,
        offered=len(arrivals),
        deadline_ms=_DEADLINE_S * _MS_PER_S,
        accepted=len(ends.accepted_ms),
        accepted_p50_ms=_percentile(ends.accepted_ms, 50),
        accepted_p99_ms=_percentile(ends.accepted_ms, 99),
        late=ends.late,
        refused=len(ends.refused_ms),
        refused_p99_ms=_percentile(ends.refused_ms, 99),
        obeyed=ends.obeyed,
        answered_later=len(ends.tries),
        tries=_percentile([float(tries) for tries in ends.tries], 50),
        most_tries=max(ends.tries, default=0),
        other=ends.other,
        memory_mb=(before_mb, memory.most, memory.now()),
        normal_after_s=normal_after_s,
    )


def overload_lines(found: Overload) -> list[str]:
    """Return what was found, for people."""
    before, most, after = found.memory_mb
    offered = f"{found.offered} queries at {found.offered_rate:.1f}/s, twice what can be answered"
    in_time = f"p50 {found.accepted_p50_ms:.0f} ms, p99 {found.accepted_p99_ms:.0f} ms, {found.late} late"
    later = f"{found.answered_later} of {found.obeyed} that obeyed were answered later, at try {found.tries:g}"
    again = "never" if found.normal_after_s is None else f"{found.normal_after_s:.1f} s after the load's end"
    return [
        f"overload:        {offered}; deadline {found.deadline_ms:.0f} ms",
        f"  accepted       {found.accepted}: {in_time}, {found.other} failed",
        f"  refused        {found.refused}, p99 {found.refused_p99_ms:.0f} ms; {later} ({found.most_tries} at most)",
        f"  drivers hold   {before:.0f} MB before, {most:.0f} at most, {after:.0f} after",
        f"  normal again   {again}",
    ]


def _percentile(values: Sequence[float], share: float) -> float:
    return float(np.percentile(values, share)) if values else 0.0
