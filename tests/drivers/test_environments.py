"""What a driver knows of environments: exactly those that its own invocations have used and not lost."""

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serfer.drivers.dispatching.environments import Environments

KEPT_S = 300.0


class Service(RuleBasedStateMachine):
    """A function of which one driver alone uses the environments; any that is idle may take an invocation."""

    def __init__(self):
        super().__init__()
        self.known = Environments(KEPT_S)
        self.now, self.started = 0.0, 0
        self.idle, self.busy, self.promised = [], [], []

    @rule(data=st.data())
    def begin(self, data):
        use = self.known.began(self.now)
        if use in self.promised:
            self.promised.remove(use)
        cold = not self.idle
        self.started += cold
        found = f"e{self.started}" if cold else self.idle.pop(data.draw(st.integers(0, len(self.idle) - 1)))
        self.busy.append((use, found, cold))

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def answer(self, data):
        use, found, cold = self.busy.pop(data.draw(st.integers(0, len(self.busy) - 1)))
        self.known.answered(use, found, self.now, cold=cold)
        self.idle.append(found)

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def kill(self, data):
        use, _, _ = self.busy.pop(data.draw(st.integers(0, len(self.busy) - 1)))
        self.known.failed(use, lost=True)

    @rule()
    def refuse(self):
        use = self.known.began(self.now)
        if use in self.promised:
            self.promised.remove(use)
        self.known.failed(use, lost=False)

    @rule(count=st.integers(1, 3))
    def promise(self, count):
        if count <= self.known.idle(self.now):
            self.promised += self.known.promise(count, self.now)

    @rule()
    def withdraw(self):
        self.known.withdraw(self.promised)
        self.promised = []

    @rule(seconds=st.floats(0, 1))
    def wait(self, seconds):
        self.now += seconds

    @invariant()
    def all_that_is_idle_and_not_promised_is_expected_and_no_more(self):
        assert self.known.idle(self.now) == len(self.idle) - len(self.promised)
        assert self.known.in_use == len(self.busy) + len(self.promised)


TestService = Service.TestCase


@pytest.fixture
def environments():
    return Environments(KEPT_S)


def run(environments, *names, now=0.0, cold=False):
    """Let environments of these names answer at the same time."""
    uses = [(environments.began(now), name) for name in names]
    for use, name in uses:
        environments.answered(use, name, now, cold=cold)


def test_environments_are_forgotten_when_they_have_been_idle_too_long(environments):
    run(environments, "a", "b", now=0.0, cold=True)
    run(environments, "b", now=100.0)
    assert [environments.idle(now) for now in (KEPT_S - 0.1, KEPT_S, KEPT_S + 99, KEPT_S + 100)] == [2, 1, 1, 0]


def test_a_cold_start_forgets_all_that_seemed_idle_when_it_began(environments):
    """They were killed while they did nothing, of which no one is told."""
    run(environments, "a", "b", "c", now=0.0, cold=True)
    first, second = environments.began(1.0), environments.began(1.0)
    environments.answered(first, "d", 2.0, cold=True)
    assert environments.idle(2.0) == 1
    environments.answered(second, "e", 2.0, cold=True)
    assert environments.idle(2.0) == 2


def test_an_invocation_that_waits_for_long_casts_doubt_on_what_was_idle_when_it_began(environments):
    run(environments, "a", "b", "c", cold=True)
    late, other = environments.began(10.0), environments.began(10.0)
    environments.answered(other, "b", 10.1, cold=False)
    assert [environments.trusted(now, 1.0) for now in (11.0, 11.1)] == [2, 1]
    assert environments.idle(11.1) == 2
    environments.answered(late, "c", 11.2, cold=False)
    assert environments.trusted(11.2, 1.0) == 3


def test_environment_that_starts_or_was_anothers_counts_once(environments):
    environments.began(0.0)
    run(environments, "a", now=0.1)
    assert environments.trusted(10.0, 1.0) == 1
    run(environments, "a", cold=True)
    run(environments, "strange")
    assert environments.idle(0.0) == 1
