"""Exact windows beside fixed overlaps, on a small image."""

import pytest

from serfer.core.errors import UsageError
from serfer_bench.pipeline.maps import Blended, measure, network

pytestmark = pytest.mark.weekly


def test_exact_windows_have_no_error_and_blended_ones_have():
    ways, maps = measure((208, 320), 136, 4, 1, lambda _: None)
    errors = [way.error for way in ways]
    assert errors[0] == 0
    assert errors[1] <= 1e-5
    assert min(errors[2:]) > 100 * 1e-5
    assert ways[0].work == 1
    assert 1 < ways[1].work < min(way.work for way in ways[2:])
    assert len({values.shape for values in maps.values()}) == 1


@pytest.fixture(scope="module")
def small_window():
    return network((64, 64), 1).at(48, 48)


@pytest.mark.parametrize("overlap", [0, 48, 64])
def test_an_overlap_that_is_not_less_than_a_window_is_refused(small_window, overlap):
    with pytest.raises(UsageError, match="is not less than windows of 48"):
        Blended(small_window, 48, overlap)
