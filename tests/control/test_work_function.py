"""The gap is the difference of the two work functions, and levels switch at its bounds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies.ski_rental import WorkFunction

COSTS = st.one_of(st.just(0), st.integers(0, 400))  # exact sums: two sums that are rounded may differ at an end
STEPS = st.lists(st.tuples(COSTS, COSTS), max_size=60)  # what a level costs in a step: on, off


class ByDefinition:
    """Two work functions, a dynamic programme over both states, and the rule that compares them."""

    def __init__(self, start):
        self.start, self.ends_off, self.ends_on, self.on = start, 0.0, start, False

    def step(self, on, off):
        self.ends_off, self.ends_on = self.ends_off + off, self.ends_on + on
        if self.ends_on - self.ends_off >= self.start:
            self.on = False
        elif self.ends_on <= self.ends_off:
            self.on = True
        self.ends_off, self.ends_on = min(self.ends_off, self.ends_on), min(self.ends_on, self.ends_off + self.start)


@settings(derandomize=True)
@given(st.sampled_from([0.0, 1.0, 60.0, 240.0]), STEPS)
def test_the_gap_is_the_difference_of_both_states_work_functions(start, costs):
    work_function, expected = WorkFunction(start), ByDefinition(start)
    work_function.grow(1)
    for on, off in costs:
        before = expected.ends_off
        [walked] = work_function.advance([on - off])
        expected.step(on, off)
        assert work_function.gap == [expected.ends_on - expected.ends_off]
        assert work_function.on == [expected.on]
        assert before + off + min(walked, 0.0) == expected.ends_off


@settings(derandomize=True)
@given(st.lists(st.lists(st.floats(-100.0, 100.0), min_size=3, max_size=3), max_size=30))
def test_levels_do_not_depend_on_each_other(steps):
    together, alone = WorkFunction(60.0), [WorkFunction(60.0) for _ in range(3)]
    for one in (together, *alone):
        one.grow(3 if one is together else 1)
    for dearer in steps:
        together.advance(dearer)
        for one, value in zip(alone, dearer, strict=True):
            one.advance([value])
        assert together.gap == [one.gap[0] for one in alone]
        assert together.on == [one.on[0] for one in alone]


def test_a_level_switches_on_at_0_and_off_at_the_starts_price():
    work_function = WorkFunction(60.0)
    work_function.grow(1)
    on = []
    for dearer in (-59.0, -1.0, 59.0, 1.0, -59.0, 59.0, -60.0, -5.0, 60.0):
        work_function.advance([dearer])
        on += work_function.on
    assert on == [False, True, True, False, False, False, True, True, False]


def test_new_levels_are_off_and_resumed_ones_on():
    work_function = WorkFunction(60.0)
    work_function.resume(2)
    work_function.grow(3)
    work_function.grow(1)  # never fewer
    assert work_function.gap == [0.0, 0.0, 60.0]
    assert work_function.on == [True, True, False]
    with pytest.raises(ValueError, match="shorter"):
        work_function.advance([1.0])
