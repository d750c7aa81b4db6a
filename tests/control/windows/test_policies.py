"""LSTH, the hybrid histogram policy and fixed windows: one contract, and each one's equations."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.windows import Windows, window_policies
from serfer.control.windows.histograms import RANGE_S, STANDARD, IdleHistogram, LongShortHistogram, LsthOptions, mixed
from serfer.control.windows.windows import MOST_S
from serfer.core.errors import InputError, UsageError

NAMES = ("lsth", "lsth:gamma=0.3", "lsth:gamma=0", "hybrid", "hybrid:hours=4", "300", "0")
STEPS = st.lists(st.tuples(st.floats(0.0, 20_000.0), st.floats(0.0, 100_000.0)), max_size=40)
HOUR = 3600.0


def taught(name, steps):
    """Return a policy that has seen idle times, each after so many busy seconds, and the time."""
    policy, now = window_policies(name)(), 1e6
    for busy, idle in steps:
        now += busy + idle
        policy.observe(now, idle)
    return policy, now


def every(policy, times, idle, begin=1e6):
    """Have a policy see the same idle time over and over; return when that was over."""
    for _ in range(times):
        begin += idle
        policy.observe(begin, idle)
    return begin


contract = pytest.mark.parametrize("name", NAMES)


@contract
@given(steps=STEPS)
def test_windows_are_bounded_and_those_of_the_same_idle_times_the_same(name, steps):
    (policy, now), (other, _) = taught(name, steps), taught(name, steps)
    windows = policy.windows(now)
    assert windows == other.windows(now)
    assert 0 <= windows.prewarm_s <= MOST_S
    assert 0 <= windows.keepalive_s <= MOST_S


@contract
def test_it_has_the_name_that_it_was_made_by(name):
    assert window_policies(name)().name == name


@contract
def test_a_clock_that_goes_back_is_survived(name):
    policy, now = taught(name, [(10.0, 600.0)] * 5)
    policy.observe(now - 5000.0, 60.0)
    assert policy.windows(now - 9000.0).until_s >= 0


@pytest.mark.parametrize("name", ["lsth", "hybrid", "hybrid:hours=4"])
def test_a_period_is_met_by_prewarming(name):
    policy = window_policies(name)()
    windows = policy.windows(every(policy, 10, 1800.0))
    assert windows.warm_at(1800.0)
    assert 1500 < windows.prewarm_s < 1800
    assert windows.kept_s(1800.0) < 300


@pytest.mark.parametrize("name", ["lsth", "hybrid"])
def test_a_function_of_which_nothing_is_known_is_kept_for_four_hours(name):
    assert window_policies(name)().windows(0.0) == STANDARD == Windows(0.0, RANGE_S)


def test_idle_times_beyond_the_histogram_are_forecast():
    policy = window_policies("hybrid")()
    windows = policy.windows(every(policy, 5, 24 * HOUR))
    assert windows.prewarm_s == pytest.approx(0.85 * 24 * HOUR)
    assert windows.until_s == pytest.approx(1.15 * 24 * HOUR)


def test_a_histogram_that_is_spread_out_evenly_is_not_used_by_the_hybrid_policy():
    policy, now = window_policies("hybrid")(), 1e6
    for minute in range(240):
        now += 60.0 * minute
        policy.observe(now, 60.0 * minute)
    assert policy.windows(now) == STANDARD


def test_lsth_is_the_weighted_sum_of_both_histograms_windows():
    long, short = IdleHistogram(86400.0), IdleHistogram(3600.0)
    policy = LongShortHistogram(LsthOptions(0.3))
    times = [(1e6 + 600.0 * number, 600.0) for number in range(1, 30)]
    times += [(times[-1][0] + 2 * HOUR + 120.0 * number, 120.0) for number in range(1, 20)]
    for now, idle in times:
        for one in (long, short):
            one.add(now, idle)
        policy.observe(now, idle)
    far, near, found = long.windows(), short.windows(), policy.windows(times[-1][0])
    assert far != near
    assert found.prewarm_s == pytest.approx(0.3 * far.prewarm_s + 0.7 * near.prewarm_s)
    assert found.keepalive_s == pytest.approx(0.3 * far.keepalive_s + 0.7 * near.keepalive_s)


BOTH = st.builds(Windows, st.floats(0.0, 1e5), st.floats(0.0, 1e5))


@given(BOTH, BOTH, st.floats(0.0, 1.0))
def test_lsth_lies_between_the_windows_of_its_histograms(long, short, gamma):
    found = mixed(long, short, gamma)
    for one, far, near in (
        (found.prewarm_s, long.prewarm_s, short.prewarm_s),
        (found.keepalive_s, long.keepalive_s, short.keepalive_s),
        (found.until_s, long.until_s, short.until_s),
    ):
        assert min(far, near) - 1e-6 <= one <= max(far, near) + 1e-6


def test_lsth_without_an_idle_time_in_the_last_hour_has_the_days_windows():
    policy = window_policies("lsth:gamma=0")()
    end = every(policy, 10, 600.0)
    assert policy.windows(end + 3 * HOUR).warm_at(600.0)
    assert policy.windows(end + 30 * HOUR) == STANDARD


@pytest.mark.parametrize(
    "name", ["lsht", "lsth:gamma=2", "lsth:gama=0.5", "lsth:gamma=x", "hybrid:hours=0", "-1", "inf", "nan", "1e99", ""]
)
def test_a_name_or_value_that_cannot_be_is_refused(name):
    with pytest.raises(UsageError):
        window_policies(name)


OWN = """
from serfer.control.windows import Windows


class Own:
    def observe(self, now_s, idle_s):
        if idle_s > 1000:
            raise RuntimeError("too long")

    def windows(self, now_s):
        return Windows({0}, 10.0)


class Half:
    def observe(self, now_s, idle_s):
        pass
"""


def own(tmp_path, prewarm, made="Own"):
    (tmp_path / "own.py").write_text(OWN.format(prewarm))
    return window_policies(f"{tmp_path}/own.py:{made}")


def test_windows_of_ones_own_are_used_and_checked(tmp_path):
    policy = own(tmp_path, "5.0")()
    assert policy.windows(0.0) == Windows(5.0, 10.0)
    with pytest.raises(InputError, match="observe failed"):
        policy.observe(0.0, 2000.0)
    with pytest.raises(InputError, match="not Windows"):
        own(tmp_path, "float('nan')")().windows(0.0)
    with pytest.raises(UsageError, match="no windows"):
        own(tmp_path, "5.0", "Half")


def test_an_entry_point_gives_windows_a_name(monkeypatch):
    entry = EntryPoint("mine", "serfer.control.windows.histograms:HybridHistogram", "serfer.windows")
    monkeypatch.setattr("serfer.plug_ins.entry_points", lambda group: EntryPoints([entry]).select(group=group))
    policy = window_policies("mine")()
    assert (policy.name, policy.windows(0.0)) == ("mine", STANDARD)
    with pytest.raises(UsageError, match="there are lsth, hybrid, mine, seconds, and MODULE:Class"):
        window_policies("yours")
