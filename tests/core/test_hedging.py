"""The threshold for late tasks is learned, and duplicates are bounded."""

from hypothesis import given
from hypothesis import strategies as st

from serfer.core.hedging import LearntHedging


def learnt(times, stage=0):
    hedging = LearntHedging()
    for seconds in times:
        hedging.learn(stage, seconds)
    return hedging


def test_no_task_is_late_before_durations_are_known():
    assert LearntHedging().late_after(0) is None
    assert learnt([1.0] * 19).late_after(0) is None
    assert learnt([1.0] * 100).late_after(1) is None


@given(st.lists(st.floats(0.05, 10), min_size=20, max_size=200))
def test_late_is_twice_the_ninth_decile(times):
    late = learnt(times).late_after(0)
    assert late == 2 * sorted(times)[int(0.9 * len(times))]
    hedging = learnt(times)
    for _ in range(256):
        hedging.learn(0, 1.0)
    assert hedging.late_after(0) == 2.0, "it follows the load"


def test_duplicates_are_one_in_twenty_at_most_after_a_handful():
    hedging = LearntHedging()
    spent = sum(hedging.spend() for _ in range(100))
    assert spent == 4
    for _ in range(2000):
        hedging.learn(0, 1.0)
        spent += hedging.spend()
    assert spent <= 4 + 0.05 * 2000
