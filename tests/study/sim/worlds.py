"""Scenarios and loads for the simulator's tests."""

from dataclasses import replace

import numpy as np

from serfer.control.policy import ProvisioningPlan, on_demand
from serfer.control.scenario import InstanceType, LambdaTarget, Scenario
from serfer.cost.loads.trace import Trace
from serfer_bench.study.sim.calibration import FORMAT, Calibration
from tests.control.worlds import TWO_TYPES

# Two types of instances, the second of which has no spot price.
TOML = TWO_TYPES.replace("spot_usd_per_hour = 0.4\n", "spot_usd_per_hour = 0.0\n")


def scenario(*, boot_s=120.0, least_s=60.0, concurrency=1000, keep_alive_s=600.0, slo_ms=300.0):
    return Scenario(
        slo_ms,
        LambdaTarget(4e-5, 120.0, 800.0, concurrency, 1.0, keep_alive_s),
        (InstanceType("gpu", 0.526, 0.2, boot_s, least_s, 60.0, ((1, 14.0), (8, 70.0))),),
    )


def trace(durations, rates):
    return Trace("a trace", np.array(durations, dtype=float), np.array(rates, dtype=float))


def calibration(tiles=(2, 1), rows=50, gangs=()):
    """Return one whose tasks take 10 to 59 ms, the driver 1, and cold starts add 500."""
    tasks = sum(tiles)
    return Calibration(
        format=FORMAT,
        source="measured",
        tag="M",
        date="2026-11-22",
        machine="a test",
        model="small",
        plan="0" * 64,
        memory_mb=(1024,) * len(tiles),
        functions=tuple((0,) * count for count in tiles),
        service_ms=tuple((9.0 + row,) * tasks for row in range(rows)),
        overhead_ms=((1.0,) * tasks,) * rows,
        driver_ms=(1.0,) * rows,
        cold_ms=((500.0,),) * len(tiles),
        gangs=gangs,
    )


class Scripted:
    """A policy that wants the given numbers, one a decision, and then the last one for ever; `warm` environments."""

    name = "scripted"

    def __init__(self, wanted, warm=0, batching=None):
        self._wanted = list(wanted)
        self._warm = warm
        self._batching = batching
        self.latencies = []
        self.seen = []
        self.fleets = []
        self.interruptions = []

    def observe(self, seen):
        self.seen.append((seen.elapsed_s, seen.rate))
        self.fleets.append(seen.fleet)
        self.latencies.append(seen.latency)
        self.interruptions += seen.interruptions
        wanted = self._wanted.pop(0) if len(self._wanted) > 1 else self._wanted[0]
        return replace(on_demand(scenario().instance, wanted, "as scripted"), warm=self._warm, batching=self._batching)

    def resume(self, fleet):
        pass


class Bought(Scripted):
    def __init__(self, *wanted):
        super().__init__([0])
        self.wanted = wanted

    def observe(self, seen):
        super().observe(seen)
        return ProvisioningPlan(self.wanted, "bought")
