#!/usr/bin/env bash
# rasterio 1.4.4 (GDAL in its wheel): a raster read at half size with nearest resampling gives the pixels at the centres, 1, 3, 5, ...
# An overview that `build_overviews([2], nearest)` makes of the same raster has the pixels 0, 2, 4, ..., so once it is there, the same
# call of `read` at half size gives other pixels: a mask or a map of classes moves by up to half of the factor in each direction.
# One expects an overview to be what reading at that size would give.
#
# Seen on 2026-11-30, each pixel holding its column:
#   factor 2: read [1, 3, 5, 7]  after build_overviews [0, 2, 4, 6]
#   factor 4: read [2, 6, 10, 14]  after build_overviews [0, 4, 8, 12]
#   factor 8: read [4, 12, 20, 28]  after build_overviews [0, 8, 16, 24]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check rasterio==1.4.4 numpy==2.4.6
pip freeze
python <<'EOF'
import warnings

import numpy as np
import rasterio
from rasterio.enums import Resampling

warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
columns = np.tile(np.arange(64, dtype=np.uint8), (64, 1))


def read_small(factor):
    size = 64 // factor
    with rasterio.open("columns.tif") as dataset:
        return dataset.read(1, out_shape=(size, size), resampling=Resampling.nearest)[0]


for factor in (2, 4, 8):
    with rasterio.open("columns.tif", "w", driver="GTiff", width=64, height=64, count=1, dtype="uint8") as dataset:
        dataset.write(columns, 1)
    before = read_small(factor)
    with rasterio.open("columns.tif", "r+") as dataset:
        dataset.build_overviews([factor], Resampling.nearest)
    after = read_small(factor)
    print(f"factor {factor}: read {before[:4].tolist()}  after build_overviews {after[:4].tolist()}")
    assert (before == np.arange(64 // factor) * factor + factor // 2).all()
    assert (after == np.arange(64 // factor) * factor).all()
print("GDAL", rasterio.__gdal_version__)
EOF
