"""What a pipeline's functions have in use, from what their slots have counted."""

import asyncio
from types import SimpleNamespace

import pytest

from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore
from serfer.pipeline.function_load import FunctionGauge, FunctionLoad


class World:
    def __init__(self, limit, throttled=0):
        self.now = 0.0
        self.slots = PrioritySemaphore(limit, lambda: self.now)
        self.gauge = FunctionGauge(self.slots, SimpleNamespace(throttled=throttled), of_account=True)

    def read(self, now):
        self.now = now
        return self.gauge.read()


def test_the_utilisation_is_the_share_of_the_slots_in_use_lately():
    world = World(4, throttled=7)
    asyncio.run(world.slots.acquire(0, 3))
    assert world.read(0.0) == FunctionLoad(3, 4, 0.0, 7, of_account=True), "but not for long enough to count"
    assert world.read(100.0).utilisation == pytest.approx(0.75)
    world.slots.release(3)
    assert world.read(100.0) == FunctionLoad(0, 4, pytest.approx(0.75), 7, of_account=True)
    assert world.read(200.0).utilisation < 0.001


@pytest.mark.parametrize("every_s", [0.01, 0.5])
def test_slots_that_are_taken_half_of_the_time_count_as_half_however_often_they_are_read(every_s):
    world = World(4)
    for tick in range(2000):
        world.now = tick * 0.01
        if tick % 2:
            world.slots.release(4)
        else:
            asyncio.run(world.slots.acquire(0, 4))
        if tick * 0.01 % every_s < 0.01:
            share = world.gauge.read().utilisation
    assert share == pytest.approx(0.5, rel=0.05)
