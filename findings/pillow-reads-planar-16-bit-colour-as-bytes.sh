#!/usr/bin/env bash
# Pillow 13.0.0 opens an uncompressed RGB TIFF of 16 bits whose channels are stored one after the other (PlanarConfiguration 2),
# and takes each byte of its little-endian samples for a sample of 8 bits. No error, no warning; the picture is noise.
# One expects the high bytes, which Pillow gives where the channels are interleaved, or a refusal.
# tifffile, OpenCV and rasterio read the same file correctly, and Pillow reads planar files of 8 bits correctly.
#
# Seen on 2026-11-30:
#   stored    [0, 1000, 2000, 3000, 4000, 5000]
#   tifffile  [0, 1000, 2000, 3000, 4000, 5000]
#   Pillow, interleaved  RGB [0, 3, 7, 11, 15, 19]
#   Pillow, planar       RGB [0, 232, 208, 0, 3, 7]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check pillow==13.0.0 tifffile==2026.3.3 numpy==2.4.6
pip freeze
python <<'EOF'
import numpy as np
import tifffile
from PIL import Image

samples = np.arange(4 * 5 * 3, dtype=np.uint16).reshape(4, 5, 3) * 1000
tifffile.imwrite("interleaved.tif", samples, photometric="rgb")
tifffile.imwrite("planar.tif", np.ascontiguousarray(samples.transpose(2, 0, 1)), photometric="rgb", planarconfig="separate")


def first(array):
    return array.ravel()[:6].tolist()


read = tifffile.imread("planar.tif").transpose(1, 2, 0)
print("stored   ", first(samples))
print("tifffile ", first(read))
pixels = {}
for layout in ("interleaved", "planar"):
    image = Image.open(f"{layout}.tif")
    pixels[layout] = np.asarray(image)
    print(f"Pillow, {layout:12}", image.mode, first(pixels[layout]))

assert (read == samples).all()
assert (pixels["interleaved"] == samples >> 8).all()
# The bytes of a row's red samples, low byte first, are what Pillow deals out as samples.
assert pixels["planar"][0, :3, 0].tolist() == [0, 0, 184] and first(pixels["planar"]) == [0, 232, 208, 0, 3, 7]
EOF
