"""A wrapper that makes a store fail now and then; for tests and benches.

fail://?store=redis%3A%2F%2F127.0.0.1%3A6379&fail=0.1&hang=0.05&hang_s=2&seed=7
"""

import random
import time
from collections.abc import Callable, Sequence

from serfer.core.errors import StoreUnavailableError, UsageError
from serfer.storage.coordination import Coordination, InterceptedCoordination
from serfer.storage.exchange import Exchange, Message, Received
from serfer.storage.store import Bytes, Range, Store
from serfer.storage.wrapping import WrapperExchange, WrapperStore, unwrapped, wrapped_url

_NO_SEED = -1.0
_OPTIONS = {"fail": 0.0, "hang": 0.0, "hang_s": 1.0, "seed": _NO_SEED}


class FailingStore(WrapperStore):
    """Raises StoreUnavailableError instead of a call, at once or after a hang.

    `fail` and `hang` are shares of all calls; a call that hangs waits `hang_s` seconds and then fails. A call that
    fails has done nothing. `draw` returns numbers from [0, 1).
    """

    def __init__(
        self,
        inner: Store,
        *,
        fail: float = 0.0,
        hang: float = 0.0,
        hang_s: float = 1.0,
        draw: Callable[[], float] = random.random,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self._fail, self._hang, self._hang_s = fail, hang, hang_s
        self._draw = draw
        self._sleep = sleep

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        """Put, or fail."""
        self._maybe_fail("put")
        self._inner.put(key, value, ttl)

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        """Get all the ranges, or fail for all of them."""
        self._maybe_fail("get")
        return self._inner.get_many(ranges)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Look the keys up, or fail."""
        self._maybe_fail("exists")
        return self._inner.exists(keys)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete all the keys, or fail and delete none."""
        self._maybe_fail("delete")
        self._inner.delete(keys)

    def coordination(self) -> Coordination:
        """Coordinate, or fail, by the same shares."""
        return InterceptedCoordination(self._inner.coordination(), self._maybe_fail)

    def _wrapped(self, inner: Exchange) -> Exchange:
        return _FailingExchange(inner, self._maybe_fail)

    def _maybe_fail(self, operation: str) -> None:
        number = self._draw()
        if number < self._fail:
            raise StoreUnavailableError(f"{operation} failed on purpose, as --store fail:// says")
        if number < self._fail + self._hang:
            self._sleep(self._hang_s)
            raise StoreUnavailableError(f"{operation} hung on purpose for {self._hang_s:g} s, as --store fail:// says")


class _FailingExchange(WrapperExchange):
    def __init__(self, inner: Exchange, maybe_fail: Callable[[str], None]) -> None:
        super().__init__(inner)
        self._maybe_fail = maybe_fail

    def send(self, messages: Sequence[Message], ttl: float) -> None:
        """Send all the messages, or fail and send none."""
        self._maybe_fail("send")
        self._inner.send(messages, ttl)

    def receive(self, inbox: str, after: str, timeout_s: float) -> list[Received]:
        """Receive, or fail before the wait."""
        self._maybe_fail("receive")
        return self._inner.receive(inbox, after, timeout_s)


def failing(store: str, *, fail: float = 0, hang: float = 0, hang_s: float = 1, seed: int | None = None) -> str:
    """Return the URL of the store at the URL `store` that fails: shares, seconds; a seed repeats in each process."""
    return wrapped_url("fail", store, {"fail": fail, "hang": hang, "hang_s": hang_s, "seed": seed})


def open_failing(url: str) -> FailingStore:
    """Open `fail://?store=...`; raises UsageError for a malformed URL, and what opening the inner store raises."""
    from serfer.storage import open_store  # noqa: PLC0415  it opens us

    store, options = unwrapped(url, _OPTIONS)
    fail, hang, hang_s, seed = options.values()
    if fail + hang > 1:
        raise UsageError("--store fail:// needs shares fail and hang that are together at most 1")
    draw = random.Random(seed).random if seed != _NO_SEED else random.random  # noqa: S311  no secret
    return FailingStore(open_store(store), fail=fail, hang=hang, hang_s=hang_s, draw=draw)
