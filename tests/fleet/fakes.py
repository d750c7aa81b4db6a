"""Instances, their provisioner and a clock that a test moves on."""

import asyncio

import numpy as np

from serfer.control.scenario import parse_scenario
from serfer.drivers.instance.client import Fault, FaultKind
from serfer.drivers.instance.open_inference import InferenceOutput
from serfer.fleet.pool import ServingInstance
from serfer.fleet.provisioners.provisioner import Member
from serfer.fleet.purchase import Purchase

CLASSES = 7
GPU = Purchase("gpu")
SCENARIO = {
    "slo_ms": 200,
    "lambda": {
        "usd_per_query": 1e-4,
        "latency_ms": 100,
        "cold_ms": 400,
        "concurrency": 100,
        "memory_gb": 1,
        "keep_alive_s": 600,
    },
    "instance": [
        {
            "name": "gpu",
            "usd_per_hour": 3.6,
            "spot_usd_per_hour": 0,
            "boot_s": 10,
            "min_billing_s": 0,
            "qps": 100,
            "batches": [[1, 10], [8, 40]],
        }
    ],
}
TWO_TYPES = {
    **SCENARIO,
    "instance": [
        {**SCENARIO["instance"][0], "spot_usd_per_hour": 1.2},
        {
            "name": "cpu",
            "usd_per_hour": 0.36,
            "spot_usd_per_hour": 0,
            "boot_s": 5,
            "min_billing_s": 0,
            "qps": 10,
            "batches": [[1, 50], [2, 100]],
        },
    ],
}
"""Two types, the first of them in both markets."""


def scenario(**changes):
    return parse_scenario({**SCENARIO, **changes})


def serving(urls, purchase=GPU):
    """Return what a pool is told of the instances at these URLs, by name."""
    return [ServingInstance(name, url, purchase) for name, url in urls.items()]


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        return self.now


class FakeInstance:
    """What the client of an instance does: answers at once, or as it is told."""

    def __init__(self, url, net):
        self.url = url.rstrip("/")
        self.net = net

    async def infer(self, array, timeout_s, patience_s, _request):
        self.net.requests.append((self.url, len(array), timeout_s, patience_s))
        await self.net.gate.wait()
        fault = self.net.faults.get(self.url)
        if fault is not None:
            return Fault(fault, f"{self.url} is {fault}")
        return InferenceOutput(np.zeros((len(array), CLASSES), np.float32), 4, 2.5)

    async def set_batching(self, batch, window_s, patience_s):
        del patience_s
        self.net.settings.append((self.url, batch, window_s))
        return self.net.batching(batch)

    async def ready(self, patience_s):
        del patience_s
        return self.url not in self.net.faults and self.url in self.net.up


class Net:
    """The instances that there are, by URL, which of them fail and how, and what they were requests."""

    def __init__(self):
        self.up = set()
        self.faults = {}
        self.requests = []
        self.settings = []
        self.batching = lambda batch: batch  # what instances answer that are asked to have a batch size
        self.gate = asyncio.Event()
        self.gate.set()

    def connect(self, url):
        return FakeInstance(url, self)

    def fail(self, url, kind=FaultKind.UNREACHABLE):
        self.faults[url] = kind


class FakeProvisioner:
    """Instances that are there at once and ready after `boot_s` of a clock; shared by the drivers of a test."""

    def __init__(self, net, clock, boot_s=10.0, label="i"):
        self.net = net
        self.clock = clock
        self.boot_s = boot_s
        self.label = label
        self.ending = set()
        self.there = {}
        self.broken = None
        self.calls = []
        self.closed = 0

    async def members(self):
        if self.broken is not None:
            raise self.broken
        for name, since in self.there.items():
            if self.clock() >= since + self.boot_s:
                self.net.up.add(f"http://{name}")
        states = {name: "draining" if name in self.ending else "serving" for name in self.there}
        return [Member(name, f"http://{name}", state) for name, state in states.items()]

    async def start(self, count):
        self.calls.append(("start", count))
        for _ in range(count):
            self.there[f"{self.label}-{len(self.calls)}-{len(self.there)}"] = self.clock()

    async def stop(self, name):
        self.calls.append(("stop", name))
        self.net.up.discard(f"http://{name}")
        return self.there.pop(name, None) is not None

    def lose(self, name):
        """Have an instance be gone without being asked."""
        self.net.up.discard(f"http://{name}")
        del self.there[name]

    async def close(self):
        self.closed += 1
