#!/usr/bin/env bash
# A TIFF whose PhotometricInterpretation is 0 (MINISWHITE) stores white as 0. Pillow 13.0.0 and OpenCV 5.0.0 invert such samples
# of 8 bits, so that black is 0 in what they return, and return those of 16 bits as they are stored: a negative.
# libvips 8.18.7 inverts both; tifffile and rasterio invert neither. One expects each reader to treat both depths alike.
#
# Seen on 2026-11-30, samples stored as 0 and the largest:
#   8 bits   Pillow [255, 0]  OpenCV [255, 0]  libvips [255, 0]  tifffile [0, 255]  rasterio [0, 255]
#   16 bits  Pillow [0, 65535]  OpenCV [0, 65535]  libvips [65535, 0]  tifffile [0, 65535]  rasterio [0, 65535]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check pillow==13.0.0 opencv-python-headless==5.0.0.93 pyvips==3.2.0 pyvips-binary==8.18.7 tifffile==2026.3.3 rasterio==1.4.4 numpy==2.4.6
pip freeze
python <<'EOF'
import warnings

import cv2
import numpy as np
import pyvips
import rasterio
import tifffile
from PIL import Image

warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)


def read_by_rasterio(path):
    with rasterio.open(path) as dataset:
        return dataset.read(1)


READERS = {
    "Pillow": lambda path: np.asarray(Image.open(path)),
    "OpenCV": lambda path: cv2.imread(path, cv2.IMREAD_UNCHANGED),
    "libvips": lambda path: pyvips.Image.new_from_file(path).numpy(),
    "tifffile": tifffile.imread,
    "rasterio": read_by_rasterio,
}
inverted = {}
for bits, dtype in ((8, np.uint8), (16, np.uint16)):
    path = f"white{bits}.tif"
    tifffile.imwrite(path, np.array([[0, np.iinfo(dtype).max]], dtype), photometric="miniswhite")
    read = {reader: call(path).ravel().tolist() for reader, call in READERS.items()}
    print(f"{bits} bits ", "  ".join(f"{reader} {samples}" for reader, samples in read.items()))
    inverted[bits] = {reader for reader, samples in read.items() if samples == [np.iinfo(dtype).max, 0]}

assert inverted == {8: {"Pillow", "OpenCV", "libvips"}, 16: {"libvips"}}
EOF
