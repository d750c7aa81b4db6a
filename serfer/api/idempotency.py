"""Idempotency keys: the first answer to a request is its answer, whichever driver a retry reaches.

A client sends a key with its request, and the same one with every retry. The first answer that a driver computes is set
under that key in the drivers' common store; another driver that computed one too returns the first. Only answers are
kept: after an error the request is run again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from serfer.api.http.problems import Problem
from serfer.api.requests import IdempotencyKey
from serfer.core.errors import DeadlineError
from serfer.storage.coordination import Coordination, Entry, set_once


@dataclass(frozen=True)
class Reply:
    """An answer's body, and whether an earlier request computed it."""

    body: bytes
    replayed: bool


class IdempotencyStore:
    """Answers by idempotency key, kept in `coordination` for `ttl_s` seconds."""

    def __init__(self, coordination: Coordination, ttl_s: float) -> None:
        self._coordination = coordination
        self._ttl_s = ttl_s
        self._in_flight: dict[str, asyncio.Future[None]] = {}

    async def check(self, key: IdempotencyKey) -> None:
        """Raise Problem 422 where the key has an answer to another request."""
        await asyncio.to_thread(self._find, key)

    async def first_answer(
        self, key: IdempotencyKey, answer: Callable[[float], Awaitable[bytes]], deadline_s: float
    ) -> Reply:
        """Return the key's answer; where it has none, compute one with `answer(seconds left)` and keep it.

        Raises Problem 422 where the key has an answer to another request, DeadlineError, and what `answer` raises.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        while (other := self._in_flight.get(key.name)) is not None:
            # A retry of a request that runs here: its answer is to come.
            await asyncio.wait((other,), timeout=deadline - loop.time())
            if loop.time() >= deadline:
                raise DeadlineError("no answer by the deadline: the same request still runs")
        ended = self._in_flight[key.name] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(deadline):
                known = await asyncio.to_thread(self._find, key)
            if known is not None:
                return Reply(known, replayed=True)
            body = await answer(deadline - loop.time())
            async with asyncio.timeout_at(deadline):
                return await asyncio.to_thread(self._keep, key, body)
        except TimeoutError:
            raise DeadlineError("no answer by the deadline: the store did not answer in time") from None
        finally:
            del self._in_flight[key.name]
            ended.set_result(None)

    def _find(self, key: IdempotencyKey) -> bytes | None:
        entry = self._coordination.get(_key(key))
        return _body(entry, key) if entry else None

    def _keep(self, key: IdempotencyKey, body: bytes) -> Reply:
        value = json.dumps(key.digest).encode() + b"\n" + body
        entry = set_once(self._coordination, _key(key), value, self._ttl_s)
        return Reply(body, replayed=False) if entry.value is value else Reply(_body(entry, key), replayed=True)


def _body(entry: Entry, key: IdempotencyKey) -> bytes:
    head, _, body = entry.value.partition(b"\n")
    if json.loads(head) != key.digest:
        raise Problem(422, "this Idempotency-Key came with another request: use a new one")
    return body


def _key(key: IdempotencyKey) -> str:
    return f"serfer:answer:{key.name}"
