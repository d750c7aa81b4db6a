"""Memory of reading and writing what no memory should hold: a tiled image of 12,000 x 9,000 pixels, 324 MB."""

import json
import subprocess
import sys

import pytest

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
