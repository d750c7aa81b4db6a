"""vCPUs of a memory size: one rule for every prediction, and for the threads that workers start."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cost_model import TASK_SECONDS, Platform, StageLoad, task_seconds
from serfer.core.costs.operator_costs import Kind, Work, shipped_profiles
from serfer.core.costs.vcpus import compute_seconds, threads, vcpus
from serfer.drivers.batching import plan_batching
from tests.core.plans import small_plan

FACTS = shipped_aws()
PER_VCPU = FACTS.functions.memory_per_vcpu
MEMORY = st.integers(FACTS.functions.memory_min, FACTS.functions.memory_max)
SECONDS = st.floats(1e-4, 10)


@pytest.mark.parametrize(
    ("memory", "count"), [(128, 1), (1769, 1), (1770, 2), (3000, 2), (3538, 2), (5307, 3), (7076, 4), (10240, 6)]
)
def test_a_worker_has_a_thread_for_every_started_vcpu(memory, count):
    assert threads(memory, PER_VCPU) == count


@pytest.mark.exact
@given(MEMORY, SECONDS, SECONDS)
def test_predicted_seconds_equal_those_of_the_worker_threads(memory, serial, parallel):
    """By hand: one thread computes at a share of a processor; all together get no more than memory / 1769."""
    granted = memory / PER_VCPU
    expected = serial / min(1, granted) + parallel / min(threads(memory, PER_VCPU), granted)
    assert float(compute_seconds(serial, parallel, vcpus(memory, PER_VCPU))) == pytest.approx(expected)
    nothing = np.zeros(1)
    load = StageLoad(np.array([serial]), np.array([parallel]), *[nothing] * 5)
    planned = float(task_seconds(load, memory, Platform.over(FACTS, "redis"))[0])
    assert planned == pytest.approx(TASK_SECONDS + expected)
    first, last = small_plan().stages
    tile = replace(last.tiles[0], serial_ms=1000 * serial, parallel_ms=1000 * parallel)
    heavy = replace(last.functions[0].weights, bytes=1 << 20)
    functions = (replace(last.functions[0], weights=heavy),)
    last = replace(last, tiles=(tile,), memory_mb=memory, functions=functions)
    batching = plan_batching(replace(small_plan(), stages=(first, last)), PER_VCPU, concurrency=1)
    assert batching.stages[1].image_s == pytest.approx(expected)


@given(MEMORY, MEMORY, SECONDS, SECONDS)
def test_more_memory_never_takes_longer(one, other, serial, parallel):
    times = [float(compute_seconds(serial, parallel, vcpus(memory, PER_VCPU))) for memory in sorted((one, other))]
    assert times[0] >= times[1] * (1 - 1e-12)


def test_an_operators_prediction_follows_it():
    profiles, work = shipped_profiles(), Work(Kind.CONVOLUTION, 10**8, 10**5, 10**5, 10**4, 64, 64, rows=56, cols=56)
    serial, parallel = profiles.parts(work)
    assert profiles.seconds(work, 1.7) == pytest.approx(serial + parallel / 1.7)
    assert profiles.seconds(work, 0.5) == pytest.approx(2 * (serial + parallel))
    assert math.isclose(profiles.seconds(work), serial + parallel)
