"""Statistics in passes are those of numpy on the whole array."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from serfer.raster.statistics import moments, percentiles

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
PERCENTS = st.lists(st.floats(0, 100), min_size=1, max_size=3)


def values(dtype):
    """Arrays (groups, n) of values that crowd together, or of any finite ones."""
    shape = st.tuples(st.integers(1, 3), st.integers(1, 60))
    kind = np.dtype(dtype)
    if kind.kind == "f":
        most = 1e6 if kind.itemsize == 4 else 1e12
        crowded = st.floats(0.25, 0.250001, width=8 * kind.itemsize) if kind.itemsize == 8 else st.just(0.25)
        elements = st.one_of(st.floats(-most, most, width=8 * kind.itemsize), crowded, st.just(-0.0))
    else:
        elements = st.one_of(st.integers(np.iinfo(kind).min, np.iinfo(kind).max), st.integers(0, 3))
    return shape.flatmap(lambda size: arrays.arrays(kind, size, elements=elements))


def in_blocks(whole, cuts):
    """Passes over an array (groups, n), cut at some places."""
    return lambda: iter(np.split(whole, sorted(cuts), axis=1))


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), percents=PERCENTS)
def test_percentiles_are_numpys_of_the_whole(dtype, data, percents):
    whole = data.draw(values(dtype))
    cuts = data.draw(st.lists(st.integers(0, whole.shape[1]), max_size=3))
    found = percentiles(in_blocks(whole, cuts), dtype, len(whole), percents)
    np.testing.assert_array_equal(found, np.percentile(whole.astype(np.float64), percents, axis=1).T)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_means_and_deviations_are_those_of_the_whole(dtype, data):
    whole = data.draw(values(dtype))
    cuts = data.draw(st.lists(st.integers(0, whole.shape[1]), max_size=3))
    mean, std = moments(in_blocks(whole, cuts), len(whole))
    exact = whole.astype(np.float64)
    scale = np.abs(exact).max(axis=1)
    np.testing.assert_allclose(mean, exact.mean(axis=1), rtol=0, atol=(1e-12 * scale).max())
    np.testing.assert_allclose(std, exact.std(axis=1), rtol=1e-9, atol=(1e-12 * scale).max())


def test_more_groups_than_one_pass_counts_take_several():
    whole = np.random.default_rng(0).integers(0, 65536, (70, 200), dtype=np.uint16)
    read = []

    def passes():
        read.append(1)
        return iter([whole])

    found = percentiles(passes, "uint16", 70, [1, 99.8])
    np.testing.assert_array_equal(found, np.percentile(whole, [1, 99.8], axis=1).T)
    assert len(read) == 3


def test_groups_without_values_have_no_statistics():
    nothing = [np.empty(0, np.float32), np.array([2, 4], np.float32)]
    found = percentiles(lambda: iter([nothing]), "float32", 2, [50])
    mean, std = moments(lambda: iter([nothing]), 2)
    np.testing.assert_array_equal(found, [[np.nan], [3]])
    np.testing.assert_array_equal([*mean, *std], [np.nan, 3, np.nan, 1])


MAKE = """
import sys, warnings, numpy as np, rasterio
warnings.simplefilter("ignore")
profile = {"driver": "GTiff", "width": 12000, "height": 9000, "count": 3, "dtype": "uint8"}
profile |= {"tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "deflate", "zlevel": 1}
with rasterio.open(sys.argv[1], "w", **profile) as dataset:
    noise = np.random.default_rng(0).integers(0, 16, (3, 512, 12000)).astype("uint8")
    for top in range(0, 9000, 512):
        rows = min(512, 9000 - top)
        dataset.write(noise[:, :rows] + np.uint8(top // 40), window=((top, top + rows), (0, 12000)))
"""

COPY = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from serfer.core.geometry import Grid, Rect, grid_rects
from serfer.raster import ResultParts, open_raster, write_result
from tests.results.stored import array_of, dense

image, folder = Path(sys.argv[1]), Path(sys.argv[2])
began = time.monotonic()
with open_raster(image) as source:
    array = array_of("copy", dense(source.bands, *source.size, source.dtype), 1, (9, 12))
    with ResultParts.create_or_resume(folder / "parts", source.identity, array) as parts:
        with ThreadPoolExecutor(4) as threads:
            [*threads.map(lambda number: parts.put(number, source.read(parts.rects[number])), range(108))]
        read_s = time.monotonic() - began
        write_result(folder / "result.tif", parts, georeference=source.georeference)
peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
print(json.dumps({"peak_mb": peak / 1e6, "parts_s": read_s, "assembly_s": time.monotonic() - began - read_s}))
with open_raster(image) as one, open_raster(folder / "result.tif") as other:
    assert one.size == other.size
    for rect in grid_rects(*one.size, Grid(5, 1)):
        assert (one.read(rect) == other.read(rect)).all()
"""


@pytest.mark.slow
def test_reading_and_writing_a_large_image_takes_less_than_600_mb(tmp_path):
    subprocess.run([sys.executable, "-c", MAKE, tmp_path / "image.tif"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", COPY, tmp_path / "image.tif", tmp_path], capture_output=True, text=True, check=True
    )
    measured = json.loads(done.stdout)
    print(measured)  # noqa: T201 - what docs/adr/0028 says
    assert measured["peak_mb"] < 600
