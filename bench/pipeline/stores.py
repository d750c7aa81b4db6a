"""Round trips and bandwidth of stores: what putting, reading and deleting takes by size, one thread, stores in turn."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.local.servers.redis import RedisServer
from serfer.storage import Range, Store, open_store, redact
from serfer_bench.core.options import RowsOption
from serfer_bench.core.results import publish_rows
from serfer_bench.core.tables import Column, Measurement

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22)
RANGES = 8
_OPERATIONS = ("put", "get", "get_many", "delete")
_TTL_S = 600.0
_US_PER_S = 1e6
_MB = 1e6

Progress = Callable[[str], None]
Now = Callable[[], float]


@dataclass(frozen=True)
class StoreTime(Measurement):
    """Microseconds of an operation on one object of `bytes` (`get_many`: 8 ranges that make one up), wall time.

    `mb_per_s` is of the bytes moved; None where none are.
    """

    store: Annotated[str, Column("store")]
    bytes: Annotated[int, Column("bytes", ",")]
    operation: Annotated[str, Column("operation")]
    median_us: Annotated[float, Column("us", ",.1f")]
    least_us: Annotated[float, Column("from", ",.1f")]
    greatest_us: Annotated[float, Column("to", ",.1f")]
    mb_per_s: Annotated[float | None, Column("MB/s", ",.0f", empty="-")]


def measure(
    urls: Sequence[str] | None,
    sizes: Sequence[int] = SIZES,
    rounds: int = 15,
    progress: Progress = lambda _: None,
    now: Now = time.perf_counter,
) -> list[StoreTime]:
    rows = []
    with _opened(urls) as stores:
        for size in sizes:
            progress(f"objects of {size:,} bytes")
            rows += _measure_size(stores, size, rounds, now)
    return rows


@contextmanager
def _opened(urls: Sequence[str] | None) -> Iterator[dict[str, Store]]:
    with ExitStack() as parts:
        if urls is None:
            folder = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="serfer-bench-")))
            server = parts.enter_context(RedisServer())
            named = {"memory": "memory://", "file": f"file://{folder}", "redis": server.url}
        else:
            named = {redact(url): url for url in urls}
        yield {name: parts.enter_context(open_store(url)) for name, url in named.items()}


def _measure_size(stores: dict[str, Store], size: int, rounds: int, now: Now) -> list[StoreTime]:
    times: dict[tuple[str, str], list[float]] = {(name, op): [] for name in stores for op in _OPERATIONS}
    value = bytes(size)
    for number in range(-1, rounds):  # the first round warms up
        for name, store in stores.items():
            key = f"serfer-bench:{number}"
            for operation, call in zip(_OPERATIONS, _calls(store, key, value), strict=True):
                started = now()
                call()
                if number >= 0:
                    times[name, operation].append(now() - started)
    return [_row(name, size, operation, seconds) for (name, operation), seconds in times.items()]


def _calls(store: Store, key: str, value: bytes) -> tuple[Callable[[], object], ...]:
    edges = [len(value) * number // RANGES for number in range(RANGES + 1)]
    ranges = [Range(key, start, stop - start) for start, stop in pairwise(edges)]
    return (
        lambda: store.put(key, value, _TTL_S),
        lambda: store.get(key),
        lambda: store.get_many(ranges),
        lambda: store.delete([key]),
    )


def _row(name: str, size: int, operation: str, times: Sequence[float]) -> StoreTime:
    middle = median(times)
    rate = None if operation == "delete" or not middle else size / middle / _MB
    us, least, greatest = (seconds * _US_PER_S for seconds in (middle, min(times), max(times)))
    return StoreTime(name, size, operation, us, least, greatest, rate)


def command(
    store: Annotated[
        list[str] | None,
        typer.Option(help="A store's URL; may be repeated. By default memory, file, and a Redis that is started."),
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(min=1, help="Bytes of an object; may be repeated. By default 1 kB to 4 MB.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often every operation is measured; stores take turns.")] = 15,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the round trips and bandwidth of stores: put, get, get_many and delete, by size."""
    with status_line() as progress:
        rows = measure(store, size or SIZES, rounds, progress)
    publish_rows(rows, directory, as_json=as_json)
