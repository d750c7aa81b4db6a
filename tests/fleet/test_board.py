"""What drivers tell one another over the store, and what they believe of it."""

import json
import random
import secrets

import pytest

from serfer.core.structure import unstructure
from serfer.fleet import registry as module
from serfer.fleet.lease import Lease
from serfer.fleet.registry import MOST_DRIVERS, Board, Fleet, Listed, Load, View, requests_per_s
from serfer.local.servers.redis import RedisServer
from storage import open_store
from storage.counting import CountingStore
from storage.memory import MemoryStore

FLEET = Fleet(
    "a", (Listed("i-1", "http://10.0.0.7:8000", "serving"), Listed("i-2", None, "booting")), 2, "12 queries/s"
)


@pytest.fixture(scope="module")
def redis():
    with RedisServer() as server:
        yield server.url


@pytest.fixture(params=["memory", "file", "redis"])
def store(request, tmp_path):
    urls = {"memory": "memory://", "file": f"file://{tmp_path / 'store'}"}
    with open_store(urls.get(request.param) or request.getfixturevalue("redis")) as opened:
        yield opened


@pytest.fixture
def prefix():
    return f"t:{secrets.token_hex(8)}"


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_every_driver_sees_the_others_and_the_leaders_word(store, prefix):
    boards = [Board(store, prefix, name) for name in "abc"]
    for number, board in enumerate(boards):
        board.exchange(Load(board.driver, rate=number + 1, in_flight=number, busy=(f"i-{number}",)))
    boards[0].lead(FLEET)
    view = boards[1].look()
    assert {load.driver for load in view.others} == {"a", "c"}
    assert (view.rate, view.in_flight, view.busy) == (4, 2, {"i-0", "i-2"})
    assert view.fleet == FLEET


def test_a_driver_that_tells_again_keeps_its_place(store, prefix):
    one, other = Board(store, prefix, "a"), Board(store, prefix, "b")
    for rate in (1.0, 2.0, 3.0):
        one.exchange(Load("a", rate=rate))
    assert [load.rate for load in other.look().others] == [3.0]


def test_a_driver_that_leaves_is_gone_and_the_last_one_leaves_nothing(prefix):
    store = MemoryStore()
    one, other = Board(store, prefix, "a"), Board(store, prefix, "b")
    for board in (one, other):
        board.exchange(Load(board.driver))
    one.lead(FLEET)
    assert not one.leave()
    assert other.look() == View((), FLEET)
    assert other.leave()
    assert store._values == {}


def test_a_driver_that_dies_is_reckoned_with_for_a_few_seconds_only(prefix):
    clock = Clock()
    store = MemoryStore(clock)
    one, other = Board(store, prefix, "a"), Board(store, prefix, "b")
    one.exchange(Load("a", rate=5))
    clock.now += module.TTL_S - 1
    assert other.look().rate == 5
    clock.now += 2
    assert other.look().rate == 0


def test_drivers_that_believe_to_have_the_same_place_part_again(prefix):
    clock = Clock()
    store = MemoryStore(clock)
    late, other = Board(store, prefix, "a"), Board(store, prefix, "b")
    late.exchange(Load("a"))
    clock.now += 2 * module.TTL_S  # it hung
    other.exchange(Load("b"))
    for _ in range(3):
        for board in (late, other):
            board.exchange(Load(board.driver))
    third = Board(store, prefix, "c")
    assert {load.driver for load in third.look().others} == {"a", "b"}


def test_more_drivers_than_places_lead_to_no_error(prefix):
    store = MemoryStore()
    for number in range(MOST_DRIVERS + 2):
        Board(store, prefix, f"d{number}").exchange(Load(f"d{number}", rate=1))
    assert Board(store, prefix, "x").look().rate == MOST_DRIVERS


def test_drivers_that_come_and_go_see_one_another_at_their_next_look(prefix):
    clock = Clock()
    store = MemoryStore(clock)
    chances = random.Random(7)  # noqa: S311 - no secret
    boards, names = [], iter(range(10_000))
    for _ in range(100):
        clock.now += 1
        if boards and chances.random() < 0.3:
            leaving = boards.pop(chances.randrange(len(boards)))
            if chances.random() < 0.5:
                leaving.leave()
        boards += [Board(store, prefix, f"d{next(names)}") for _ in range(chances.choice([0, 0, 0, 1, 3]))]
        boards = boards[:20]
        for board in boards:
            board.exchange(Load(board.driver))
        if chances.random() < 0.2:  # all have told: now all must be seen
            present = {board.driver for board in boards}
            for board in boards:
                assert present - {board.driver} <= {load.driver for load in board.look().others}


@pytest.mark.parametrize("drivers", [1, 2, 5])
def test_a_driver_sends_the_store_as_many_requests_as_are_priced(prefix, drivers):
    clock = Clock()
    store = CountingStore(MemoryStore(clock))
    pools = [(Board(store, prefix, name), Lease(store, prefix, name, clock=clock)) for name in "abcde"[:drivers]]
    seconds = 10 * module.FULL_LOOK_EVERY
    for _ in range(seconds):
        clock.now += 1
        for board, lease in pools:
            board.exchange(Load(board.driver))
            if lease.claim():
                board.lead(FLEET)
    counts, priced = store.counts, requests_per_s(drivers)
    reads, writes = (counts.gets + counts.exists) / seconds / drivers, counts.puts / seconds / drivers
    assert reads == pytest.approx(priced.reads, rel=0.1)
    assert writes == pytest.approx(priced.writes, rel=0.1)
    assert reads <= drivers + 3.5


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
    ],
)
def test_a_load_that_makes_no_sense_is_passed_over(prefix, change):
    store = MemoryStore()
    board = Board(store, prefix, "a")
    store.put(f"{prefix}:driver:0", json.dumps({**unstructure(Load("b")), **change}).encode(), 60)
    assert board.look() == View()


@pytest.mark.parametrize(
    "value", [b"", b"\xff", b"[" * 100_000, b"[]", b"7" * 5000, b'{"driver": "b"}', b" " * 300_000]
)
def test_what_is_no_load_or_word_is_passed_over(prefix, value):
    store = MemoryStore()
    store.put(f"{prefix}:driver:3", value, 60)
    store.put(f"{prefix}:fleet", value, 60)
    assert Board(store, prefix, "a").look() == View()


@pytest.mark.parametrize(
    "change",
    [
        {"members": [{"name": "a", "url": "file:///etc/passwd", "state": "serving"}]},
        {"members": [{"name": "a b", "url": None, "state": "serving"}]},
        {"members": [{"name": "a", "url": None, "state": "serving"}] * 300},
        {"wanted": -1},
        {"reason": "x" * 301},
    ],
)
def test_a_leaders_word_that_makes_no_sense_is_passed_over(prefix, change):
    store = MemoryStore()
    store.put(f"{prefix}:fleet", json.dumps({**unstructure(FLEET), **change}).encode(), 60)
    assert Board(store, prefix, "a").look().fleet is None
