"""Thousands of queries leave nothing behind: no memory, no descriptor, no key."""

import os
from collections import deque
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from serfer.wiring.open_pipeline import open_pipeline
from serfer_bench.core.processes import held
from tests.e2e.small import SIZE

WARM_UP, QUERIES, UNDER_WAY = 1_500, 10_000, 4
THREADS = min(32, (os.cpu_count() or 1) + 4)  # of an event loop's executor, each of which may hold a connection


def connections_to(url):
    """Return how many of this process's descriptors are connections to the server at `url`."""
    port = f":{urlsplit(url).port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    there = {f"socket:[{row[9]}]" for row in rows if row[2].endswith(port)}
    ours = []
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names suffice
        try:
            ours.append(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 - the text alone
        except FileNotFoundError:
            continue  # that of the listing
    return len(there & {*ours})


@pytest.mark.weekly
def test_ten_thousand_queries_leak_neither_memory_nor_descriptors(lean, redis, settings):
    pixels = np.random.default_rng(0).integers(0, 256, (1, SIZE, SIZE, 3), dtype=np.uint8)
    small = settings.model_copy(update={"local_concurrency": 2})
    with open_pipeline(lean, store=redis, workers="local", settings=small) as pipeline:

        def classify(queries):
            waiting = deque()
            for _ in range(queries):
                waiting.append(pipeline.submit(pixels))
                if len(waiting) == UNDER_WAY:
                    waiting.popleft().result()
            for query in waiting:
                query.result()

        classify(WARM_UP)
        before, stored = held(), connections_to(redis)
        classify(QUERIES)
        after, stored_after = held(), connections_to(redis)
    assert after.driver_bytes < 1.05 * before.driver_bytes
    assert after.workers == before.workers
    assert after.workers_bytes < 1.05 * before.workers_bytes
    # Connections to the store come when that many threads happen to need one at once, perhaps after the warm-up.
    assert stored_after <= THREADS + 1
    assert after.descriptors - stored_after <= before.descriptors - stored
