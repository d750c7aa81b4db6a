"""Batch sizes of an instance type: their ranges by equation 1, their windows, and which are of use."""

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.dispatch import OWN, window_s
from serfer.control.scenario import InstanceType
from serfer_bench.study.policies.nonuniform.sizes import size_of, sizes_of

GPU = InstanceType("gpu", 3.6, 0.0, 30.0, 0.0, 200.0, ((1, 10.0), (4, 20.0), (16, 64.0)))
SLO_MS = 200.0


def test_the_range_of_a_size_is_equation_1_with_a_tenth_on_the_time():
    four = size_of(GPU, 4, SLO_MS)
    assert (four.low, four.up) == pytest.approx((4 / (0.2 - 0.022), 4 / 0.022))


def test_sizes_are_powers_of_two_and_measured_ones_that_two_batches_of_fit_into_the_slo():
    assert [size.batch for size in sizes_of(GPU, SLO_MS)] == [16, 8, 4, 2, 1]
    assert [size.batch for size in sizes_of(GPU, 100.0)] == [8, 4, 2, 1]
    assert [size.batch for size in sizes_of(GPU, 15.0)] == [1]
    assert sizes_of(GPU, 10.0) == ()


def test_a_size_that_takes_no_more_than_a_smaller_one_is_left_out():
    linear = dataclasses.replace(GPU, batches=((1, 10.0), (2, 20.0), (4, 30.0)))
    assert [size.batch for size in sizes_of(linear, SLO_MS)] == [4, 1]


def test_an_instance_that_nobody_has_set_takes_what_its_type_sustains_from_the_first_query_on():
    own = size_of(GPU, OWN, SLO_MS)
    assert (own.low, own.up) == pytest.approx((0.0, GPU.sustained_qps(SLO_MS) / 1.1))


def test_windows_end_so_early_that_the_batch_half_of_its_time_and_a_tenth_of_the_slo_are_left():
    assert window_s(GPU, 4, SLO_MS) == pytest.approx(0.18 - 1.5 * 0.02)
    assert window_s(GPU, 1, SLO_MS) == 0
    assert window_s(GPU, 16, 50.0) == 0


@given(st.floats(11.1, 1e4))
def test_larger_sizes_take_more_and_need_more(slo_ms):
    sizes = sizes_of(GPU, slo_ms)
    assert all(larger.up > smaller.up and larger.low >= smaller.low for larger, smaller in pairwise(sizes))
    assert all(0 <= size.low <= size.up for size in sizes)
