import time

import pytest


class Clock:
    """The time of day, which a test may move on."""

    ahead = 0.0

    def __call__(self):
        return time.time() + self.ahead


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def expire(clock):
    def wait(_key):
        clock.ahead += 0.05

    return wait
