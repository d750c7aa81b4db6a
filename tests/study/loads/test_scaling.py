import pytest

from serfer.core.errors import UsageError
from serfer_bench.study.loads.scaling import without_zeros
from tests.cost.loads.test_trace import trace


def test_long_idle_periods_are_removed_and_short_ones_kept():
    load = without_zeros(trace([60] * 7, [1, 0, 2, 0, 0, 0, 3]), 180)
    assert load.rates.tolist() == [1, 0, 2, 3]
    with pytest.raises(UsageError, match="no queries at all"):
        without_zeros(trace([60], [0]), 60)
