"""The first answer to a request is its answer, however often and to whichever driver it is sent again.

A client sends a key with its request, and the same one with every retry. The answer is kept in the drivers' common
store under that key, if there is none yet: of two drivers that computed it, both give the first one out. Only answers
are kept: after an error, the same request is tried anew.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from serfer.api.http.problems import Problem
from serfer.api.requests import Once
from serfer.core.errors import DeadlineError, MissingKeyError
from storage.store import Store


@dataclass(frozen=True)
class Reply:
    """An answer's body, and whether it was given before."""

    body: bytes
    replayed: bool


class Replies:
    """Answers by idempotency key, in `store` for `ttl_s` seconds."""

    def __init__(self, store: Store, ttl_s: float) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._under_way: dict[str, asyncio.Future[None]] = {}

    async def check(self, once: Once) -> None:
        """Raise Problem 422 where the key came with another question before, and was answered."""
        await asyncio.to_thread(self._find, once)

    async def once(self, once: Once, answer: Callable[[float], Awaitable[bytes]], deadline_s: float) -> Reply:
        """Return the answer that there is, or else make one, within so many seconds, and keep it.

        `answer` is told how many seconds are left. Raises Problem 422 where the key came with another question before,
        DeadlineError, and whatever `answer` raises.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        while (other := self._under_way.get(once.name)) is not None:
            # The same request, sent again: its answer is on its way here.
            await asyncio.wait((other,), timeout=deadline - loop.time())
            if loop.time() >= deadline:
                raise DeadlineError("no answer by the deadline: the same request still runs")
        ended = self._under_way[once.name] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(deadline):
                known = await asyncio.to_thread(self._find, once)
            if known is not None:
                return Reply(known, replayed=True)
            body = await answer(deadline - loop.time())
            async with asyncio.timeout_at(deadline):
                return await asyncio.to_thread(self._keep, once, body)
        except TimeoutError:
            raise DeadlineError("no answer by the deadline: the store did not answer in time") from None
        finally:
            del self._under_way[once.name]
            ended.set_result(None)

    def _find(self, once: Once) -> bytes | None:
        try:
            value = self._store.get(_key(once))
        except MissingKeyError:
            return None
        head, _, body = value.partition(b"\n")
        if json.loads(head) != once.digest:
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, "this Idempotency-Key came with another request: use a new one"
            )
        return body

    def _keep(self, once: Once, body: bytes) -> Reply:
        """Keep an answer unless another driver was first, and return the one that counts."""
        value = json.dumps(once.digest).encode() + b"\n" + body
        if self._store.put_new(_key(once), value, self._ttl_s):
            return Reply(body, replayed=False)
        return Reply(self._find(once) or body, replayed=True)


def _key(once: Once) -> str:
    return f"serfer:reply:{once.name}"
