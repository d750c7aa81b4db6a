"""Which stages may be batched, and how many younger queries pass for it."""

from dataclasses import replace

import pytest

from serfer.core.geometry import Grid
from serfer.drivers.batching import Batching, BatchTerms, batchable, plan_batching
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
