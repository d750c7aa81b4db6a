"""Stores that are slow, or fail now and then, around another one; for tests and benches.

delay://?store=redis%3A%2F%2F127.0.0.1%3A6379&put_ms=20&get_ms=15&bytes_per_s=75e6&jitter=0.2
fail://?store=redis%3A%2F%2F127.0.0.1%3A6379&fail=0.1&hang=0.05&hang_s=2&seed=7
"""

import math
import random
import time
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, urlencode, urlsplit

from serfer import storage
from serfer.core.errors import StoreUnavailableError, UsageError
from serfer.storage.store import Store
from serfer.storage.wrapping import InterceptingStore


class DelayingStore(InterceptingStore):
    """Waits once a call, as for S3's concurrent requests, and for the bytes.

    A put or delete waits `put_s`, a get or exists `get_s` seconds, each between (1 - jitter) and (1 + jitter) times as
    long; bytes flow at `bytes_per_s`, 0: at once. A receive waits half of `get_s` before its messages and half after.
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
        self._sleep, self._uniform = sleep, uniform

    def before(self, operation: str, size: int = 0) -> None:
        latencies = {"get": self._get_s, "exists": self._get_s, "receive": self._get_s / 2}
        self._wait(latencies.get(operation, self._put_s), size)

    def after(self, operation: str, count: int, size: int) -> None:
        del count
        if operation in ("get", "receive"):
            self._wait(self._get_s / 2 if operation == "receive" else 0.0, size)

    def _wait(self, latency_s: float, size: int) -> None:
        spread = self._jitter * latency_s
        seconds = self._uniform(latency_s - spread, latency_s + spread) + size * self._byte_s
        if seconds > 0:
            self._sleep(seconds)


class FailingStore(InterceptingStore):
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

    def before(self, operation: str, size: int = 0) -> None:
        del size
        number = self._draw()
        if number < self._fail:
            raise StoreUnavailableError(f"{operation} failed on purpose, as --store fail:// says")
        if number < self._fail + self._hang:
            self._sleep(self._hang_s)
            raise StoreUnavailableError(f"{operation} hung on purpose for {self._hang_s:g} s, as --store fail:// says")


def open_delaying(url: str) -> DelayingStore:
    store, options = _unwrapped(url, {"put_ms": 0.0, "get_ms": 0.0, "bytes_per_s": 0.0, "jitter": 0.0})
    put_ms, get_ms, bytes_per_s, jitter = options.values()
    if jitter > 1:
        raise UsageError("--store delay:// needs a jitter from 0 to 1")
    inner = storage.open_store(store)
    return DelayingStore(inner, put_s=put_ms / 1000, get_s=get_ms / 1000, bytes_per_s=bytes_per_s, jitter=jitter)


def open_failing(url: str) -> FailingStore:
    store, options = _unwrapped(url, {"fail": 0.0, "hang": 0.0, "hang_s": 1.0, "seed": -1.0})  # which none is
    fail, hang, hang_s, seed = options.values()
    if fail + hang > 1:
        raise UsageError("--store fail:// needs shares fail and hang that are together at most 1")
    draw = random.Random(seed).random if seed >= 0 else random.random  # noqa: S311  no secret
    return FailingStore(storage.open_store(store), fail=fail, hang=hang, hang_s=hang_s, draw=draw)


def wrapped_url(scheme: str, store: str, **options: float) -> str:
    """Return the URL of a wrapper ("delay" or "fail") around the store at the URL `store`."""
    return f"{scheme}://?{urlencode({'store': store, **options})}"


def _unwrapped(url: str, known: Mapping[str, float]) -> tuple[str, dict[str, float]]:
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    given = dict(pairs)
    store = given.pop("store", "")
    if parts.netloc or parts.path or parts.fragment or "://" not in store or len(given) != len(pairs) - 1:
        raise UsageError(f"--store {parts.scheme}:// must be ?store=PERCENT-ENCODED-URL and options, each once")
    if given.keys() - known.keys():  # unnamed: it may be a part of an inner URL that is not percent-encoded
        raise UsageError(f"--store {parts.scheme}:// has an unknown option: use store, {', '.join(known)}")
    return store, {**known, **{name: _number(parts.scheme, name, text) for name, text in given.items()}}


def _number(scheme: str, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 <= number < math.inf):
        raise UsageError(f"--store {scheme}:// needs a number from zero on for {name}")
    return number
