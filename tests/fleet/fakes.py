"""Instances, their provisioners, and drivers of a pool in a test's own time."""

import asyncio
import threading
import tomllib

import numpy as np

from serfer.control.policy import InstanceCount, ProvisioningPlan, paid_for
from serfer.control.router import Router
from serfer.control.scenario import parse_scenario
from serfer.core.errors import StoreUnavailableError
from serfer.drivers.instance.client import Fault, FaultKind
from serfer.drivers.instance.open_inference import InferenceOutput
from serfer.fleet.control_loop import Timing
from serfer.fleet.controller import Controller
from serfer.fleet.pool import Pool, ServingInstance
from serfer.fleet.provisioners.provisioner import Member
from serfer.fleet.purchase import Purchase
from serfer.fleet.registry import PoolRegistry
from serfer.storage.coordination import InterceptedCoordination
from serfer.storage.memory import MemoryStore
from tests.support.hand_clock import Clock
from tests.support.scenarios import instance_text, scenario_text

CLASSES = 7
GPU = Purchase("gpu")
TEXT = scenario_text(200, (1e-4, 100, 400, 100, 1, 600), ("gpu", 3.6, 0, 10, 0, 100, [[1, 10], [8, 40]]))
CPU_TEXT = instance_text("cpu", 0.36, 0, 5, 0, 10, [[1, 50], [2, 100]])
SCENARIO = tomllib.loads(TEXT)
TWO_TYPES = tomllib.loads(TEXT.replace("spot_usd_per_hour = 0", "spot_usd_per_hour = 1.2") + CPU_TEXT)
"""Two types, the first of them in both markets."""


def scenario(**changes):
    return parse_scenario({**SCENARIO, **changes})


def serving(urls, purchase=GPU):
    """Return what a pool is told of the instances at these URLs, by name."""
    return [ServingInstance(name, url, purchase) for name, url in urls.items()]


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
        self.net.up.discard(f"http://{name}")
        del self.there[name]

    async def close(self):
        self.closed += 1


class Wants:
    """A policy that wants what a test says, and remembers what it sees."""

    name = "wants"

    def __init__(self):
        self.counts = {}
        self.warm = 0
        self.seen = []
        self.resumed = []

    def observe(self, seen):
        self.seen.append(seen)
        groups = tuple(InstanceCount(bought.kind, bought.market, count) for bought, count in self.counts.items())
        return ProvisioningPlan(groups, "the test says so", warm=self.warm)

    def resume(self, fleet):
        self.resumed.append(fleet)

    @property
    def rates(self):
        return [(seen.elapsed_s, seen.rate) for seen in self.seen]

    @property
    def interruptions(self):
        return [interruption for seen in self.seen for interruption in seen.interruptions]

    @property
    def resumed_counts(self):
        return [paid_for(fleet) for fleet in self.resumed]


class FailingCoordination(InterceptedCoordination):
    """A coordination that a test takes away, or has hang while `answers` is not set."""

    gone = False

    def __init__(self, store):
        super().__init__(store.coordination(), self._check)
        self.answers = threading.Event()
        self.answers.set()

    def _check(self, _operation):
        assert self.answers.wait(60)
        if self.gone:
            raise StoreUnavailableError("the store is gone")


class DriverWorld:
    """Loops of drivers by name, `running`, over one store, one net of instances and one clock."""

    def __init__(self, begin=1000.0):
        self.clock, self.net = Clock(begin), Net()
        self.store = MemoryStore(self.clock)
        self.coordination = FailingCoordination(self.store)
        self.running = {}

    async def step(self, seconds=1, each=None, by=1):
        for _ in range(seconds // by):
            self.clock.now += by
            for driver in list(self.running.values()):
                await self.tick(driver)
            if each is not None:
                await each()
            assert sum(driver.leads for driver in self.running.values()) <= 1

    async def tick(self, driver):
        await driver.tick()
        for duty in driver.duties.values():
            await duty

    @property
    def leader(self):
        return next((name for name, driver in self.running.items() if driver.leads), None)

    def kill(self, name):
        return self.running.pop(name)


class Drivers(DriverWorld):
    def __init__(self, known=None, bought=(GPU,), ends=()):
        super().__init__()
        self.scenario, self.ends = known or scenario(), ends
        self.provisioners = {
            each: FakeProvisioner(
                self.net, self.clock, self.scenario.kind(each.kind).boot_s, str(each).replace("/", "-")
            )
            for each in bought
        }
        self.policies = {}

    @property
    def provisioner(self):
        return next(iter(self.provisioners.values()))

    def add(self, name="a", policy=None, ping=None, admits=lambda _bought, _url: True, **more):
        policy = self.policies[name] = policy or Wants()
        pool = Pool(Router(self.scenario, policy, **more), self.net.connect, self.clock)
        self.running[name] = Controller(
            pool,
            PoolRegistry(self.coordination, "p", name, self.clock),
            self.provisioners,
            self.net.connect,
            admits=admits,
            ends=self.ends,
            timing=Timing(self.clock, asyncio.sleep),
            ping=ping,
        )
        self.running[name].pool = pool
        return self.running[name]

    def add_wanting(self, name="a", counts=(), **more):
        controller = self.add(name, **more)
        self.policies[name].counts = dict(counts)
        return controller, self.policies[name]

    def kill(self, name):
        del self.policies[name]
        return super().kill(name)

    def want(self, count):
        for policy in self.policies.values():
            policy.counts = {GPU: count}

    def there(self):
        return {bought: len(made.there) for bought, made in self.provisioners.items() if made.there}
