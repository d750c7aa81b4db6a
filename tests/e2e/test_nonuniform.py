"""Two instances with batch sizes of their own serve a burst: dispatched as the rates say, in full batches, in time."""

import asyncio
import re
import signal

import pytest

from tests.api.conftest import png
from tests.e2e.load import Load
from tests.e2e.test_routing import SCENARIO, metric
from tests.e2e.test_routing import serve as serve  # noqa: PLC0414 - a fixture

RATE = 45  # one instance takes 29 a second with batches of 8: the rest is for another one, with smaller batches
SECONDS = 10


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "scenario.toml"
    batches = "batches = [[1, 100], [2, 120], [4, 160], [8, 250]]"
    text = SCENARIO.replace("slo_ms = 2000", "slo_ms = 1000").replace("qps = 200", "qps = 28")
    path.write_text(re.sub(r"batches = .*", batches, text))
    return path


async def shared(url, store):
    def batch_sizes():
        record = b"".join(file.read_bytes() for file in store.rglob("*pool*") if file.is_file())
        return sorted(map(int, re.findall(rb'"batch": ?(\d+)', record)))

    def sizes_differ():
        two = batch_sizes()
        return len(two) == 2 and two[0] < two[1] == 8

    async with Load(url, png(), 1 / RATE) as load:
        await load.until(lambda: metric(url, 'serfer_pool_instances{state="serving"}') == 2, "two instances serve")
        await load.until(sizes_differ, "batch sizes of their own")

        def steady():
            targets = [answer.get("target") for _, answer in load.answers[-RATE * SECONDS :]]
            return targets.count("gpu") >= 0.95 * RATE * SECONDS

        await load.until(steady, "instances answer nearly all queries of ten seconds")


@pytest.mark.slow
def test_two_instances_share_a_burst_by_the_rates_of_their_batch_sizes(serve, scenario, tmp_path):
    options = ("--route", "nonuniform", "--instances", "local", "--scenario", scenario)
    command, url = serve("--store", f"file://{tmp_path}/store", *options)
    asyncio.run(shared(url, tmp_path / "store"))
    command.interrupt(signal.SIGTERM)
    assert command.end().code == 0
