#!/usr/bin/env bash
# A PGM or PPM states its largest sample, which is white: it may be 100. Pillow 13.0.0 scales samples to 0..255 (to 0..65535 above 255);
# OpenCV 5.0.0, even asked for 8-bit colour, and rasterio 1.4.4 return them as stored, so white is a dark grey of 100.
# One expects readers of an 8-bit image, which have no other way to tell what is white, to scale.
#
# Seen on 2026-11-30, samples 0, 50, 100 of 100:
#   Pillow [0, 128, 255]  OpenCV colour [0, 50, 100]  OpenCV grey [0, 50, 100]  rasterio [0, 50, 100]
# and samples 0, 511, 1023 of 1023:
#   Pillow [0, 32735, 65535]  OpenCV unchanged [0, 511, 1023]  rasterio [0, 511, 1023]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check pillow==13.0.0 opencv-python-headless==5.0.0.93 rasterio==1.4.4 numpy==2.4.6
pip freeze
python <<'EOF'
import warnings

import cv2
import numpy as np
import rasterio
from PIL import Image

warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)


def read_all(path, flags):
    read = {"Pillow": np.asarray(Image.open(path)).ravel().tolist()}
    for name, flag in flags.items():
        image = cv2.imread(path, flag)
        read[f"OpenCV {name}"] = (image[..., 0] if image.ndim == 3 else image).ravel().tolist()
    with rasterio.open(path) as dataset:
        read["rasterio"] = dataset.read(1).ravel().tolist()
    print("  ".join(f"{reader} {samples}" for reader, samples in read.items()))
    return read


with open("of100.pgm", "wb") as file:
    file.write(b"P5\n3 1\n100\n" + bytes([0, 50, 100]))
with open("of1023.pgm", "wb") as file:
    file.write(b"P5\n3 1\n1023\n" + np.array([0, 511, 1023], ">u2").tobytes())
short = read_all("of100.pgm", {"colour": cv2.IMREAD_COLOR, "grey": cv2.IMREAD_GRAYSCALE})
long = read_all("of1023.pgm", {"unchanged": cv2.IMREAD_UNCHANGED})

assert short.pop("Pillow") == [0, 128, 255] and long.pop("Pillow") == [0, 32735, 65535]
assert all(samples == [0, 50, 100] for samples in short.values())
assert all(samples == [0, 511, 1023] for samples in long.values())
EOF
