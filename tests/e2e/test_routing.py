"""Load that lasts moves to instances and back, in real processes, and no query is lost when processes die."""

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.e2e.conftest import PATIENCE, eventually, keys
from tests.e2e.load import Burst, Load
from tests.support.scenarios import instance_text, scenario_text
from tests.support.served import png

SCENARIO = scenario_text(2000, (1e-2, 100, 400, 100, 1, 600), ("here", 0.9, 0, 1, 0, 200, [[1, 5], [8, 20]]))


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def serve(start, plan, scenario):
    """Start a driver with a pool of processes; returns the command and its URL."""

    def launch(*arguments, **variables):
        pool = ("--route", "auto", "--instances", "local", "--set", f"scenario={scenario}")
        command = start(
            *("serve", "--plan", plan, "--port", "0", "--workers", "inprocess", "--set", "drain_s=0", "--json"),
            *("--set", "log_level=warning"),  # its output is read only at its end
            *(*pool, *arguments),
            SERFER_API_DEADLINE_MS="60000",
            **variables,
        )
        return command, command.said()["url"]

    return launch


def instances(cache):
    """Return the process ids of the instances that the pools under a cache directory know."""
    bodies = {}
    for path in Path(cache).glob("pools/*/*.json"):
        bodies[path.stem] = json.loads(path.read_text())["process"]["pid"]
    return bodies


def metric(url, name):
    return metrics(url, [name])[0]


def metrics(url, names):
    """The values of one moment, None for one that is not there."""
    with contextlib.closing(HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)) as connection:
        connection.request("GET", "/metrics")  # for one request, httpx would read all certificates
        text = connection.getresponse().read().decode()
    found = [re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE) for name in names]
    return [float(match[1]) if match else None for match in found]


def stopped(url):
    return metric(url, 'serfer_pool_instances{state="on"}') == 0


def alive(pid):
    """Return whether a process runs: a zombie may wait for the process that inherited it from a dead driver."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.slow
def test_a_burst_moves_from_functions_to_an_instance_and_survives_its_death(serve, cache):
    command, url = serve("--store", "memory://")
    with Burst(url) as burst:
        burst.answered("gpu")
        assert burst.seen[0] == "serverless"
        (before,) = instances(cache).items()
        os.kill(before[1], signal.SIGKILL)
        killed = burst.mark()
        burst.answered("serverless", killed)
        burst.answered("gpu", burst.seen.index("serverless", killed))
        ((after, _),) = instances(cache).items()
        assert after != before[0]
        burst.end()
    assert set(burst.seen) == {"serverless", "gpu"}, Counter(burst.seen)
    assert metric(url, 'serfer_pool_changes_total{change="started"}') >= 2
    assert metric(url, 'serfer_queries_total{model="small",outcome="answered",target="gpu"}') == burst.seen.count("gpu")
    eventually(lambda: stopped(url), "the instance stops after the burst", every=0.1)
    result = command.stop()
    (failed,) = [line for line in map(json.loads, result.err.splitlines()) if line["event"] == "instance failed"]
    assert failed["fault"] == "unreachable"


@pytest.mark.killed
@pytest.mark.slow
def test_another_driver_takes_over_leadership_and_instances_of_a_killed_one(serve, cache, redis):
    drivers = {url: command for command, url in (serve("--store", redis) for _ in range(2))}
    leading = "serfer_pool_leading"
    bursts = {url: Burst(url) for url in drivers}
    with contextlib.ExitStack() as running:
        for burst in bursts.values():
            running.enter_context(burst)
        for burst in bursts.values():
            burst.answered("gpu")
        ((name, pid),) = instances(cache).items()
        leader, other = sorted(drivers, key=lambda url: metric(url, leading), reverse=True)
        drivers[leader].process.kill()
        bursts[leader].end()
        eventually(lambda: metric(other, leading), "the other driver leads", every=0.1)
        since = bursts[other].mark()
        bursts[other].answered("gpu", since)
        assert instances(cache) == {name: pid}  # adopted, not replaced
        bursts[other].end()
    assert set(bursts[other].seen) == {"serverless", "gpu"}, Counter(bursts[other].seen)
    eventually(lambda: stopped(other), "the instance stops", every=0.1)
    assert not alive(pid)
    assert metric(other, 'serfer_pool_changes_total{change="started"}') == 0
    drivers[other].stop()
    drivers[leader].process.communicate()
    eventually(lambda: keys(redis) == [], "the drivers' published state expires")


@pytest.mark.slow
def test_an_instance_ends_by_itself_once_every_driver_is_dead(serve, cache, redis):
    command, url = serve("--store", redis)
    with Burst(url) as burst:
        burst.answered("gpu")
        (pid,) = instances(cache).values()
        command.process.kill()
        burst.end()
    command.process.communicate()
    assert alive(pid)
    begun = time.monotonic()
    eventually(lambda: not alive(pid), "the instance ends when it gets no requests")
    assert time.monotonic() - begun > 30
    eventually(lambda: keys(redis) == [], "the driver's published state expires")
    later, _ = serve("--store", "memory://")  # another pool, which sweeps
    assert list(instances(cache)) == []
    later.stop()


SEVERAL = SCENARIO.replace("spot_usd_per_hour = 0", "spot_usd_per_hour = 0.3") + instance_text(
    "there", 0.36, 0, 1, 0, 100, [[1, 5], [2, 10]]
)
EACH = """
from serfer.control.policy import InstanceCount, ProvisioningPlan
from serfer.control.scenario import Market


class Each:
    def __init__(self, scenario):
        pass

    def observe(self, seen):
        kinds = (("here", "on-demand"), ("here", "spot"), ("there", "on-demand"))
        lost = sum(one.count for one in seen.interruptions)
        return ProvisioningPlan(tuple(InstanceCount(kind, Market(market), 1) for kind, market in kinds), f"{lost} lost")

    def resume(self, fleet):
        pass
"""


@pytest.mark.slow
def test_a_pool_of_two_types_and_markets_serves_from_each_at_its_own_price(serve, cache, scenario, tmp_path):
    scenario.write_text(SEVERAL)
    (tmp_path / "each.py").write_text(EACH)
    instances_option = "here=local,here/spot=local,there=local"
    command, url = serve(
        *("--route", f"{tmp_path}/each.py:Each", "--instances", instances_option), *("--store", "memory://")
    )
    prices = {("here", "on-demand"): 0.9, ("here", "spot"): 0.3, ("there", "on-demand"): 0.36}
    costs = {0.9 / 3600 / 200, 0.3 / 3600 / 200, 0.36 / 3600 / 100}

    def of(kind, market, state):
        return metric(url, f'serfer_pool_type_instances{{market="{market}",state="{state}",type="{kind}"}}')

    with Burst(url, clients=6) as burst:
        eventually(lambda: len({*map(repr, costs)} & {*map(repr, burst.costs)}) == 3, "each type answers", every=0.1)
        assert [of(*bought, "serving") for bought in prices] == [1, 1, 1]
        hours = [f'serfer_pool_type_hour_usd{{market="{market}",type="{kind}"}}' for kind, market in prices]
        usd = dict(zip(prices, metrics(url, hours), strict=True))
        names = instances(cache)
        assert sorted(name.rpartition("-")[0] for name in names) == ["local-here", "local-here-spot", "local-there"]
        batches = {name: Path(f"/proc/{pid}/cmdline").read_text() for name, pid in names.items()}
        assert all(f"--max-batch={2 if 'there' in name else 8}" in words for name, words in batches.items())
        (spot,) = [pid for name, pid in names.items() if "spot" in name]
        os.kill(spot, signal.SIGKILL)
        lost = 'serfer_pool_changes_total{change="interrupted"}'
        eventually(lambda: metric(url, lost) == 1, "the interruption is seen", every=0.1)
        eventually(lambda: spot not in instances(cache).values() and of("here", "spot", "serving"), "it is replaced")
        burst.end()
    assert {*burst.seen} == {"serverless", "gpu"}, Counter(burst.seen)
    seconds = usd["here", "on-demand"] / prices["here", "on-demand"]
    assert usd == {bought: pytest.approx(price * seconds, rel=0.01) for bought, price in prices.items()}
    command.stop()
    assert not any(map(alive, instances(cache).values()))


RATE = 45  # one instance takes 29 a second with batches of 8: the rest is for another one, with smaller batches
SECONDS = 10


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
    text = SCENARIO.replace("slo_ms = 2000", "slo_ms = 1000").replace("qps = 200", "qps = 28")
    scenario.write_text(re.sub(r"batches = .*", "batches = [[1, 100], [2, 120], [4, 160], [8, 250]]", text))
    options = ("--route", "nonuniform", "--instances", "local", "--set", f"scenario={scenario}")
    command, url = serve("--store", f"file://{tmp_path}/store", *options)
    asyncio.run(shared(url, tmp_path / "store"))
    command.stop()
