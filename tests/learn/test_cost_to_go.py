"""Savings are differences of what schedules cost, and what learning begins with is the plain rule."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies.work_function import WorkFunction
from serfer.control.values.load_history import SLOT_S
from serfer.learn.cost_to_go import AHEAD, plain_decisions, savings


def cost(units, keep, start, boot_slots, slot, state, waits=0, stays=0):
    """Return what decisions cost from a slot on, one slot after the other; `state` is off, on, or slots to boot + 1.

    For `waits` slots nothing is started, for `stays` nothing stopped.
    """
    paid = 0.0
    for at in range(slot, len(units)):
        if state == 1 and at >= slot + stays and not keep[at]:
            state = 0
        if state == 0 and at >= slot + waits and start[at]:
            state = boot_slots + 1
        paid += SLOT_S * ((state > 0) + (units[at] if state != 1 else 0.0))
        state = max(state - 1, 1) if state else 0
    return paid


@st.composite
def worlds(draw):
    slots = draw(st.integers(1, 40))
    units = draw(st.lists(st.sampled_from([0.0, 0.4, 1.0, 3.0, 13.0]), min_size=slots, max_size=slots))
    keep, start = (draw(st.lists(st.booleans(), min_size=slots, max_size=slots)) for _ in range(2))
    return np.array(units), np.array(keep), np.array(start), draw(st.integers(1, 5))


@settings(derandomize=True, max_examples=150, deadline=None)
@given(world=worlds())
def test_savings_are_differences_of_costs(world):
    units, keep, start, boot = world
    by_keeping, by_starting = savings(units, keep, start, boot)
    for slot in range(len(units)):
        stopped = cost(units, keep, start, boot, slot, 0, waits=1)
        kept = cost(units, keep, start, boot, slot, 1, stays=AHEAD)
        assert abs(by_keeping[slot] - (stopped - kept)) < 1e-6
        waited = cost(units, keep, start, boot, slot, 0, waits=AHEAD)
        started = cost(units, keep, start, boot, slot, boot + 1)
        assert abs(by_starting[slot] - (waited - started)) < 1e-6


@settings(derandomize=True, max_examples=100, deadline=None)
@given(world=worlds())
def test_learning_begins_with_the_work_function_algorithm(world):
    units, _, _, boot = world
    algorithm = WorkFunction(boot * SLOT_S)
    algorithm.grow(1)
    on = []
    for dearer in SLOT_S * (1.0 - units):
        on.append(algorithm.on[0])
        algorithm.advance([float(dearer)])
    assert plain_decisions(units, boot).tolist() == on
