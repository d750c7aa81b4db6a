"""The batch sizes of the fewest instances that take a rate, and which instance gets which."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from serfer.control.dispatch import assign
from serfer_bench.study.policies.nonuniform.policy import mix
from serfer_bench.study.policies.nonuniform.sizes import sizes_of
from tests.study.policies.nonuniform.test_sizes import GPU, SLO_MS

SIZES = sizes_of(GPU, SLO_MS)
UP = SIZES[0].up


def batches(rate, least=0.0):
    return [size.batch for size in mix(rate, SIZES, least)]


def test_the_bulk_has_the_largest_batch_and_the_rest_the_largest_whose_range_holds_it():
    assert batches(2 * UP) == [16, 16]
    assert batches(2 * UP + 5.0) == [16, 16, 1]
    assert batches(2 * UP + 30.0) == [16, 16, 4]
    assert batches(30.0) == [4]
    assert batches(0.0) == []


def test_what_is_cheaper_on_lambda_gets_no_instance():
    assert batches(UP + 29.0, least=30.0) == [16]
    assert batches(UP + 31.0, least=30.0) == [16, 4]
    assert batches(3 * UP, least=UP + 1.0) == []


@given(st.floats(0.0, 20 * UP), st.floats(0.0, UP))
def test_what_instances_do_not_take_is_less_than_one_is_worth(rate, least):
    sizes = mix(rate, SIZES, least)
    taken = sum(size.up for size in sizes)
    assert rate - taken <= least + 1e-6
    assert sum(size.up for size in sizes[:-1]) <= rate + 1e-6


@given(st.floats(1e-3, 20 * UP))
def test_each_instance_can_have_a_rate_of_its_range(rate):
    sizes = mix(rate, SIZES, 0.0)
    assert sum(size.low for size in sizes) <= rate * (1 + 1e-9)


SOME = st.lists(st.sampled_from([0, 1, 2, 4, 8]), max_size=8)


@given(SOME, SOME)
def test_as_many_instances_as_can_have_the_wanted_sizes_and_as_few_as_can_change(present, wanted):
    after = assign(present, wanted)
    assert len(after) == len(present)
    if len(wanted) >= len(present):
        assert not Counter(after) - Counter(wanted)
    else:
        assert not Counter(wanted) - Counter(after)
    changed = sum(one != other for one, other in zip(present, after, strict=True))
    assert changed <= len(present) - (Counter(present) & Counter(wanted)).total()


def test_what_there_is_too_little_of_goes_without_the_smallest():
    assert assign([0, 0], [1, 4, 16]) == [16, 4]
