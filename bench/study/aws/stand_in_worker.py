"""The handler of a worker that starts fast: it reads a task's input, hashes, and writes a few bytes.

It reads and writes by the store that the environment names, and answers as a worker does. It has neither a plan nor a
network: how fast ONNX Runtime computes is not what it is for. On one image it hardly computes, so that many may start
at once on a few processors.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from typing import Any

STARTED = time.perf_counter()

from serfer.core.keys import StoreCounts, input_key, output_key  # noqa: E402 - imports are a part of a start
from serfer.core.wire import Report, decode_task, encode_report  # noqa: E402 - same
from serfer.storage import open_store  # noqa: E402 - same
from serfer.storage.store import Range  # noqa: E402 - same

ROUNDS = 5
"""Blocks of 64 KiB that a task hashes for each image: some 60 ms of a processor of today for 4 MB of small ones."""
_BLOCK = bytes(1 << 16)
_ANSWER = bytes(100)
_STORE = open_store(os.environ["SERFER_STORE"])


@functools.cache
def _start() -> list[float]:
    return [STARTED]


def handler(event: dict[str, Any], _: object) -> dict[str, str]:
    started = time.perf_counter()
    task = decode_task(event)
    stored = _STORE.get_many([Range(input_key(task.query, 0))])
    read = time.perf_counter()
    digest = hashlib.sha256()
    for _round in range(ROUNDS * task.batch):
        digest.update(_BLOCK)
    computed = time.perf_counter()
    _STORE.put(output_key(task.query, 0, 0), _ANSWER, task.ttl)
    ended = time.perf_counter()
    report = Report(
        environment=str(os.getpid()),
        init_ms=1000 * (started - _start().pop()) if _start() else 0.0,
        read_ms=1000 * (read - started),
        compute_ms=1000 * (computed - read),
        write_ms=1000 * (ended - computed),
        total_ms=1000 * (ended - started),
        weight_loads=1,
        sessions=1,
        counts=StoreCounts(bytes_get=sum(map(len, stored)), gets=1, bytes_put=len(_ANSWER), puts=1),
    )
    return encode_report(report)
