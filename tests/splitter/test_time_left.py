"""A split says with each step how many seconds are left."""

import pytest
from torch import nn

from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.time_left import TimeLeft
from tests.splitter.models import Net


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def steps():
    return []


def left_in(steps):
    return [int(step.partition("(about ")[2].partition(" s left)")[0]) for step in steps]


def test_time_is_known_from_the_first_step_and_runs_down(steps):
    clock = Clock()
    left = TimeLeft(steps.append, nn.Sequential(*(nn.ReLU() for _ in range(300))), clock)
    for _ in range(4):
        left("a step")
        clock.now += 1.0
    assert left_in(steps) == sorted(left_in(steps), reverse=True)
    assert left_in(steps)[0] > left_in(steps)[-1] > 0


def test_a_machine_that_is_slower_than_expected_has_more_left(steps):
    for taken in (1.0, 60.0):
        clock = Clock()
        left = TimeLeft(steps.append, "alexnet", clock)
        clock.now += taken
        left.begin()
        left("choosing")
    fast, slow = left_in(steps)
    assert slow > 10 * fast


def test_the_network_that_was_read_says_what_follows(steps):
    net = Net(3, 64, 64)
    graph = from_onnx(net.model(net.linear(net.flat("x"), 3 * 64 * 64, 5)), 64, 64)
    left = TimeLeft(steps.append, "net.onnx", Clock())
    left.expect(graph)
    left.begin()
    left("choosing")
    for _ in range(9):
        left.begin()
    left("checking again")
    assert left_in(steps) == [1, 1]
