"""The probe of `serfer study measure-aws`: how often it invokes, what that costs, what it keeps at its end."""

import asyncio
import socket
from statistics import median
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import TaskFailedError
from serfer.core.keys import StoreCounts
from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import Report
from serfer.sam.smoke import Budget
from serfer.storage.memory import MemoryStore
from serfer_bench.study.aws.probe import Extent, Probe, steps
from tests.core.plans import small_plan

PLAN = small_plan()
MEMORY_MB = PLAN.stages[0].memory_mb
EXTENT = Extent(
    groups=(2, 4), rounds=3, small=5, large=2, memories=(442, 885), packages=(1000, 0), repeats=2, restored=2
)
REPORT = "REPORT RequestId: 1\tDuration: 90.10 ms\tBilled Duration: 700 ms\t"
CRASH = Failure(FailureKind.FAILED_IN_CODE, "Runtime.ExitError", "exit status 1")
THROTTLED = Failure(FailureKind.THROTTLED, "TooManyRequestsException", "Rate Exceeded.")


class Function:
    """A function whose environments start when it was changed; `fails` gives an invocation's failure by its number."""

    def __init__(self, most=1000, fails=lambda _number: None, line=REPORT):
        self.name, self.memory, self.changes, self.sent = "probed", MEMORY_MB, [], 0
        self._most, self._fails, self._line, self._warm = most, fails, line, 0

    def environments(self):
        return self._most

    def set_memory(self, memory_mb):
        self.memory, self._warm = memory_mb, 0
        self.changes.append(memory_mb)

    renew = set_memory

    def pad(self, size):
        self.changes.append(f"{size} bytes")
        self._warm = 0

    def publish_snapshot(self):
        self._warm = 0
        return "probed:1"

    async def invoke(self, name, task, timeout_s, on_log):
        del name, task, timeout_s
        number, self.sent = self.sent, self.sent + 1
        cold = self._warm <= 0
        await asyncio.sleep(0)  # those that are sent at once are under way at once
        self._warm = 1
        on_log(self._line)
        failure = self._fails(number)
        return failure or Report("e", 500.0 * cold, 1, 50, 1, 52, 1, 1, StoreCounts(9, 1, 9, 1))


def probed(function, allow=lambda _step: None, spend=lambda *_: None):
    store = Mock(wraps=MemoryStore())
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:  # it takes connections
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        try:
            return asyncio.run(Probe(PLAN, function, store, function, endpoint, allow, spend, EXTENT).run())
        finally:
            assert not any(store.exists([call.args[0] for call in store.put.call_args_list]))


def test_the_largest_group_is_started_in_rounds_each_of_new_environments():
    function = Function()
    found = probed(function)
    assert {group: len(samples) for group, samples in found.groups.items()} == {2: 2, 4: 12}
    assert (len(found.small), len(found.large), len(found.restored)) == (5, 2, 2)
    assert function.sent == sum(step.invocations for step in steps(PLAN, EXTENT))
    assert function.changes == [*[MEMORY_MB] * 4, 442, 885, MEMORY_MB, "1000 bytes", "0 bytes"]
    assert found.missing == []


@pytest.mark.parametrize(("most", "groups"), [(1000, {2: 2, 4: 12}), (3, {2: 6}), (1, {1: 3})])
def test_no_more_are_started_at_once_than_the_account_has(most, groups):
    found = probed(Function(most))
    assert {group: len(samples) for group, samples in found.groups.items()} == groups
    assert len(found.missing) == sum(group > most for group in EXTENT.groups)


@given(
    most=st.integers(1, 5000), groups=st.lists(st.integers(1, 100), min_size=1, max_size=4), rounds=st.integers(1, 9)
)
def test_every_account_and_every_order_has_at_least_one_group(most, groups, rounds):
    sent = [*Extent(groups, rounds=rounds).at_once(most)]
    assert sent[-rounds:] == [sent[-1]] * rounds
    assert all(1 <= group <= most for group in sent)
    assert {group for group in groups if group <= most} <= {*sent}


@given(most=st.integers(1, 100))
def test_the_largest_group_is_as_asked_after_those_of_the_kit_and_warm_invocations_are_as_many_as_starts(most):
    extent = Extent.up_to(most)
    assert extent.groups == (*(group for group in (4, 16, 64) if group < most), most)
    assert extent.small + extent.large == max(50, sum(extent.at_once()))
    assert Extent.up_to(64) == Extent()


@given(allowed=st.integers(0, 38))
def test_what_was_measured_before_the_money_ran_out_is_kept(allowed):
    """Whichever invocation is the last: each costs a dollar, and so many are there."""
    budget, function = Budget(allowed + 0.5), Function()

    def allow(step):
        budget.allow(step.name, step.invocations)

    found = probed(function, allow, lambda *_: budget.spend(1))
    kept = [*found.cold, *found.warm, *found.restored]
    kept += [sample for samples in (*found.memories.values(), *found.packages.values()) for sample in samples]
    lost = 2 + len(EXTENT.memories)  # to warm up
    if not found.memories:  # of some, no vCPU can be told
        lost += len(EXTENT.memories) * EXTENT.repeats
    assert {*found.memories} in (set(), {*EXTENT.memories})
    assert budget.spent_usd == function.sent <= allowed
    assert function.sent - lost <= len(kept) <= function.sent
    assert function.memory == MEMORY_MB
    if allowed < sum(step.invocations for step in steps(PLAN, EXTENT)):
        assert found.missing[-1].endswith("allow more; nor is what comes after it")
    else:
        assert found.missing == []


def test_a_step_that_costs_more_stops_and_starts_that_lambda_has_no_room_for_are_missing():
    budget = Budget(17.05)

    def allow(step):
        budget.allow(step.name, step.invocations * 0.1)

    function = Function()
    found = probed(function, allow, lambda *_: budget.spend(1))
    assert (budget.spent_usd, function.sent) == (17, 17)
    assert "the rest of warm invocations" in found.missing[-1]
    assert len(found.small) == 2
    found = probed(Function(fails={1: THROTTLED}.get))
    assert found.missing == ["1 of 2 starts at once: Lambda had no room for them"]
    assert len(found.groups[2]) == 1


@pytest.mark.parametrize(("line", "billed"), [(REPORT, 700), ("no report", None)])
def test_an_invocation_that_fails_is_paid_for_and_one_that_is_throttled_is_not(line, billed):
    spent = []
    fails = {1: THROTTLED, 2: CRASH}
    with pytest.raises(TaskFailedError, match="exit status 1"):
        probed(Function(fails=fails.get, line=line), spend=lambda *paid: spent.append(paid))
    assert [memory for memory, _ in spent] == [MEMORY_MB] * 5  # of two and four at once
    assert billed is None or {ms for _, ms in spent} == {billed}
    assert median(ms for _, ms in spent) > 0
