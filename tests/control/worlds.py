"""Scenarios and loads for the tests of policies: one instance costs a dollar a second, so that dollars are units."""

from dataclasses import dataclass

from hypothesis import strategies as st

from serfer.control.policy import Observation, fleet_of
from serfer.control.scenario import CpuCredits, InstanceType, LambdaTarget, Scenario
from serfer_bench.study.policies.clairvoyant import optimum_usd
from tests.support.scenarios import scenario_text

QPS = 10.0
CREDITS = CpuCredits(2, 24.0, 60.0, 576.0)
"""AWS's of a t2.medium."""
LONG = 240.0  # seconds of a boot

# Scenarios as their files are written: large networks, small ones, and two types of instances to choose from.
LARGE = scenario_text(
    1000, (1.2e-4, 350, 1500, 1000, 2.0, 600), ("g5.xlarge", 1.006, 0.40, 240, 60, 60, [[1, 25], [4, 62], [16, 240]])
)
SMALL = scenario_text(
    200, (1.5e-5, 60, 600, 1000, 0.5, 600), ("g6.xlarge", 0.8048, 0.30, 180, 60, 200, [[1, 6], [4, 20], [16, 72]])
)
TWO_TYPES = scenario_text(
    300,
    (4e-5, 120, 800, 1000, 1.0, 600),
    ("g4dn.xlarge", 0.526, 0.20, 120, 60, 60, [[1, 18], [8, 120]]),
    ("g5.xlarge", 1.006, 0.40, 180, 60, 200, [[1, 7], [8, 38], [32, 144]]),
)


def scenario(price_ratio=13.0, *, boot_s=LONG, qps=QPS, slo_ms=200.0, concurrency=1000, usd_per_hour=3600.0):
    """Return one where Lambda costs `price_ratio` times what a fully loaded instance costs."""
    return Scenario(
        slo_ms,
        LambdaTarget(price_ratio * usd_per_hour / 3600.0 / qps, 60.0, 600.0, concurrency, 1.0, 600.0),
        (InstanceType("gpu", usd_per_hour, 0.0, boot_s, 0.0, qps, ((1, 10.0), (8, 40.0), (32, 120.0))),),
    )


def seen(elapsed_s, rate, now_s=0.0):
    return Observation(now_s, elapsed_s, rate)


def best(world, load):
    return optimum_usd(world, *zip(*load, strict=True))


def fleet(serving, kind=None):
    return fleet_of(kind or scenario().instance, 0, serving)


def rows(most_rate, *, most_rows=10, most_s=900):
    """Draw piecewise constant loads: whole seconds and rates, often nothing and often as much as can be."""
    rates = st.one_of(st.just(0.0), st.just(float(most_rate)), st.floats(0.0, most_rate))
    return st.lists(st.tuples(st.integers(1, most_s), rates), min_size=1, max_size=most_rows)


def watching(world, policy, step_s, count, until="started"):
    """Return a load that is full until an instance is started, or "serving", and then nothing until it has stopped."""
    load, on, boot = [], False, 0.0
    for _ in range(count):
        load.append((step_s, QPS if not on or (until == "serving" and boot > 0) else 0.0))
        before, on = on, policy.observe(seen(*load[-1])).total > 0
        boot = max(boot - step_s, 0.0) if before else world.instance.boot_s * on
    return load


def steps(load, step_s=1.0):
    """Cut rows of (seconds, rate) into steps of `step_s`, the last one of a row being what is left of it."""
    for seconds, rate in load:
        count, rest = divmod(seconds, step_s)
        yield from [(step_s, rate)] * int(count)
        if rest:
            yield rest, rate


@dataclass
class Paid:
    """What a run of a policy cost; `on` is how many instances there were after each step."""

    usd: float
    starts: int
    on: list[int]


def at_once(world, policy, load, step_s=1.0):
    """Run a policy whose instances serve at once: a start costs the price of a boot.

    An instance that is on serves its level of the load. What is decided after a step holds from the next one on.
    """
    return _run(world, policy, load, step_s, boots=False, prepaid=True)


def with_boots(world, policy, load, step_s=1.0):
    """Run a policy whose instances boot: they cost from the start on, and Lambda serves in their stead meanwhile."""
    return _run(world, policy, load, step_s, boots=True, prepaid=False)


def up_to_its_price(world, policy, load, step_s=1.0):
    """Run a policy whose instances boot, and count as its cost of a boot what the guarantee does (budget.py).

    The boot is paid for at the start, what is left of it comes back at a stop, and Lambda counts meanwhile, but in a
    second no more than the instance.
    """
    return _run(world, policy, load, step_s, boots=True, prepaid=True)


def _run(world, policy, load, step_s, *, boots, prepaid):
    kind, usd_per_query = world.instance, world.serverless.usd_per_query
    assert kind.usd_per_s == 1.0
    usd, starts, on, counts = 0.0, 0, [], []  # `on` is for how many seconds each instance boots yet
    for seconds, rate in steps(load, step_s):
        for level, left in enumerate(on):
            units = min(max(rate - level * kind.qps, 0.0), kind.qps) * usd_per_query
            booting = min(left, seconds)
            on[level] -= booting
            usd += seconds + booting * (min(units, 1.0) - 1.0 if prepaid else units)
        usd += max(rate - len(on) * kind.qps, 0.0) * usd_per_query * seconds
        count = policy.observe(seen(seconds, rate)).total
        while len(on) > count:
            usd -= on.pop() * prepaid
        while len(on) < count:
            on.append(kind.boot_s * boots)
            usd += kind.start_usd * prepaid
            starts += 1
        counts.append(count)
    return Paid(usd, starts, counts)
