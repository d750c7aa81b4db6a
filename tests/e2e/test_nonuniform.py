"""Two instances with batch sizes of their own serve a burst: dispatched as the rates say, in full batches, in time."""

import asyncio
import re
import signal
import time
from collections import Counter
from threading import Thread

import httpx
import pytest

from tests.e2e.conftest import PATIENCE
from tests.e2e.test_routing import metric, png
from tests.e2e.test_routing import serve as serve  # noqa: PLC0414 - a fixture

SCENARIO = """
slo_ms = 1000
[lambda]
usd_per_query = 1e-2
latency_ms = 100
cold_ms = 400
concurrency = 100
memory_gb = 1
keep_alive_s = 600
[[instance]]
name = "here"
usd_per_hour = 0.9
spot_usd_per_hour = 0
boot_s = 1
min_billing_s = 0
qps = 28
batches = [[1, 100], [2, 120], [4, 160], [8, 250]]
"""
RATE = 45  # one instance takes 29 a second with batches of 8: the rest is for another one, with smaller batches


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return path


async def paced(url, seconds, seen):
    """Send RATE queries a second, evenly, and note where each was answered and in how many seconds."""
    image = png()

    async def ask(http):
        begun = time.monotonic()
        reply = await http.post("/v1/classify", content=image, headers={"Content-Type": "image/png"})
        seen.append((reply.json().get("target"), time.monotonic() - begun))

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits) as http, asyncio.TaskGroup() as group:
        begun = time.monotonic()
        for number in range(int(seconds * RATE)):
            await asyncio.sleep(max(0.0, begun + number / RATE - time.monotonic()))
            group.create_task(ask(http))


@pytest.mark.slow
def test_two_instances_share_a_burst_by_the_rates_of_their_batch_sizes(serve, scenario, tmp_path):
    options = ("--route", "nonuniform", "--instances", "local", "--scenario", scenario)
    command, url = serve("--store", f"file://{tmp_path}/store", *options)
    growing, steady = [], []
    asyncio.run(paced(url, 30, growing))
    assert metric(url, 'serfer_pool_instances{state="serving"}') == 2
    seen = Thread(target=lambda: asyncio.run(paced(url, 10, steady)))
    seen.start()
    sizes = set()
    while seen.is_alive():
        record = b"".join(file.read_bytes() for file in (tmp_path / "store").rglob("*pool*") if file.is_file())
        sizes.add(tuple(sorted(map(int, re.findall(rb'"batch": ?(\d+)', record)))))
        time.sleep(0.2)
    assert any(len(two) == 2 and two[0] < two[1] == 8 for two in sizes), sizes
    targets = Counter(target for target, _ in steady)
    assert targets["gpu"] >= 0.95 * len(steady), targets
    command.interrupt(signal.SIGTERM)
    assert command.end().code == 0
