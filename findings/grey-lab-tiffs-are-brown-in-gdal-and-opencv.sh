#!/usr/bin/env bash
# GDAL 3.10.3 (of rasterio 1.4.4) and OpenCV 5.0.0 read a TIFF of 8 bit CIELab by way of libtiff's conversion to RGB. Lab of TIFFs is
# relative to D50; libtiff converts to sRGB without adapting that to D65, so neutral grey comes out brown.
# One expects grey, which Pillow 13.0.0 makes of it (by Little CMS), or the stored L, a and b.
#
# Seen on 2026-11-30, L 136 of 255, a and b 0:
#   Pillow  [127, 127, 127]
#   OpenCV  [142, 130, 114]
#   GDAL    [142, 130, 114, 255] red, green, blue, alpha
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check tifffile==2026.3.3 rasterio==1.4.4 opencv-python-headless==5.0.0.93 pillow==13.0.0 numpy==2.4.6
pip freeze
python <<'EOF'
import cv2
import numpy as np
import rasterio
import tifffile
from PIL import Image

tifffile.imwrite("lab.tif", np.full((16, 16, 3), (136, 0, 0), np.uint8), photometric="cielab")
with Image.open("lab.tif") as image:
    pillow = [*image.convert("RGB").getpixel((0, 0))]
opencv = cv2.imread("lab.tif")[0, 0, ::-1].tolist()
with rasterio.open("lab.tif") as dataset:
    gdal, names = dataset.read()[:, 0, 0].tolist(), ", ".join(colour.name for colour in dataset.colorinterp)
print("Pillow ", pillow)
print("OpenCV ", opencv)
print("GDAL   ", gdal, names)

assert pillow == [127, 127, 127]
assert opencv == [142, 130, 114] and gdal == [*opencv, 255]
EOF
