"""`serfer bench maps large` on a small image; how results are compared."""

import numpy as np
import pytest
import rasterio

from serfer.core.errors import WrongAnswerError
from serfer_bench.mapping.command import measure, results
from serfer_bench.mapping.images import compare, strip, write_image
from tests.raster.files import UTM, WHERE, write


def test_the_generated_image_is_the_same_however_large_it_is(tmp_path):
    write_image(tmp_path / "a.tif", (600, 128))
    with rasterio.open(tmp_path / "a.tif") as dataset:
        assert (dataset.read()[:, :512] == strip(0, 512, 128)).all()
        assert dataset.crs is not None


def test_results_are_compared_by_value_class_and_georeference(tmp_path):
    values = np.random.default_rng(0).standard_normal((3, 600, 40)).astype(np.float32)
    one = write(tmp_path / "one.tif", values, crs=UTM, transform=WHERE)
    assert compare(one, one).error == compare(one, one).differs == 0
    best = values[:, 550, 7].argmax()
    changed = values.copy()
    changed[best, 550, 7] = values.min()
    other = compare(write(tmp_path / "other.tif", changed, crs=UTM, transform=WHERE), one)
    assert other.differs == other.clear == 1 / (600 * 40)
    assert other.error == pytest.approx((values[best, 550, 7] - values.min()) / np.ptp(values), rel=1e-5)
    moved = write(tmp_path / "moved.tif", values, crs=UTM, transform=WHERE @ rasterio.Affine.translation(1, 0))
    with pytest.raises(WrongAnswerError, match="another transform"):
        compare(moved, one)


@pytest.mark.killed
@pytest.mark.weekly
def test_a_small_image_is_mapped_killed_and_compared(tmp_path):
    lines = []
    measured = measure(
        (608, 800),
        [64, 80],
        tmp_path,
        width=4,
        scores=True,
        whole=True,
        kills=1,
        rounds=1,
        sample=4,
        progress=lines.append,
    )
    assert [each.window for each in measured.maps] == [64, 80]
    assert all(each.driver_bytes > each.overlap > 0 for each in measured.maps)
    assert all(each.processor_ratio > 1 for each in measured.maps), "the map computes what is timed alone, and more"
    assert measured.windows_differ.error <= 1e-5 >= measured.whole_differs.error
    assert measured.windows_differ.clear == measured.whole_differs.clear == 0
    assert measured.kills.same_bytes
    assert measured.kills.resumed == measured.kills.kept[-1] > 0
    text = results(measured).text()
    assert "the same bytes" in text
