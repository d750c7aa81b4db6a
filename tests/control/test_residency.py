"""Memory of networks: never above the bound, never at the cost of a busy one, the least recently used first."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serfer.control.dispatch import Occupant, victims


def occupants_of(*rows):
    return [Occupant(name, size, last_used, busy) for name, size, last_used, busy in rows]


@pytest.mark.parametrize(
    ("size", "bound", "expected"),
    [
        (10, 100, ()),
        (40, 100, ("old",)),
        (70, 100, ("old", "new")),
        (71, 100, None),  # the busy one stays, so nobody goes in vain
    ],
)
def test_the_least_recently_used_go_first_and_busy_ones_stay(size, bound, expected):
    there = occupants_of(("new", 30, 9.0, False), ("busy", 30, 0.0, True), ("old", 30, 1.0, False))
    assert victims(size, there, bound) == expected


def test_a_small_network_stays_where_a_larger_one_makes_room_enough():
    there = occupants_of(("small", 5, 1.0, False), ("large", 60, 2.0, False))
    assert victims(50, there, 70) == ("large",)


ROOMS = st.lists(
    st.builds(Occupant, st.uuids().map(str), st.integers(0, 50), st.floats(0, 100), st.booleans()), max_size=8
)


@given(st.integers(0, 120), ROOMS, st.integers(0, 200))
def test_it_fits_afterwards_no_busy_one_goes_and_no_going_is_needless(size, there, bound):
    by_name = {one.name: one for one in there}
    chosen = victims(size, there, bound)
    if chosen is None:
        assert size + sum(one.size for one in there if one.busy) > bound
        return
    left = [one for one in there if one.name not in chosen]
    taken = size + sum(one.size for one in left)
    assert taken <= bound
    assert not any(by_name[name].busy for name in chosen)
    assert all(taken + by_name[name].size > bound for name in chosen)
    stayed = [one for one in left if not one.busy]
    for name in chosen:  # what was used before and stays could not have made the room in its place
        for one in stayed:
            if one.last_used < by_name[name].last_used:
                assert taken - one.size + by_name[name].size > bound


class Instance(RuleBasedStateMachine):
    """Networks come, are used, rest and go as `victims` decides, in any order."""

    BOUND = 100
    SIZES = (10, 25, 40, 55, 100)

    def __init__(self):
        super().__init__()
        self.there, self.now = {}, 0.0

    @rule(number=st.integers(0, len(SIZES) - 1))
    def need(self, number):
        self.now += 1
        name = str(number)
        if name in self.there:
            self.there[name] = replace(self.there[name], busy=True, last_used=self.now)
            return
        gone = victims(self.SIZES[number], self.there.values(), self.BOUND)
        if gone is None:
            return
        assert not any(self.there[each].busy for each in gone)
        for each in gone:
            del self.there[each]
        self.there[name] = Occupant(name, self.SIZES[number], self.now, busy=True)

    @precondition(lambda self: self.there)
    @rule(pick=st.integers(0, 100))
    def rest(self, pick):
        name = sorted(self.there)[pick % len(self.there)]
        self.there[name] = replace(self.there[name], busy=False)

    @invariant()
    def bounded(self):
        assert sum(one.size for one in self.there.values()) <= self.BOUND


TestInstance = Instance.TestCase
