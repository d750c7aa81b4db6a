"""A wrapper that makes a store as slow as another one would be; for tests and benches.

delay://?store=redis%3A%2F%2F127.0.0.1%3A6379&put_ms=20&get_ms=15&bytes_per_s=75e6&jitter=0.2
"""

import random
import time
from collections.abc import Callable, Sequence

from serfer.core.errors import UsageError
from serfer.storage.coordination import Coordination, InterceptedCoordination
from serfer.storage.exchange import Exchange, Message, Received
from serfer.storage.store import Bytes, Range, Store
from serfer.storage.wrapping import WrapperExchange, WrapperStore, unwrapped, wrapped_url

_OPTIONS = {"put_ms": 0.0, "get_ms": 0.0, "bytes_per_s": 0.0, "jitter": 0.0}


class DelayingStore(WrapperStore):
    """Waits once a call, as for S3's concurrent requests, and for the bytes.

    A put or delete waits `put_s`, a get or exists `get_s` seconds, each between (1 - jitter) and (1 + jitter) times as
    long; bytes flow at `bytes_per_s`, where 0 means at once.
    """

    def __init__(
        self,
        inner: Store,
        *,
        put_s: float = 0.0,
        get_s: float = 0.0,
        bytes_per_s: float = 0.0,
        jitter: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        super().__init__(inner)
        self._put_s, self._get_s = put_s, get_s
        self._byte_s = 1 / bytes_per_s if bytes_per_s else 0.0
        self._jitter = jitter
        self._sleep = sleep
        self._uniform = uniform

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        """Wait for the request and its bytes, then put."""
        self._wait(self._put_s, memoryview(value).nbytes)
        self._inner.put(key, value, ttl)

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        """Wait once, however many ranges there are, then get them, then wait for all their bytes."""
        self._wait(self._get_s)
        values = self._inner.get_many(ranges)
        self._wait(0.0, sum(map(len, values)))
        return values

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Wait once, then look the keys up."""
        self._wait(self._get_s)
        return self._inner.exists(keys)

    def delete(self, keys: Sequence[str]) -> None:
        """Wait once, then delete."""
        self._wait(self._put_s)
        self._inner.delete(keys)

    def coordination(self) -> Coordination:
        """Coordinate after a wait for the request; values are small."""
        return InterceptedCoordination(
            self._inner.coordination(), lambda operation: self._wait(self._get_s if operation == "get" else self._put_s)
        )

    def _wrapped(self, inner: Exchange) -> Exchange:
        return _DelayingExchange(inner, self._put_s, self._get_s, self._wait)

    def _wait(self, latency_s: float, size: int = 0) -> None:
        spread = self._jitter * latency_s
        seconds = self._uniform(latency_s - spread, latency_s + spread) + size * self._byte_s
        if seconds > 0:
            self._sleep(seconds)


class _DelayingExchange(WrapperExchange):
    def __init__(self, inner: Exchange, put_s: float, get_s: float, wait: Callable[[float, int], None]) -> None:
        super().__init__(inner)
        self._put_s, self._get_s, self._wait = put_s, get_s, wait

    def send(self, messages: Sequence[Message], ttl: float) -> None:
        """Wait for one request and all its bytes, then send."""
        self._wait(self._put_s, sum(len(message.value) for message in messages))
        self._inner.send(messages, ttl)

    def receive(self, inbox: str, after: str, timeout_s: float) -> list[Received]:
        """Wait half a request, then for messages, then half a request and the bytes: one delay, however long the wait.

        So a message that is there takes a request, one that is waited for the way back.
        """
        self._wait(self._get_s / 2, 0)
        received = self._inner.receive(inbox, after, timeout_s)
        self._wait(self._get_s / 2, sum(len(message.value) for message in received))
        return received


def delayed(
    store: str, *, put_ms: float = 0, get_ms: float = 0, bytes_per_s: float | None = None, jitter: float | None = None
) -> str:
    """Return the URL of the store at the URL `store`, made slower; milliseconds, bytes per second, a share."""
    options = {"put_ms": put_ms, "get_ms": get_ms, "bytes_per_s": bytes_per_s, "jitter": jitter}
    return wrapped_url("delay", store, options)


def open_delaying(url: str) -> DelayingStore:
    """Open `delay://?store=...`; raises UsageError for a malformed URL, and what opening the inner store raises."""
    from serfer.storage import open_store  # noqa: PLC0415  it opens us

    store, options = unwrapped(url, _OPTIONS)
    if options["jitter"] > 1:
        raise UsageError("--store delay:// needs a jitter from 0 to 1")
    return DelayingStore(
        open_store(store),
        put_s=options["put_ms"] / 1000,
        get_s=options["get_ms"] / 1000,
        bytes_per_s=options["bytes_per_s"],
        jitter=options["jitter"],
    )
