"""The load of a round: queries one at a time, then several at once over kept connections, each answer compared.

Clients are closed loops: each sends its next query when it has the last one's answer. All are of one process, whose
share of a processor is noted: it is not what is measured.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from serfer.core.errors import WrongAnswerError
from serfer_bench.peers.running import Running

_TOLERANCE = 1e-3  # of a score: as much as its logit may be off, a ten-thousandth of a range of ten
_MS_PER_S = 1000.0


@dataclass(frozen=True)
class Load:
    """Queries one at a time, and several at once, after some to warm up."""

    alone: int
    together: int
    at_once: int
    warm_up: int


@dataclass(frozen=True)
class Example:
    """An image, encoded, and its best classes by the unsplit network; None where answers are not compared."""

    image: bytes
    predictions: Sequence[Any] | None


@dataclass(frozen=True)
class Round:
    """What a system did in one round: latencies in ms, queries a second, resident bytes.

    A query at once with others took `processor_ms` in all processes of the server, of which `first_ms` in the first.
    `client_share` is the share of a processor that the client used meanwhile.
    """

    system: str
    start_s: float
    alone_ms: tuple[float, ...]
    together_ms: tuple[float, ...]
    rate: float
    bytes: int
    processor_ms: float
    first_ms: float
    client_share: float


async def measure(server: Running, examples: Sequence[Example], load: Load) -> Round:
    client = _Client(server, examples, load.at_once)
    await client.send(load.warm_up, load.at_once)
    alone, _ = await client.send(load.alone, 1)
    before, own, clock = server.processor_s(), time.process_time(), time.perf_counter()
    together, elapsed_s = await client.send(load.together, load.at_once)
    client_share = (time.process_time() - own) / (time.perf_counter() - clock)
    used = zip(server.processor_s(), before, strict=True)
    processor_ms, first_ms = ((now - then) / load.together * _MS_PER_S for now, then in used)
    return Round(
        server.peer.name,
        server.start_s,
        tuple(alone),
        tuple(together),
        load.together / elapsed_s,
        server.pss(),
        processor_ms,
        first_ms,
        client_share,
    )


class _Client:
    def __init__(self, server: Running, examples: Sequence[Example], at_once: int) -> None:
        self._server = server
        self._pairs = [(server.peer.request(server.launch, example.image), example) for example in examples]
        limit = server.launch.workers if server.peer.bounded else None
        self._gate = asyncio.Semaphore(min(limit, at_once)) if limit else None

    async def send(self, queries: int, at_once: int) -> tuple[list[float], float]:
        latencies: list[float] = []
        numbers = itertools.count()

        async def client() -> None:
            while (number := next(numbers)) < queries:
                request, example = self._pairs[number % len(self._pairs)]
                sent = time.perf_counter()
                async with self._gate or nullcontext():
                    body = await self._server.post(request)
                latencies.append((time.perf_counter() - sent) * _MS_PER_S)
                if example.predictions is not None:
                    check(self._server.peer.name, self._server.peer.predictions(body), example.predictions)

        started = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as clients:
                for _ in range(at_once):
                    clients.create_task(client())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return latencies, time.perf_counter() - started


def check(name: str, predictions: Sequence[Any], right: Sequence[Any]) -> None:
    same = len(predictions) == len(right) and all(
        math.isclose(given["score"], true["score"], rel_tol=_TOLERANCE)
        for given, true in zip(predictions, right, strict=True)
    )
    if not same or predictions[0]["index"] != right[0]["index"]:
        raise WrongAnswerError(f"{name} gives {predictions!r:.300}, and the network itself {list(right)!r:.300}")
