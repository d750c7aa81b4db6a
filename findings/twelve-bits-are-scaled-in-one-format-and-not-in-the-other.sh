#!/usr/bin/env bash
# Samples of 12 bits come back in 16 bits, either as stored (to 4095) or times 16. Pillow 13.0.0 scales those of JPEG 2000 and not those of
# TIFF; OpenCV 5.0.0 scales those of TIFF and not those of JPEG 2000; rasterio 1.4.4 scales neither. So an image is 16 times as bright
# by one reader as by the other, and which one it is turns round with the format. One expects a reader to treat the depth alike.
#
# Seen on 2026-11-30, stored 0, 1, 2048, 4095:
#   TIFF       Pillow [0, 1, 2048, 4095]  OpenCV [0, 16, 32768, 65520]  rasterio [0, 1, 2048, 4095]
#   JPEG 2000  Pillow [0, 16, 32768, 65520]  OpenCV [0, 1, 2048, 4095]  rasterio [0, 1, 2048, 4095]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check pillow==13.0.0 opencv-python-headless==5.0.0.93 rasterio==1.4.4 tifffile==2026.3.3 imagecodecs==2026.3.6 numpy==2.4.6
pip freeze
python <<'EOF'
import warnings
from pathlib import Path

import cv2
import imagecodecs
import numpy as np
import rasterio
import tifffile
from PIL import Image

warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
stored = [0, 1, 2048, 4095]
samples = np.array([stored * 4] * 16, np.uint16)
with tifffile.TiffWriter("12.tif") as tiff:
    tiff.write(samples, bitspersample=12)
Path("12.jp2").write_bytes(imagecodecs.jpeg2k_encode(samples, level=0, reversible=True, bitspersample=12))


def read_all(path):
    with rasterio.open(path) as dataset:
        by_rasterio = dataset.read(1)
    read = {"Pillow": np.asarray(Image.open(path)), "OpenCV": cv2.imread(path, cv2.IMREAD_UNCHANGED), "rasterio": by_rasterio}
    return {reader: array[0, :4].tolist() for reader, array in read.items()}


scaled = {}
for name, path in (("TIFF", "12.tif"), ("JPEG 2000", "12.jp2")):
    read = read_all(path)
    print(f"{name:10}", "  ".join(f"{reader} {values}" for reader, values in read.items()))
    scaled[name] = {reader for reader, values in read.items() if values == [16 * value for value in stored]}
    assert all(values == stored for reader, values in read.items() if reader not in scaled[name])

assert scaled == {"TIFF": {"OpenCV"}, "JPEG 2000": {"Pillow"}}
EOF
