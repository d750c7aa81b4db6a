"""Thousands of queries leave nothing behind: no memory, no descriptor, no key."""

from collections import deque

import numpy as np
import pytest

from bench.processes import held
from serfer.wiring import open_pipeline
from tests.e2e.small import SIZE

WARM_UP, QUERIES, UNDER_WAY = 1_500, 10_000, 4


@pytest.mark.slow
def test_ten_thousand_queries_leave_memory_and_descriptors_as_they_were(lean, redis, settings):
    pixels = np.random.default_rng(0).integers(0, 256, (1, SIZE, SIZE, 3), dtype=np.uint8)
    small = settings.model_copy(update={"local_concurrency": 2})
    with open_pipeline(lean, store=redis, workers="local", settings=small) as pipeline:

        def ask(queries):
            waiting = deque()
            for _ in range(queries):
                waiting.append(pipeline.submit(pixels))
                if len(waiting) == UNDER_WAY:
                    waiting.popleft().result()
            for query in waiting:
                query.result()

        ask(WARM_UP)
        before = held()
        ask(QUERIES)
        after = held()
    assert after.driver_bytes < 1.05 * before.driver_bytes
    assert after.workers == before.workers
    assert after.workers_bytes < 1.05 * before.workers_bytes
    assert after.descriptors <= before.descriptors
