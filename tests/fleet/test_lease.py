"""One leader among drivers, over every store that several of them can share."""

import itertools
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from serfer.core.errors import StoreUnavailableError
from serfer.fleet.lease import Lease
from serfer.local.servers.redis import RedisServer
from storage import open_store
from storage.memory import MemoryStore

SLOT_S = 4.0
STEP_S = 0.25


class Clock:
    def __init__(self, now=1_000_000.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture(scope="module")
def redis():
    with RedisServer() as server:
        yield server.url


@pytest.fixture(params=["memory", "file", "redis"])
def store(request, tmp_path):
    urls = {"memory": "memory://", "file": f"file://{tmp_path / 'store'}"}
    url = urls.get(request.param) or request.getfixturevalue("redis")
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def prefix():
    return f"t:{secrets.token_hex(8)}"


def candidates(store, prefix, clock, names="abc"):
    return {name: Lease(store, prefix, name, slot_s=SLOT_S, clock=clock) for name in names}


def walk(leases, clock, seconds):
    """Let every candidate claim every STEP_S; yield the time and who leads."""
    for _ in range(int(seconds / STEP_S)):
        leading = [name for name, lease in leases.items() if lease.claim()]
        yield clock.now, leading
        clock.now += STEP_S


def test_one_candidate_leads_and_goes_on_leading(store, prefix):
    clock = Clock()
    leases = candidates(store, prefix, clock)
    seen = list(walk(leases, clock, 10 * SLOT_S))
    assert all(len(leading) <= 1 for _, leading in seen)
    leaders = [leading[0] for _, leading in seen if leading]
    assert len(set(leaders)) == 1
    assert len(leaders) >= len(seen) - SLOT_S / STEP_S  # without a gap once it has begun


@pytest.mark.parametrize("killed_at", [step * STEP_S for step in range(16)])
def test_a_leader_that_dies_is_followed_within_two_slots(store, prefix, killed_at):
    clock = Clock()
    leases = candidates(store, prefix, clock)
    *_, (_, (leader,)) = walk(leases, clock, 3 * SLOT_S + killed_at)
    died = clock.now
    del leases[leader]
    followed = next(now for now, leading in walk(leases, clock, 4 * SLOT_S) if leading)
    assert followed - died <= 2 * SLOT_S


def test_a_leader_that_lets_go_is_followed_with_the_next_slot(store, prefix):
    clock = Clock()
    leases = candidates(store, prefix, clock)
    *_, (_, (leader,)) = walk(leases, clock, 2.75 * SLOT_S)
    leases.pop(leader).release()
    went = clock.now
    followed = next(now for now, leading in walk(leases, clock, 2 * SLOT_S) if leading)
    assert followed - went <= SLOT_S


def test_of_candidates_that_claim_at_the_same_moment_one_leads(store, prefix):
    clock = Clock(1_000_000.0 + SLOT_S / 2)
    barrier, number = threading.Barrier(8), itertools.count()

    def claim(_):
        lease = Lease(store, prefix, f"{next(number):032}", slot_s=SLOT_S, clock=clock)
        barrier.wait()
        return lease.claim()

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(claim, range(8))) == 1


@pytest.mark.parametrize("skew", [-0.9, 0.9])
def test_clocks_that_differ_by_less_than_the_grace_never_have_two_leaders(prefix, skew):
    store, clock = MemoryStore(), Clock()
    other = Clock(clock.now + skew)
    first = Lease(store, prefix, "a", slot_s=SLOT_S, clock=clock)
    second = Lease(store, prefix, "b", slot_s=SLOT_S, clock=other)
    led = set()
    for step in range(400):
        silent = step // 60 % 3  # now one of them is silent for a while, now the other, now none
        leading = []
        for number, lease in enumerate((first, second)):
            if number != silent:
                lease.claim()
            if lease.leads:
                leading.append(lease.candidate)
        assert len(leading) <= 1
        led.update(leading)
        clock.now += STEP_S
        other.now += STEP_S
    assert led == {"a", "b"}


def test_a_claim_whose_answer_was_lost_counts(prefix):
    class Lossy(MemoryStore):
        lost = 1

        def put_new(self, key, value, ttl):
            kept = super().put_new(key, value, ttl)
            if self.lost:
                self.lost -= 1
                raise StoreUnavailableError("gone")
            return kept

    clock = Clock(1_000_000.0 + SLOT_S / 2)
    lease = Lease(Lossy(), prefix, "a", slot_s=SLOT_S, clock=clock)
    with pytest.raises(StoreUnavailableError):
        lease.claim()
    assert not lease.leads
    assert lease.claim()


def test_without_a_store_a_leader_leads_as_long_as_it_knew(prefix):
    class Failing(MemoryStore):
        gone = False

        def put_new(self, key, value, ttl):
            if self.gone:
                raise StoreUnavailableError("gone")
            return super().put_new(key, value, ttl)

    store, clock = Failing(), Clock(1_000_000.0 + SLOT_S / 4)
    lease = Lease(store, prefix, "a", slot_s=SLOT_S, clock=clock)
    assert lease.claim()
    store.gone = True
    clock.now += SLOT_S / 2
    with pytest.raises(StoreUnavailableError):
        lease.claim()
    assert lease.leads
    clock.now += SLOT_S / 2
    assert not lease.leads


def test_slots_are_forgotten_by_the_store(prefix):
    kept = Clock()
    store, clock = MemoryStore(kept), Clock()
    lease = Lease(store, prefix, "a", slot_s=SLOT_S, clock=clock)
    for _ in range(40):
        lease.claim()
        clock.now += 1
        kept.now += 1
    store.put("other", b"", 60)  # sweeps
    assert len(store._values) <= 5
