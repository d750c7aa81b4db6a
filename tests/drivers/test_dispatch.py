"""The choice of who shares an invocation, and the groups of those who wait."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.geometry import Grid
from serfer.core.wire import MAX_BATCH, Crop, Task
from serfer.drivers.batching import Batching, BatchTerms, batchable, plan_batching
from serfer.drivers.dispatching.dispatcher import Bounds, Demand, PendingTask, WaitingGroups, _batch_demand, fill
from tests.core.plans import small_plan

TERMS = BatchTerms(image_s=1.0, rest_s=10.0)


def pending(number, *, age=0, batch=1, payload=0, answer=0, deadline=100.0):
    task = Task("d" * 64, f"{number:032x}", 1, 0, batch, 60.0, Crop("uint8", bytes(payload)))
    return PendingTask((1, 0, 0), task, age, deadline, answer, alone=False)


def batch_of(first, others, *, most=4, limit=1000, image_s=0.0, now=0.0):
    groups, terms = WaitingGroups(), BatchTerms(image_s, TERMS.rest_s)
    for one in [first, *others]:
        groups.join("tile", one, _batch_demand(one, terms))
    return [one.age for one in groups.take(first, Bounds(most, most, limit, image_s), now)]


class TestABatch:
    def test_is_the_oldest_that_wait_for_the_same_tile(self):
        others = [pending(number, age=age) for number, age in enumerate([5, 2, 9, 3, 1], 1)]
        assert batch_of(pending(0, age=4), others) == [4, 1, 2, 3]

    @pytest.mark.parametrize("size", ["payload", "answer"])
    def test_has_no_more_bytes_than_a_payload(self, size):
        others = [pending(1, age=1, **{size: 601}), pending(2, age=2, **{size: 600}), pending(3, age=3, **{size: 1})]
        assert batch_of(pending(0, **{size: 400}), others) == [0, 2]

    def test_waiting_queries_without_time_are_left_out(self):
        """An image takes a second, the rest of the plan ten: at 88.5 s a query of one has 1.5 s to wait for others."""
        others = [pending(1, age=1, deadline=100.0), pending(2, age=2, deadline=99.0), pending(3, age=3)]
        assert batch_of(pending(0), others, image_s=1.0, now=88.5) == [0, 1]
        assert batch_of(pending(0), others, image_s=1.0, now=88.0) == [0, 1, 3]
        assert batch_of(pending(0, deadline=99.0), others, image_s=1.0, now=88.5) == [0]


class TestWaitingGroups:
    def test_only_members_of_the_group_go_along(self):
        groups, first, other = WaitingGroups(), pending(0), pending(1)
        groups.join("one", first, Demand(1, 0, 0))
        groups.join("another", other, Demand(1, 0, 0))
        assert groups.take(first, Bounds(9, 9, 9), 0.0) == [first]
        assert len(groups) == 1

    def test_cancelled_queries_are_left_out(self):
        groups, first, other = WaitingGroups(), pending(0), pending(1)
        for one in (first, other):
            groups.join("group", one, Demand(1, 0, 0))
        groups.leave(other)
        assert groups.take(first, Bounds(9, 9, 9), 0.0) == [first]
        assert len(groups) == 0


DEMANDS = st.builds(
    Demand, st.integers(1, 5), st.integers(0, 50), st.integers(0, 50), st.floats(0, 60) | st.just(float("inf"))
)


@given(
    DEMANDS,
    st.lists(DEMANDS, max_size=12),
    st.builds(Bounds, st.integers(1, 8), st.integers(1, 8), st.just(100), st.sampled_from([0.0, 0.5, 3.0])),
)
def test_a_shared_invocation_is_as_large_as_its_bounds_allow(first, others, bounds):
    chosen = fill(first, others, bounds, 7.0)
    assert chosen == sorted(set(chosen))
    assert len(chosen) < bounds.tasks
    members = [first]
    for place, other in enumerate(others):
        fits = within(bounds, [*members, other], 7.0) and len(members) < bounds.tasks
        assert (place in chosen) == fits
        members += [other] * fits


def within(bounds, members, now):
    images = sum(demand.images for demand in members)
    most_bytes = max(sum(demand.payload for demand in members), sum(demand.answer for demand in members))
    late = now + images * bounds.image_s > min(demand.latest for demand in members)
    return images <= bounds.images and most_bytes <= bounds.tensor_bytes and not late


@given(st.lists(DEMANDS, min_size=1, max_size=12), st.integers(1, 8), st.sampled_from([0.0, 0.5, 3.0]))
def test_every_query_is_dispatched_once(demands, most, image_s):
    groups = WaitingGroups()
    everybody = [pending(age, age=age) for age in range(len(demands))]
    for one, demand in zip(everybody, demands, strict=True):
        groups.join("group", one, demand)
    gone = []
    while len(gone) < len(everybody):
        first = next(one for one in everybody if one not in gone)
        taken = groups.take(first, Bounds(most, most, 100, image_s), 7.0)
        assert taken[0] is first
        assert [one.age for one in taken] == sorted(one.age for one in taken)
        gone += taken
    assert sorted(one.age for one in gone) == list(range(len(everybody)))
    assert len(groups) == 0


def test_a_bundle_has_no_more_images_than_a_payload_may():
    large = Demand(MAX_BATCH // 2 + 1, 0, 0)
    assert fill(large, [large, Demand(1, 0, 0)], Bounds(3, MAX_BATCH, 100), 0.0) == [1]


SMALL = small_plan()
FULLY_CONNECTED = replace(SMALL.stages[1].functions[0].weights, bytes=4 * 480)


def connected(grid=(1, 1), macs=480, *, flat=True):
    """Return a fully connected stage that reads each of its weights `macs` / 480 times."""
    stage = SMALL.stages[1]
    function = replace(stage.functions[0], weights=FULLY_CONNECTED, graphs=())
    shapes = tuple(replace(shape, flat=flat) for shape in stage.outputs)
    operators = (replace(stage.operators[0], macs=macs),)
    tiles = stage.tiles * grid[1]
    return replace(stage, grid=Grid(*grid), operators=operators, functions=(function,), outputs=shapes, tiles=tiles)


def small_in_graph():
    stage, graph = connected(macs=16), replace(FULLY_CONNECTED, bytes=8)
    [function] = stage.functions
    function = replace(function, weights=replace(function.weights, bytes=0), graphs=(graph,))
    return replace(stage, functions=(function,))


@pytest.mark.parametrize(
    ("stage", "shares"),
    [
        (connected(), True),
        (connected(macs=8 * 480), True),
        (connected(macs=9 * 480), False),  # computes much with each weight
        (connected((1, 4)), True),
        (connected((1, 4), flat=False), False),  # tiles of a map
        (small_in_graph(), True),
    ],
)
def test_stages_that_use_each_weight_a_few_times_share_invocations(stage, shares):
    assert batchable(stage) == shares


def test_the_terms_of_a_plan_are_its_predictions():
    tile = replace(SMALL.stages[1].tiles[0], serial_ms=1.0, parallel_ms=4.0)
    last = replace(connected(), tiles=(tile,), memory_mb=2 * 1769, predicted_ms=30.0)
    plan = replace(SMALL, stages=(replace(SMALL.stages[0], predicted_ms=50.0), last))
    batching = plan_batching(plan, 1769, concurrency=2, most=5)
    assert batching.stages == {1: BatchTerms(image_s=pytest.approx(0.003), rest_s=pytest.approx(0.03))}
    assert (batching.most, batching.passing_s) == (5, pytest.approx(0.08))
    one_by_one = plan_batching(plan, 1769, concurrency=1)
    assert one_by_one.passing_s == pytest.approx(0.13)


class TestQueueJumps:
    batching = Batching({3: BatchTerms(image_s=0.01, rest_s=1.0)}, most=8, passing_s=0.5)

    def test_are_as_many_queries_as_an_invocation_takes_besides(self):
        assert self.batching.max_queue_jumps(3, 1, left_s=100.0) == 7
        assert self.batching.max_queue_jumps(3, 3, left_s=100.0) == 1

    def test_are_0_if_no_other_fits(self):
        assert self.batching.max_queue_jumps(3, 5, left_s=100.0) == 0
        assert self.batching.max_queue_jumps(3, 500, left_s=100.0) == 0

    def test_are_fewer_the_less_time_is_left(self):
        assert [self.batching.max_queue_jumps(3, 1, left) for left in (4.5, 3.0, 2.0, 1.9, 1.0, 0.0, -5.0)] == [
            3, 2, 1, 0, 0, 0, 0,
        ]  # fmt: skip

    def test_are_bounded_by_room_alone_without_predictions(self):
        assert replace(self.batching, passing_s=0.0).max_queue_jumps(3, 1, left_s=2.0) == 7
