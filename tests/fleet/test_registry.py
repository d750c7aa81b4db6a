"""What drivers share in their pool's record, what they accept of it, and the one leader by its lease."""

import itertools
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from serfer.control.policy import Interruption
from serfer.control.scenario import Market
from serfer.core.dataclass_codec import unstructure
from serfer.core.errors import StoreUnavailableError
from serfer.fleet import registry as module
from serfer.fleet.lease import LEASE_S, TAKEOVER_S, Election, Lease
from serfer.fleet.registry import (
    MAX_DRIVERS,
    REQUESTS_PER_S,
    DriverLoad,
    FleetMember,
    FleetState,
    PoolRegistry,
    PoolView,
)
from serfer.storage.coordination import InterceptedCoordination
from serfer.storage.memory import MemoryStore
from tests.fleet.fakes import FailingCoordination
from tests.support.hand_clock import Clock

FLEET = FleetState(
    "a",
    (
        FleetMember("i-1", "http://10.0.0.7:8000", "serving", "gpu", Market.SPOT),
        FleetMember("i-2", None, "booting", "a type, with spaces"),
    ),
    2,
    "12 queries/s",
    (Interruption("gpu", 3),),
)


def drivers(coordination, key, names, clock):
    return [PoolRegistry(coordination, key, name, clock) for name in names]


def tick(registry, **load):
    return registry.exchange(DriverLoad(registry.driver, **load))


def test_driver_has_one_entry_that_every_other_sees(coordination, key):
    pool = drivers(coordination, key, "abc", Clock())
    for number, registry in enumerate(pool):
        tick(registry, rate=number + 1, in_flight=number, busy=(f"i-{number}",))
    assert pool[0].publish(FLEET)
    view = tick(pool[1])
    assert {load.driver for load in view.others} == {"a", "c"}
    assert (view.rate, view.in_flight, view.busy) == (4, 2, {"i-0", "i-2"})
    assert view.fleet == FLEET
    one, other = drivers(coordination, f"{key}-other", "ab", Clock())
    for rate in (1.0, 2.0, 3.0):
        tick(one, rate=rate)
    assert [load.rate for load in tick(other).others] == [3.0]


def test_drivers_that_write_at_the_same_time_are_all_kept(coordination, key):
    pool = drivers(coordination, key, "abcd", Clock())
    barrier = threading.Barrier(4)

    def ticks(registry):
        for _ in range(3):
            barrier.wait()
            tick(registry)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ticks, pool))
    assert {load.driver for load in tick(PoolRegistry(coordination, key, "x")).others} == set("abcd")


def test_only_the_leader_publishes(coordination, key):
    leader, other = drivers(coordination, key, "ab", Clock())
    tick(leader)
    tick(other)
    assert not other.publish(FLEET)
    tick(other)
    assert leader.publish(FLEET)  # although its last read is older than the last write
    assert not leader.leave()
    assert not leader.publish(FLEET)


def test_of_drivers_that_leave_which_write_nothing_any_more_one_is_the_last_and_clears_the_record(key):
    clock = Clock()
    store = MemoryStore(clock)
    coordination = store.coordination()
    one, other = drivers(coordination, key, "ab", clock)
    for registry in (one, other):
        tick(registry)
    assert one.publish(FLEET)
    assert not one.leave()
    before = coordination.get(key)
    assert tick(one) == PoolView()  # a thread may begin after the driver has left
    assert not one.publish(FLEET)
    assert coordination.get(key) == before
    assert tick(other) == PoolView((), FLEET)
    assert other.leave()
    clock.now += 2
    store.put("x", b"", 1)
    assert list(store._values) == ["x"]


def test_the_last_driver_is_told_so_where_the_store_goes_away_after_its_record_is_cleared(key):
    inner, requests = MemoryStore().coordination(), []
    (one,) = drivers(inner, key, "a", Clock())
    tick(one)

    def before(request):
        requests.append(request)
        if requests.count("compare_and_set") > 1:
            raise StoreUnavailableError("gone")

    one._coordination = InterceptedCoordination(inner, before)
    assert one.leave()
    assert requests == ["get", "compare_and_set", "compare_and_set"]


def test_a_record_that_others_keep_changing_is_an_error_of_the_one_that_must_write(key, monkeypatch):
    monkeypatch.setattr(module, "_LEAVING_ATTEMPTS", 4)
    clock = Clock()
    inner = MemoryStore(clock).coordination()
    one, other = drivers(inner, key, "ab", clock)
    tick(one)
    one._coordination = InterceptedCoordination(inner, lambda what: what == "get" or tick(other))
    assert tick(one).others
    for write in (lambda: one.publish(FLEET), one.leave):
        with pytest.raises(StoreUnavailableError, match="--store"):
            write()


@pytest.mark.killed
def test_a_driver_that_dies_counts_for_a_few_seconds_only(key):
    clock = Clock()
    one, other = drivers(MemoryStore(clock).coordination(), key, "ab", clock)
    tick(one, rate=5)
    tick(other)
    clock.now += module.TTL_S
    assert tick(other).rate == 5
    clock.now += 1
    assert tick(other).rate == 0
    tick(other)
    assert tick(PoolRegistry(other._coordination, key, "c", clock)).rate == 0
    tick(one, rate=6)
    assert tick(other).rate == 6


def test_more_drivers_than_the_record_holds_lead_to_no_error(key):
    clock = Clock()
    coordination = MemoryStore(clock).coordination()
    for number in range(MAX_DRIVERS + 2):
        tick(PoolRegistry(coordination, key, f"d{number}", clock), rate=1)
    assert tick(PoolRegistry(coordination, key, "x", clock)).rate == MAX_DRIVERS


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_a_driver_sends_the_store_as_many_requests_as_are_priced(key, count):
    clock, requests, seconds = Clock(), [], 20
    coordination = InterceptedCoordination(MemoryStore(clock).coordination(), requests.append)
    pool = drivers(coordination, key, [f"d{number}" for number in range(count)], clock)
    for _ in range(seconds):
        clock.now += 1
        for registry in pool:
            tick(registry)
            if registry.leads:
                assert registry.publish(FLEET)
    published = 1  # of the same state
    assert requests.count("get") == count * seconds * REQUESTS_PER_S
    assert requests.count("compare_and_set") == count * seconds * REQUESTS_PER_S + published
    assert len(requests) == 2 * count * seconds + published


def stored(key, clock, **record):
    coordination = MemoryStore(clock).coordination()
    value = json.dumps({"drivers": [], "lease": None, "fleet": None, **record}).encode()
    coordination.compare_and_set(key, None, value, 60)
    return PoolRegistry(coordination, key, "a", clock)


@pytest.mark.parametrize(
    "change",
    [
        {"rate": -1},
        {"rate": float("nan")},
        {"rate": 1e300},
        {"in_flight": True},
        {"busy": ["i-1"] * 1000},
        {"busy": ["with space"]},
        {"driver": ""},
        {"driver": "x" * 301},
        *({"beats": beats} for beats in (-1, "x", None, True, 1.5, 10**40)),
    ],
)
def test_an_invalid_load_or_count_is_left_out(key, change):
    good = {"load": unstructure(DriverLoad("c")), "beats": 1}
    bad = {"beats": change.get("beats", 1), "load": {**unstructure(DriverLoad("b")), **change}}
    bad["load"].pop("beats", None)
    assert tick(stored(key, Clock(), drivers=[bad, good])) == PoolView((DriverLoad("c"),))


LEASES = [7, {"holder": "b c", "renewals": 1}, {"holder": "b", "renewals": -1}, {"holder": "b"}]


@pytest.mark.parametrize(
    ("lease", "is_valid"), [*((lease, False) for lease in LEASES), (unstructure(Lease("b", 3)), True)]
)
def test_a_valid_lease_is_respected_and_an_invalid_one_taken_over(key, lease, is_valid):
    registry = stored(key, Clock(), lease=lease)
    tick(registry)
    assert registry.leads != is_valid


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"\xff", b"[" * 100_000, b"[]", b"7" * 5000, b" " * 2_000_000),
        *(b'{"drivers": 7, "lease": 7, "fleet": 7}', b'{"drivers": []}'),
    ],
)
def test_an_invalid_record_is_replaced(key, value):
    coordination = MemoryStore().coordination()
    coordination.compare_and_set(key, None, value, 60)
    one, other = drivers(coordination, key, "ab", Clock())
    assert tick(one) == PoolView()
    tick(one, rate=2)
    assert tick(other).rate == 2


WRONG_MEMBERS = [
    *({"url": "file:///etc/passwd"}, {"name": "a b"}, {"state": "flying"}),
    *({"kind": "x" * 65}, {"kind": "a\nb"}, {"market": "stolen"}),
]


@pytest.mark.parametrize(
    "change",
    [
        *({"members": [{"name": "a", "url": None, "state": "serving", **wrong}]} for wrong in WRONG_MEMBERS),
        {"members": [{"name": "a", "url": None, "state": "serving"}] * 300},
        {"interruptions": [{"kind": "gpu", "count": -1}]},
        {"interruptions": [{"kind": "gpu", "count": 10**13}]},
        {"interruptions": [{"kind": "gpu", "count": 1}] * 17},
        {"wanted": -1},
        {"reason": "x" * 301},
    ],
)
def test_an_invalid_fleet_is_left_out(key, change):
    assert tick(stored(key, Clock(), fleet={**unstructure(FLEET), **change})).fleet is None


def test_older_and_newer_fleets_are_read(key):
    member = {"name": "i-1", "url": None, "state": "serving"}
    fleet = {"leader": "b", "members": [member], "wanted": 1, "reason": ""}
    assert tick(stored(key, Clock(), fleet=fleet)).fleet == FleetState(
        "b", (FleetMember("i-1", None, "serving", "", Market.ON_DEMAND),), 1, ""
    )
    later = unstructure(FLEET)
    later["members"][0]["zone"] = later["epoch"] = 7
    assert tick(stored(key, Clock(), fleet=later)).fleet == FLEET


def walk(pool, clock, seconds):
    """Let every driver tick each second; yield the time and those that lead."""
    for _ in range(seconds):
        for driver in pool:
            tick(driver)
        yield clock.now, [driver for driver in pool if driver.leads]
        clock.now += 1


def test_one_candidate_becomes_and_remains_leader(coordination, key):
    clock = Clock()
    pool = drivers(coordination, key, "abc", clock)
    assert [leading for _, leading in walk(pool, clock, 40)] == [pool[:1]] * 40


@pytest.mark.killed
@pytest.mark.parametrize("age", range(4))
def test_a_leader_that_dies_is_followed_within_eight_seconds(coordination, key, age):
    clock = Clock()
    pool = drivers(coordination, key, "abc", clock)
    *_, (died, (leader,)) = walk(pool, clock, 3 + age)
    pool.remove(leader)
    followed = next(now for now, leading in walk(pool, clock, 20) if leading)
    assert LEASE_S < followed - died <= 8


def test_a_leader_that_leaves_is_followed_at_the_next_tick(coordination, key):
    clock = Clock()
    pool = drivers(coordination, key, "abc", clock)
    *_, (_, (leader,)) = walk(pool, clock, 5)
    pool.remove(leader)
    assert not leader.leave()
    assert not leader.leads
    _, leading = next(walk(pool, clock, 1))
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
    coordination = MemoryStore().coordination()
    write = coordination.compare_and_set

    def lossy(*arguments):
        coordination.compare_and_set = write
        write(*arguments)
        raise StoreUnavailableError("gone")

    coordination.compare_and_set = lossy
    driver = PoolRegistry(coordination, key, "a", Clock())
    with pytest.raises(StoreUnavailableError):
        tick(driver)
    assert not driver.leads
    tick(driver)
    assert driver.leads


def test_without_a_store_a_leader_leads_as_long_as_its_lease(key):
    clock = Clock()
    coordination = FailingCoordination(MemoryStore(clock))
    driver = PoolRegistry(coordination, key, "a", clock)
    tick(driver)
    assert driver.leads
    coordination.gone = True
    clock.now += LEASE_S - 0.5
    with pytest.raises(StoreUnavailableError):
        tick(driver)
    assert driver.leads
    clock.now += 0.5
    assert not driver.leads
