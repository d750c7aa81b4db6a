"""Inboxes on a Redis server or cluster: a stream for each."""

import math
import time
from collections.abc import Sequence

from serfer.storage.exchange import START, Exchange, Message, Received
from serfer.storage.redis.node import Commands, check_size, milliseconds
from serfer.storage.store import check_keys, check_ttl

_SLICE_S = 1.0
_FIRST = "0"


class RedisExchange(Exchange):
    """Messages by XADD over a store's connections, received by XREAD over `waiting`.

    A wait is cut into slices shorter than `socket_timeout`, the seconds in which a server has to answer, so that one
    that is gone is noticed, and a slot of a cluster that moves is followed. The message and its PEXPIRE reach the
    server together, so that no inbox lives for ever.
    """

    def __init__(self, store: Commands, waiting: Commands, socket_timeout: float | None) -> None:
        self._store = store
        self._waiting = waiting
        self._slice_s = min(_SLICE_S, (socket_timeout or math.inf) / 2)

    def send(self, messages: Sequence[Message], ttl: float) -> None:
        check_keys(message.inbox for message in messages)
        check_ttl(ttl)
        for inbox, value in messages:
            check_size(inbox, len(value))
        lasting = milliseconds(ttl)
        self._store.execute(
            [
                command
                for inbox, value in messages
                for command in (("XADD", inbox, "*", "", value), ("PEXPIRE", inbox, lasting))
            ]
        )

    def receive(self, inbox: str, after: str, timeout_s: float) -> list[Received]:
        check_keys((inbox,))
        source = ("STREAMS", inbox, _FIRST if after == START else after)
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            block = ("BLOCK", math.ceil(min(left_s, self._slice_s) * 1000)) if left_s > 0 else ()
            [streams] = self._waiting.execute([("XREAD", *block, *source)])
            if streams:
                [entries] = dict(streams).values()
                return [Received(cursor.decode(), value) for cursor, (_, value) in entries]
            if not left_s > self._slice_s:
                return []

    def close(self) -> None:
        self._waiting.close()
