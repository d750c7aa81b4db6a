"""Who shares an invocation with whom: what the tests of the driver cannot see from outside."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.batching import Batching, BatchQueue, BatchTerms, Pending, batchable, plan_batching
from serfer.core.geometry import Grid
from serfer.core.wire import Crop, Task
from tests.core.plans import small_plan

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


class TestWhichStages:
    def test_an_untiled_stage_that_uses_each_weight_a_few_times(self):
        assert batchable(connected())
        assert batchable(connected(macs=8 * 480))

    def test_columns_of_a_fully_connected_layer(self):
        assert batchable(connected((1, 4)))

    def test_not_one_that_computes_much_with_each_weight(self):
        assert not batchable(connected(macs=9 * 480))

    def test_not_tiles_of_a_map(self):
        assert not batchable(connected((1, 4), flat=False))

    def test_one_whose_few_weights_stand_in_its_graph(self):
        stage = connected(macs=16)
        graph = replace(FULLY_CONNECTED, bytes=8)
        functions = tuple(
            replace(one, weights=replace(one.weights, bytes=0), graphs=(graph,)) for one in stage.functions
        )
        assert batchable(replace(stage, functions=functions))


def test_the_terms_of_a_plan_are_its_predictions():
    tile = replace(SMALL.stages[1].tiles[0], serial_ms=1.0, parallel_ms=4.0)
    last = replace(connected(), tiles=(tile,), memory_mb=2 * 1769, predicted_ms=30.0)
    plan = replace(SMALL, stages=(replace(SMALL.stages[0], predicted_ms=50.0), last))
    batching = plan_batching(plan, 1769, concurrency=2, most=5)
    assert batching.stages == {1: BatchTerms(image_s=pytest.approx(0.003), rest_s=pytest.approx(0.03))}
    assert (batching.most, batching.passing_s) == (5, pytest.approx(0.08))
    one_by_one = plan_batching(plan, 1769, concurrency=1)
    assert one_by_one.passing_s == pytest.approx(0.13)


class TestPatience:
    batching = Batching({3: BatchTerms(image_s=0.01, rest_s=1.0)}, most=8, passing_s=0.5)

    def test_is_for_as_many_queries_as_an_invocation_takes_besides(self):
        assert self.batching.max_queue_jumps(3, 1, left_s=100.0) == 7
        assert self.batching.max_queue_jumps(3, 3, left_s=100.0) == 1

    def test_is_none_where_nobody_else_fits(self):
        assert self.batching.max_queue_jumps(3, 5, left_s=100.0) == 0
        assert self.batching.max_queue_jumps(3, 500, left_s=100.0) == 0

    def test_is_less_the_less_time_is_left(self):
        assert [self.batching.max_queue_jumps(3, 1, left) for left in (4.5, 3.0, 2.0, 1.9, 1.0, 0.0, -5.0)] == [
            3, 2, 1, 0, 0, 0, 0,
        ]  # fmt: skip

    def test_is_bounded_by_room_alone_where_nothing_is_predicted(self):
        assert replace(self.batching, passing_s=0.0).max_queue_jumps(3, 1, left_s=2.0) == 7


def waiting(number, *, age=0, batch=1, carried=0, answered=0, deadline=100.0):
    crop = Crop("uint8", bytes(carried))
    return Pending(age, Task("d" * 64, f"{number:032x}", 1, 0, batch, 60.0, crop), answered, deadline)


def company(first, others, *, most=4, limit=1000, image_s=0.0, now=0.0):
    """Return the ages of those that share the invocation of `first`."""
    groups = BatchQueue(Batching({1: BatchTerms(image_s, rest_s=10.0)}, most, 1.0), limit)
    for one in [first, *others]:
        groups.enter(one)
    return [one.age for one in groups.take(first, now)]


class TestCompany:
    def test_is_the_oldest_that_wait_for_the_same_tile(self):
        others = [waiting(number, age=age) for number, age in enumerate([5, 2, 9, 3, 1], 1)]
        assert company(waiting(0, age=4), others) == [4, 1, 2, 3]

    def test_is_only_for_the_same_stage_and_tile(self):
        groups = BatchQueue(Batching({1: BatchTerms(0.0, 0.0)}, 4, 1.0), 1000)
        one, other = waiting(0), waiting(1)
        groups.enter(one)
        for change in ({"tile": 1}, {"stage": 2}):
            groups.enter(replace(other, task=replace(other.task, **change)))
        assert groups.take(one, 0.0) == [one]

    def test_does_not_have_more_images_than_allowed(self):
        others = [waiting(1, age=1, batch=3), waiting(2, age=2, batch=2), waiting(3, age=3)]
        assert company(waiting(0, batch=2), others) == [0, 2]
        assert company(waiting(0, batch=4), others) == [0]
        assert company(waiting(0, batch=9), others) == [0]

    @pytest.mark.parametrize("size", ["carried", "answered"])
    def test_does_not_have_more_bytes_than_a_payload_carries(self, size):
        others = [waiting(1, age=1, **{size: 601}), waiting(2, age=2, **{size: 600}), waiting(3, age=3, **{size: 1})]
        assert company(waiting(0, **{size: 400}), others) == [0, 2]

    def test_leaves_who_gave_up_alone(self):
        groups = BatchQueue(Batching({1: BatchTerms(0.0, 0.0)}, 4, 1.0), 1000)
        one, other = waiting(0), waiting(1)
        groups.enter(one)
        groups.enter(other)
        groups.leave(1, 0, other.task.query)
        groups.leave(1, 0, "f" * 32)
        assert groups.take(one, 0.0) == [one]

    def test_is_taken_once(self):
        groups = BatchQueue(Batching({1: BatchTerms(0.0, 0.0)}, 2, 1.0), 1000)
        all_of_them = [waiting(number, age=number) for number in range(5)]
        for one in all_of_them:
            groups.enter(one)
        taken = [groups.take(all_of_them[number], 0.0) for number in (0, 2, 4)]
        assert [one.age for group in taken for one in group] == [0, 1, 2, 3, 4]

    def test_goes_without_whoever_has_not_the_time(self):
        """An image takes a second, the rest of the plan ten: at 88.5 s a query of one has 1.5 s to wait for others."""
        others = [waiting(1, age=1, deadline=100.0), waiting(2, age=2, deadline=99.0), waiting(3, age=3)]
        assert company(waiting(0), others, image_s=1.0, now=88.5) == [0, 1]
        assert company(waiting(0), others, image_s=1.0, now=88.0) == [0, 1, 3]
        assert company(waiting(0, deadline=99.0), others, image_s=1.0, now=88.5) == [0]

    def test_is_none_for_one_that_is_past_its_time(self):
        assert company(waiting(0, deadline=5.0), [waiting(1, age=1)], image_s=1.0) == [0]


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 50), st.integers(0, 50), st.floats(0, 60)), min_size=1, max_size=12
    ),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.5, 3.0]),
)
def test_everybody_goes_once_and_whoever_shares_keeps_to_the_bounds(asked, most, image_s):
    groups = BatchQueue(Batching({1: BatchTerms(image_s, rest_s=10.0)}, most, 1.0), limit=100)
    everybody = [
        waiting(age, age=age, batch=batch, carried=carried, answered=answered, deadline=deadline)
        for age, (batch, carried, answered, deadline) in enumerate(asked)
    ]
    for one in everybody:
        groups.enter(one)
    gone = []
    while len(gone) < len(everybody):
        first = next(one for one in everybody if one not in gone)
        taken = groups.take(first, now=7.0)
        assert taken[0] is first
        assert [one.age for one in taken] == sorted(one.age for one in taken)
        if len(taken) > 1:
            images = sum(one.task.batch for one in taken)
            assert images <= most
            assert max(sum(one.task.carried for one in taken), sum(one.answered for one in taken)) <= 100
            for one in taken:
                assert 7.0 + 10.0 + (images - one.task.batch) * image_s <= one.deadline + 1e-9
        gone += taken
    assert sorted(one.age for one in gone) == list(range(len(everybody)))
