"""INFless and its baselines, by one contract, and each by what is its own."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.windows import window_policies
from serfer_bench.study.policies.infless.batch import Batch, BatchScheduled
from serfer_bench.study.policies.infless.dispatch import threshold
from serfer_bench.study.policies.infless.policies import OpenFaasPlus
from serfer_bench.study.policies.infless.policy import Infless, InflessByEfficiency
from tests.study.policies.infless.clusters import RESNET, SIZES, SMALL, function, servers

loads = st.lists(st.tuples(st.floats(0, 400), st.floats(0, 3000)), min_size=1, max_size=12)


def functions():
    return [function(), function(SMALL, 0.05)]


def made(kind, count=6, windows="", **options):
    if windows:
        kept = "reserve_s" if issubclass(kind, Infless) else "keep_alive_s"
        options |= {"windows": window_policies(windows), kept: 0.0}
    if kind is OpenFaasPlus:
        return OpenFaasPlus(functions(), servers(count), SIZES, offset=0.1, **options)
    return kind(functions(), servers(count), **options)


POLICIES = (Infless, InflessByEfficiency, Batch, BatchScheduled, OpenFaasPlus)
KINDS = pytest.mark.parametrize(
    ("kind", "windows"), [*((kind, "") for kind in POLICIES), (Infless, "lsth"), (Batch, "lsth")]
)
WINDOWED = pytest.mark.parametrize("kind", POLICIES)


def used(policy):
    return sum(
        SIZES.units(8, 200) - SIZES.units(cores, sum(shares))
        for cores, shares in (policy.servers.free(number) for number in range(len(policy.servers)))
    )


@KINDS
@settings(max_examples=40)
@given(rates=loads)
def test_what_runs_is_what_was_launched_and_not_stopped_and_what_servers_gave(kind, windows, rates):
    policy, again, running = made(kind, windows=windows), made(kind, windows=windows), {}
    for tick, each in enumerate(rates):
        step = policy.step(100.0 * tick, each)
        assert again.step(100.0 * tick, each) == step
        running |= {one.number: one for one in (*step.launched, *step.prewarmed)}
        for one in step.stopped:
            del running[one.number]
        serving = [given.instance for number in (0, 1) for given in policy.assigned(number, each[number])]
        assert {one.number for one in serving} <= running.keys()
        assert used(policy) == pytest.approx(sum(one.option.units for one in running.values()))
        assert step.unplaced >= 0


@KINDS
@settings(max_examples=40)
@given(rates=loads)
def test_what_has_room_is_served_and_all_of_a_rate_is_assigned(kind, windows, rates):
    policy = made(kind, windows=windows)
    for tick, each in enumerate(rates):
        step = policy.step(5.0 * tick, each)
        missing = step.unplaced
        for number, rate in enumerate(each):
            given_rates = policy.assigned(number, rate)
            capacity = sum(one.instance.option.up for one in given_rates)
            missing -= max(0.0, rate - capacity)
            if given_rates:
                assert sum(one.rate for one in given_rates) == pytest.approx(rate)
        assert missing >= -1e-6 * (1 + step.unplaced)


@settings(max_examples=60)
@given(rates=loads)
def test_infless_dispatches_to_each_instance_within_its_bounds(rates):
    policy = made(Infless, 100)
    for tick, each in enumerate(rates):
        policy.step(5.0 * tick, each)
        for number, rate in enumerate(each):
            given_rates = policy.assigned(number, rate)
            low = sum(one.instance.option.low for one in given_rates)
            for one in given_rates:
                assert one.rate <= one.instance.option.up * (1 + 1e-9)
                assert rate < low or one.rate >= one.instance.option.low - 1e-6


@settings(max_examples=60)
@given(rates=loads)
def test_infless_releases_until_no_instance_is_extra(rates):
    policy = made(Infless, 100)
    for tick, each in enumerate(rates):
        policy.step(5.0 * tick, each)
        policy.step(5.0 * tick + 1, each)  # what was woken is looked at when the next rate comes
        for number, rate in enumerate(each):
            options = [one.instance.option for one in policy.assigned(number, rate)]
            low, up = sum(one.low for one in options), sum(one.up for one in options)
            extra = any(up - one.up >= rate for one in options)
            assert rate >= threshold(low, up) * (1 - 1e-9) or not extra


def test_a_parked_instance_serves_again_without_a_cold_start_and_stops_after_its_time():
    policy = made(Infless, reserve_s=60.0)
    first = policy.step(0, (50, 0)).launched
    assert policy.step(5, (0, 0)).stopped == ()
    assert policy.assigned(0, 0.0) == []
    assert {one.instance for one in policy.assigned(0, 1.0)} <= set(first)
    assert sum(one.rate for one in policy.assigned(0, 1.0)) == pytest.approx(1.0)
    again = policy.step(10, (50, 0))
    assert (again.launched, again.stopped) == ((), ())
    policy.step(15, (0, 0))
    assert set(policy.step(75, (0, 0)).stopped) == set(first)
    assert policy.servers.active == 0


def steps(policy, on_s, off_s, cycles):
    """Yield (cycle, seconds since its begin, step) of a function that has load for `on_s` in each cycle."""
    for cycle in range(cycles):
        for second in range(0, on_s + off_s, 10):
            rate = 50 if second < on_s else 0
            yield cycle, second, policy.step(cycle * (on_s + off_s) + second, (rate, 0))


@WINDOWED
def test_windows_stop_what_will_not_be_needed_soon_and_start_it_again_before_it_is(kind):
    policy = made(kind, windows="lsth")
    seen = [*steps(policy, 600, 3000, 30)]
    last = [(second, step) for cycle, second, step in seen if cycle == 29]
    assert not any(step.launched for _, step in last)
    [stopped] = {second for second, step in last if step.stopped and second >= 600}
    [started] = {second for second, step in last if step.prewarmed}
    assert 600 <= stopped < started < 3600
    assert any(step.launched for cycle, _, step in seen if cycle == 0)


@WINDOWED
def test_windows_keep_an_instance_that_is_needed_again_within_them(kind):
    policy = made(kind, windows="600")
    taken = [(step.launched, step.prewarmed) for _, _, step in steps(policy, 100, 500, 4)]
    assert sum(len(launched) for launched, _ in taken) == len(taken[0][0])
    assert not any(prewarmed for _, prewarmed in taken)


def test_parked_instances_make_room_for_another_function():
    policy = made(Infless, 1, reserve_s=1e6)
    everything = policy.step(0, (1e4, 0))
    assert everything.unplaced > 0
    policy.step(5, (0, 0))
    step = policy.step(10, (0, 100))
    assert step.unplaced == 0
    assert set(step.stopped) == set(everything.launched)


def test_infless_has_several_batch_sizes_for_one_function_and_batch_has_one():
    varied = Counter(one.option.configuration.batch for one in made(Infless).step(0, (100, 0)).launched)
    assert len(varied) > 1
    assert len({one.option.configuration for one in made(Batch).step(0, (100, 0)).launched}) == 1


def test_batch_keeps_its_instances_for_300_seconds_and_buffers_until_full():
    policy = made(Batch)
    count = len(policy.step(0, (100, 0)).launched)
    assert count > 1
    policy.step(10, (1, 0))
    assert policy.step(309, (1, 0)).stopped == ()
    assert len(policy.step(310, (1, 0)).stopped) == count - 1
    policy = made(Batch)
    option = policy.step(0, (100, 0)).launched[0].option
    front = policy.front(0)
    assert front.batch == option.configuration.batch
    assert front.timeout_s + option.exec_s == pytest.approx(0.2)
    policy = made(Batch)
    few, many = policy.option(0, 2.0), policy.option(0, 500.0)
    assert few.configuration.batch < many.configuration.batch


def test_openfaas_plus_gives_each_instance_two_cores_a_tenth_of_a_gpu_and_one_request():
    policy = made(OpenFaasPlus)
    launched = policy.step(0, (40, 0)).launched
    assert {(one.option.configuration.cores, one.option.configuration.share) for one in launched} == {(2, 10)}
    assert {one.option.configuration.batch for one in launched} == {1}
    assert len(launched) >= 40 * launched[0].option.exec_s
    assert (policy.front(0).batch, policy.front(0).timeout_s) == (1, 0.0)


def test_a_function_that_no_configuration_serves_in_time_is_unplaced():
    slow = function(RESNET, 0.02)
    assert slow.options == ()
    for policy in (Infless([slow], servers()), Batch([slow], servers())):
        assert policy.step(0, (7.0,)).unplaced == 7.0
