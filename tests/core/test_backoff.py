import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.backoff import NO_JITTER, Backoff


@given(st.integers(1, 40), st.floats(0, 1, exclude_max=True))
def test_a_wait_doubles_up_to_the_longest_with_jitter_down_to_half(failures, draw):
    backoff = Backoff(base=0.05, longest=2.0)
    full = min(2.0, 0.05 * 2 ** (failures - 1))
    assert full / 2 <= backoff.wait(failures, draw) <= full
    assert backoff.wait(failures, 0.0) == full / 2
    assert backoff.wait(failures, NO_JITTER) == backoff.wait(failures) == full


def test_waits_grow_by_the_factor_and_never_overflow():
    backoff = Backoff(base=0.01, longest=0.05, factor=1.5)
    assert [backoff.wait(failures) for failures in range(1, 6)] == pytest.approx([0.01, 0.015, 0.0225, 0.03375, 0.05])
    assert backoff.wait(10**9) == 0.05
    assert Backoff(base=0.004, longest=0.25, factor=1000.0).wait(10**9) == 0.25
