#!/usr/bin/env bash
# OpenCV 5.0.0 reads the colours of a TIFF with unassociated alpha (ExtraSamples 2) multiplied by alpha, with IMREAD_UNCHANGED too,
# and returns the alpha beside them: whoever composes the picture multiplies twice. With IMREAD_COLOR a transparent pixel is black.
# One expects the stored colours, as Pillow and rasterio give them, and as OpenCV itself gives them of a PNG.
#
# Seen on 2026-11-30, (10, 100, 200) with alpha 128:
#   PNG   unchanged  [10, 100, 200, 128]
#   PNG   colour     [10, 100, 200]
#   TIFF  unchanged  [5, 50, 100, 128]
#   TIFF  colour     [5, 50, 100]
#   TIFF  Pillow     [10, 100, 200, 128]
#   TIFF  rasterio   [10, 100, 200, 128]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check tifffile==2026.3.3 opencv-python-headless==5.0.0.93 pillow==13.0.0 rasterio==1.4.4 numpy==2.4.6
pip freeze
python <<'EOF'
import cv2
import numpy as np
import rasterio
import tifffile
from PIL import Image

PIXEL = [10, 100, 200, 128]
stored = np.full((16, 16, 4), PIXEL, np.uint8)
Image.fromarray(stored).save("a.png")
tifffile.imwrite("a.tif", stored, photometric="rgb", extrasamples=["unassalpha"])
read = {}
for kind, name in (("PNG ", "a.png"), ("TIFF", "a.tif")):
    read[kind, "unchanged"] = cv2.imread(name, cv2.IMREAD_UNCHANGED)[0, 0, [2, 1, 0, 3]].tolist()
    read[kind, "colour"] = cv2.imread(name)[0, 0, ::-1].tolist()
read["TIFF", "Pillow"] = np.asarray(Image.open("a.tif"))[0, 0].tolist()
with rasterio.open("a.tif") as dataset:
    read["TIFF", "rasterio"] = dataset.read()[:, 0, 0].tolist()
for (kind, how), pixel in read.items():
    print(f"{kind}  {how:9} ", pixel)

assert read["PNG ", "unchanged"] == read["TIFF", "Pillow"] == read["TIFF", "rasterio"] == PIXEL
assert read["PNG ", "colour"] == PIXEL[:3]
assert read["TIFF", "unchanged"] == [5, 50, 100, 128] and read["TIFF", "colour"] == [5, 50, 100]
EOF
