"""MArk's tuning (section 4.3): the answer fulfils both constraints, and one image more would break one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.batching import Profile
from serfer.core.errors import InputError, UsageError
from serfer_bench.study.policies.tuning import tune

# Batches of 1, 2, 4, ... images; each takes between as long as the one before and over twice as long.
GROWTH = st.lists(st.floats(1.0, 2.3), min_size=0, max_size=7)
ALMOST = 1 + 1e-6


def profile(first_ms, growth, unbatched_qps=None):
    times = [first_ms]
    for factor in growth:
        times.append(times[-1] * factor)
    return Profile(tuple((2**power, ms) for power, ms in enumerate(times)), unbatched_qps)


@st.composite
def profiles(draw):
    first_ms = draw(st.floats(0.5, 100))
    slower = draw(st.floats(0.3, 1.0))  # what a server without batching makes of the same machine
    return profile(first_ms, draw(GROWTH), slower * 1000 / first_ms)


def fulfils(measured, size, slo_ms, window_ms=0.0):
    took = window_ms + measured.batch_ms(size)
    return took <= slo_ms * ALMOST and took <= size / measured.rate * 1000 * ALMOST


@given(profiles(), st.floats(1.0, 50.0))
def test_the_tuned_batch_is_the_largest_that_meets_both_constraints(measured, room):
    slo_ms = measured.batch_ms(1) * room
    tuned = tune(measured, slo_ms)
    assert fulfils(measured, tuned.most, slo_ms, tuned.window_ms)
    assert not fulfils(measured, tuned.most, slo_ms, tuned.window_ms * 1.01 + 0.01)  # the window is the largest
    assert tuned.most == measured.max_batch or not fulfils(measured, tuned.most + 1, slo_ms / ALMOST**2)
    assert tuned.rate == pytest.approx(tuned.most / measured.batch_ms(tuned.most) * 1000)


@given(profiles(), st.floats(1.0, 20.0), st.floats(1.0, 3.0))
def test_a_longer_objective_never_reduces_batches_or_throughput(measured, room, more):
    slo_ms = measured.batch_ms(1) * room
    tight, loose = tune(measured, slo_ms), tune(measured, slo_ms * more)
    assert loose.most >= tight.most
    assert loose.sustained_qps >= tight.sustained_qps


@given(profiles(), st.floats(1.0, 50.0))
def test_two_sustained_batches_fit_the_objective(measured, room):
    slo_ms = measured.batch_ms(1) * room
    tuned = tune(measured, slo_ms)
    assert 1 <= tuned.sustained_most <= tuned.most
    assert tuned.sustained_most == 1 or 2 * measured.batch_ms(tuned.sustained_most) <= slo_ms
    assert tuned.sustained_qps >= 1000 / measured.batch_ms(1) / ALMOST


def test_the_papers_tuning_by_hand():
    measured = Profile(((1, 6.0), (8, 20.0), (32, 70.0)))
    tuned = tune(measured, 60.0)
    # T_b = 20 + (b - 8) * 50 / 24: 60 ms are reached at b = 27.2; 6 ms an image would be far more
    assert (tuned.most, tuned.window_ms) == (27, pytest.approx(60 - (20 + 19 * 50 / 24)))
    assert tuned.sustained_most == 12  # 28.3 ms, and twice that fits; 13 take 30.4
    single = tune(Profile(((1, 10.0), (2, 20.1), (4, 41.0))), 1000.0)
    assert (single.most, single.window_ms) == (1, 0.0)  # where a batch is not faster, there is nothing to wait for


def test_an_objective_shorter_than_one_image_is_refused():
    with pytest.raises(InputError, match=r"12\.5 ms .*--slo-ms 12"):
        tune(Profile(((1, 12.5),)), 12.0)
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UsageError, match="--slo-ms is a number"):
            tune(Profile(((1, 12.5),)), wrong)


@pytest.mark.parametrize(
    ("batches", "rate"),
    [
        ((), None),
        (((2, 1.0),), None),
        (((1, 1.0), (1, 2.0)), None),
        (((1, 1.0), (4, 2.0), (2, 1.5)), None),
        (((1, 0.0),), None),
        (((1, float("nan")),), None),
        (((1, float("inf")),), None),
        (((1, 1.0),), 0.0),
    ],
)
def test_an_invalid_profile_is_refused(batches, rate):
    with pytest.raises(InputError, match="a profile"):
        Profile(batches, rate)


def test_profile_is_interpolated_extrapolated_or_padded():
    measured = Profile(((1, 6.0), (8, 20.0), (32, 70.0)))
    assert [measured.batch_ms(size) for size in (1, 8, 32)] == [6.0, 20.0, 70.0]
    assert measured.batch_ms(20) == pytest.approx(45.0)
    assert measured.batch_ms(64) == pytest.approx(140.0)
    measured = Profile(((1, 6.0), (8, 20.0), (32, 70.0)), stepped=True)
    assert [measured.batch_ms(size) for size in (1, 2, 8, 9, 32, 64)] == [6.0, 20.0, 20.0, 70.0, 70.0, 140.0]


@given(st.lists(st.floats(1.0, 100.0), min_size=1, max_size=8))
def test_a_tidied_profile_grows_with_the_batch_but_never_faster(times):
    measured = Profile(tuple((2**power, ms) for power, ms in enumerate(times)))
    tidied = measured.tidied()
    for (size, ms), (_, before) in zip(tidied.batches, measured.batches, strict=True):
        assert ms <= before
        for larger, longer in tidied.batches:
            if larger > size:
                assert ms <= longer * ALMOST
                assert longer <= ms * larger / size * ALMOST


def test_tidying_removes_outliers_only():
    tidy = Profile(((1, 6.0), (2, 8.0), (4, 12.0), (8, 20.0)))
    assert tidy.tidied() == tidy
    assert Profile(((1, 90.0), (2, 8.0), (4, 12.0), (8, 900.0))).tidied().batches == (
        (1, 8.0),
        (2, 8.0),
        (4, 12.0),
        (8, 24.0),
    )
