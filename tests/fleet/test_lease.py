"""One leader among drivers, by the lease in a record that only compare-and-set changes."""

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from serfer.core.errors import StoreUnavailableError
from serfer.fleet.lease import LEASE_S, TAKEOVER_S, Election, Lease
from serfer.fleet.registry import DriverLoad, PoolRegistry
from serfer.storage.coordination import InterceptedCoordination
from serfer.storage.memory import MemoryStore
from tests.support.hand_clock import Clock

TICK_S = 1.0


def candidates(coordination, key, clock, names="abc"):
    return {name: PoolRegistry(coordination, key, name, clock) for name in names}


def tick(registry):
    registry.exchange(DriverLoad(registry.driver))


def walk(drivers, clock, seconds):
    """Let every driver tick each second; yield the time and who leads."""
    for _ in range(int(seconds / TICK_S)):
        for driver in drivers.values():
            tick(driver)
        yield clock.now, [name for name, driver in drivers.items() if driver.leads]
        clock.now += TICK_S


def test_one_candidate_becomes_and_remains_leader(coordination, key):
    clock = Clock()
    seen = [leading for _, leading in walk(candidates(coordination, key, clock), clock, 40)]
    assert seen == [["a"]] * 40


@pytest.mark.killed
@pytest.mark.parametrize("age", range(4))
def test_a_leader_that_dies_is_followed_within_eight_seconds(coordination, key, age):
    clock = Clock()
    drivers = candidates(coordination, key, clock)
    *_, (died, (leader,)) = walk(drivers, clock, 3 + age)
    del drivers[leader]
    followed = next(now for now, leading in walk(drivers, clock, 20) if leading)
    assert LEASE_S < followed - died <= 8


def test_a_leader_that_leaves_is_followed_at_the_next_tick(coordination, key):
    clock = Clock()
    drivers = candidates(coordination, key, clock)
    *_, (_, (leader,)) = walk(drivers, clock, 5)
    left = drivers.pop(leader)
    assert not left.leave()
    assert not left.leads
    _, leading = next(walk(drivers, clock, 1))
    assert len(leading) == 1


def test_of_candidates_that_tick_at_the_same_moment_one_leads(coordination, key):
    barrier, number = threading.Barrier(8), itertools.count()

    def lead(_):
        driver = PoolRegistry(coordination, key, f"{next(number)}")
        barrier.wait()
        tick(driver)
        return driver.leads

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(lead, range(8))) == 1


@pytest.mark.parametrize("seed", range(5))
def test_two_candidates_never_lead_at_once_under_any_interleaving(seed):
    """Clocks that have nothing in common, lost responses, and silences, reads and writes of any length."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    clocks = [Clock(chance.uniform(0, 1e6)) for _ in range(3)]
    elections = [Election(name, clock) for name, clock in zip("abc", clocks, strict=True)]
    record, version, led = None, 0, set()
    pending = {}
    for _ in range(20_000):
        passed = chance.choice([0.0, 0.1, 0.5, 1.0, 3.0])
        for clock in clocks:
            clock.now += passed
        number = chance.randrange(3)
        election = elections[number]
        if number in pending:
            proposal, begun, read = pending.pop(number)
            if read == version:
                record, version = proposal, version + 1
                if chance.random() < 0.9:
                    election.written(proposal, begun)
        elif chance.random() < 0.7:
            pending[number] = election.proposal(record), clocks[number].now, version
        leading = [each.candidate for each in elections if each.leads]
        assert len(leading) <= 1
        led.update(leading)
    assert led == set("abc")


def test_a_lease_whose_record_was_lost_is_not_taken_over_at_once():
    clock = Clock()
    other = Election("b", clock)
    assert other.proposal(Lease("a", 7)) == Lease("a", 7)
    assert other.proposal(None) == Lease("a", 7)
    clock.now += TAKEOVER_S
    assert other.proposal(None) == Lease("b", 8)


def test_a_renewal_of_a_lost_record_shows_to_the_others():
    clock = Clock()
    holder, other = Election("a", clock), Election("b", clock)
    record = holder.proposal(None)
    record = holder.proposal(record)  # written, but its response was lost
    assert other.proposal(record) == record
    clock.now += TAKEOVER_S
    restored = holder.proposal(None)
    holder.written(restored, clock.now)
    assert other.proposal(restored) == restored


def test_a_renewal_whose_response_was_lost_is_repeated(key):
    lost = [True]
    inner = MemoryStore().coordination()

    class Lossy(InterceptedCoordination):
        def compare_and_set(self, *arguments):
            version = super().compare_and_set(*arguments)
            if lost:
                lost.clear()
                raise StoreUnavailableError("gone")
            return version

    driver = PoolRegistry(Lossy(inner, lambda _: None), key, "a", Clock())
    with pytest.raises(StoreUnavailableError):
        tick(driver)
    assert not driver.leads
    tick(driver)
    assert driver.leads


def test_without_a_store_a_leader_leads_as_long_as_its_lease(key):
    gone = []

    def fail(_):
        if gone:
            raise StoreUnavailableError("gone")

    clock = Clock()
    driver = PoolRegistry(InterceptedCoordination(MemoryStore(clock).coordination(), fail), key, "a", clock)
    tick(driver)
    assert driver.leads
    gone.append(True)
    clock.now += LEASE_S - 0.5
    with pytest.raises(StoreUnavailableError):
        tick(driver)
    assert driver.leads
    clock.now += 0.5
    assert not driver.leads
