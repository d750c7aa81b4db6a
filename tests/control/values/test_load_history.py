"""The history of a load: means of slots, however time passes, bounded, and the same after a restart."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.snapshots import SavedFields
from serfer.control.values.load_history import DAY, MAX_SLOTS, SLOT_S, LoadHistory
from serfer.core.errors import InputError


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 95.0), st.floats(0.0, 1e4)), min_size=1, max_size=40))
def test_slots_hold_the_mean_rate_of_their_seconds(parts):
    history, ended = LoadHistory(), 0
    for seconds, rate in parts:
        ended += history.add(seconds, rate)
    times = np.concatenate(([0.0], np.cumsum([seconds for seconds, _ in parts])))
    queries = np.concatenate(([0.0], np.cumsum([seconds * rate for seconds, rate in parts])))
    ends = np.interp(np.arange(ended + 1) * SLOT_S, times, queries)
    np.testing.assert_allclose(history.rates, np.diff(ends) / SLOT_S, rtol=1e-4, atol=1e-1)
    assert history.ended == ended == len(history.rates)
    assert abs(times[-1] / SLOT_S - ended) <= 1.0


def test_the_oldest_slots_are_dropped():
    history = LoadHistory()
    for rate in range(MAX_SLOTS // DAY + 2):
        history.add(DAY * SLOT_S, float(rate))
    assert len(history.rates) <= MAX_SLOTS
    assert history.rates[-1] == MAX_SLOTS // DAY + 1
    assert history.ended == MAX_SLOTS + 2 * DAY
    history.add(1e12, 7.0)
    assert len(history.rates) <= MAX_SLOTS
    assert set(history.rates[-DAY:]) == {7.0}


def test_a_restored_history_goes_on():
    history = LoadHistory()
    history.add(34.0, 1.5)
    other = LoadHistory()
    other.restore(SavedFields.of(history.snapshot(), "history"))
    assert [each.add(26.0, 3.0) for each in (history, other)] == [3, 3]
    assert other.snapshot() == history.snapshot()


@pytest.mark.parametrize("rates", ["0", "zz" * 4, "0000c07f", "000080bf", "00" * 4 * (MAX_SLOTS + 1), 7, None, " " * 8])
def test_rates_that_are_none_are_refused(rates):
    saved = {**LoadHistory().snapshot(), "rates": rates}
    with pytest.raises(InputError, match=r"history\.rates should be"):
        LoadHistory().restore(SavedFields.of(saved, "history"))
