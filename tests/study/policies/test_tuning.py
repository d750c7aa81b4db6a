"""MArk's tuning (section 4.3), and the scenario's table that `serfer study tune` makes of it."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.batching import Profile
from serfer.control.scenario import parse_scenario
from serfer.core.errors import InputError, PlanError, UsageError
from serfer.instance.network import Hardware
from serfer_bench.study.policies.tuning import tune
from serfer_bench.study.tune import Machine, TunedNetwork, measure
from tests.support.scenarios import scenario_text

# Batches of 1, 2, 4, ... images; each takes between as long as the one before and over twice as long.
GROWTH = st.lists(st.floats(1.0, 2.3), min_size=0, max_size=7)
ALMOST = 1 + 1e-6
NO_TIMES = (float("inf"), float("nan"))


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
def test_the_tuned_batch_is_the_largest_that_meets_both_constraints_and_two_sustained_ones_fit(measured, room):
    slo_ms = measured.batch_ms(1) * room
    tuned = tune(measured, slo_ms)
    assert fulfils(measured, tuned.most, slo_ms, tuned.window_ms)
    assert not fulfils(measured, tuned.most, slo_ms, tuned.window_ms * 1.01 + 0.01)  # the window is the largest
    assert tuned.most == measured.max_batch or not fulfils(measured, tuned.most + 1, slo_ms / ALMOST**2)
    assert tuned.rate == pytest.approx(tuned.most / measured.batch_ms(tuned.most) * 1000)
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
    for wrong in (0.0, -1.0, *NO_TIMES):
        with pytest.raises(UsageError, match="--slo-ms is a number"):
            tune(Profile(((1, 12.5),)), wrong)


@pytest.mark.parametrize(
    "batches",
    [(), ((2, 1.0),), ((1, 1.0), (1, 2.0)), ((1, 1.0), (4, 2.0), (2, 1.5)), *(((1, ms),) for ms in (0.0, *NO_TIMES))],
)
def test_an_invalid_profile_is_refused(batches):
    with pytest.raises(InputError, match="a profile"):
        Profile(batches)
    with pytest.raises(InputError, match="a profile"):
        Profile(((1, 1.0),), 0.0)


def test_profile_is_interpolated_extrapolated_or_padded():
    measured = Profile(((1, 6.0), (8, 20.0), (32, 70.0)))
    assert [measured.batch_ms(size) for size in (1, 8, 20, 32, 64)] == pytest.approx([6.0, 20.0, 45.0, 70.0, 140.0])
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
    outliers = Profile(((1, 90.0), (2, 8.0), (4, 12.0), (8, 900.0)))
    assert outliers.tidied().batches == ((1, 8.0), (2, 8.0), (4, 12.0), (8, 24.0))


GPU = Profile(((1, 6.0), (8, 20.0), (32, 70.0)))
TUNED = TunedNetwork("alexnet", "cuda", "fp16", 60.0, GPU, tune(GPU, 60.0), 3e-4)
LAMBDA = scenario_text(60, (1.5e-5, 60, 600, 1000, 0.5, 600))


def test_the_table_can_be_pasted_into_a_scenario_as_it_is():
    text = TUNED.as_toml(Machine('a "fast" one', 0.8048, 0.3, 180.0))
    kind = parse_scenario(tomllib.loads(LAMBDA + text)).instance
    assert (kind.name, kind.usd_per_hour, kind.spot_usd_per_hour, kind.boot_s) == ('a "fast" one', 0.8048, 0.3, 180.0)
    assert kind.qps == pytest.approx(TUNED.tuning.sustained_qps, rel=1e-4)
    assert kind.max_batch == TUNED.tuning.most == 27
    assert [kind.batch_ms(size) for size in (1, 8, 27)] == pytest.approx([6.0, 20.0, 59.583])


def test_an_unknown_price_is_left_out_and_remarks_show_the_profile_and_its_rates():
    text = TUNED.as_toml(Machine("here", None, 0.0, 180.0))
    assert "--usd-per-hour" in text
    with pytest.raises(InputError, match="lacks 'usd_per_hour'"):
        parse_scenario(tomllib.loads(LAMBDA + text))
    assert TUNED.table()[2].split() == ["8", "20.0", "400.0"]
    text = "\n".join(TUNED.remarks())
    assert "N_batch 27 images, W_batch 0.4 ms" in text
    assert "serfer instance --max-batch 27" in text
    assert "3.0e-04 of the logits' range" in text
    largest = TunedNetwork("alexnet", "cuda", "fp32", 1e4, GPU, tune(GPU, 1e4), 0.0)
    assert "the largest measured: --most" in "\n".join(largest.remarks())


@pytest.mark.parametrize(("name", "price"), [("", 1.0), ("x" * 65, 1.0), ("a\nb", 1.0), ("x", 0.0), ("x", -1.0)])
def test_invalid_instance_names_and_prices_are_refused(name, price):
    with pytest.raises(UsageError, match=r"--name|--usd-per-hour"):
        Machine(name, price, 0.0, 180.0)


@pytest.mark.parametrize("wrong", [-1.0, *NO_TIMES, 2e9])
def test_numbers_that_no_scenario_takes_are_refused(wrong):
    with pytest.raises(UsageError, match="--spot-usd-per-hour is 0 to"):
        Machine("x", 1.0, wrong, 180.0)
    with pytest.raises(UsageError, match="--boot-s is 0 to"):
        Machine("x", 1.0, 0.0, wrong)
    with pytest.raises(UsageError, match="--usd-per-hour is more than 0"):
        Machine("x", wrong, 0.0, 180.0)


def test_a_network_is_measured_and_tuned(directory):
    lines = []
    measured = measure(directory, Hardware("cpu", threads=1), 10_000.0, 4, 2, lines.append)
    assert [size for size, _ in measured.profile.batches] == [1, 2, 4]
    assert (measured.model, measured.device, measured.precision) == ("small", "cpu", "fp32")
    assert measured.loss < 1e-4
    assert any("batch of 4" in line for line in lines)
    assert measured.as_dict(Machine("m", None, 0.0, 1.0))["batches"][0][0] == 1


def test_wrong_input_is_found_before_anything_is_measured(directory, tmp_path):
    with pytest.raises(UsageError, match="--slo-ms"):
        measure(directory, Hardware("cpu"), 0.0, 4, 2, lambda _: pytest.fail("it measures"))
    with pytest.raises(PlanError):
        measure(tmp_path, Hardware("cpu"), 1.0, 4, 2, lambda _: pytest.fail("it measures"))
