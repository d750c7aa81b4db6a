#!/usr/bin/env bash
# A GIF whose first frame covers a part of its screen, without a transparent colour: Pillow 13.0.0 paints the rest in the first colour of the
# palette, OpenCV 5.0.0 in the background colour of the header, libvips 8.18 in black, which the palette need not have.
# One expects the background colour, which the format has for it, in all, or transparency, which browsers show, in all.
#
# Seen on 2026-11-30, a blue frame in the middle, background red, the first colour of the palette green:
#   Pillow   frame [0, 0, 255]  around [0, 255, 0]
#   OpenCV   frame [0, 0, 255]  around [255, 0, 0]
#   libvips  frame [0, 0, 255]  around [0, 0, 0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check opencv-python-headless==5.0.0.93 pillow==13.0.0 pyvips==3.2.0 pyvips-binary==8.18.7 numpy==2.4.6
pip freeze
python <<'EOF'
import struct

import cv2
import numpy as np
import pyvips
from PIL import Image

GREEN, RED, BLUE, WHITE = bytes([0, 255, 0]), bytes([255, 0, 0]), bytes([0, 0, 255]), bytes([255] * 3)
screen = b"GIF89a" + struct.pack("<HHBBB", 4, 4, 0xF1, 1, 0) + GREEN + RED + BLUE + WHITE
codes = [(4, 3), (2, 3), (2, 3), (2, 3), (2, 4), (5, 4)]  # clear, four pixels of colour 2, end: LZW codes and their bits
bits = at = 0
for code, width in codes:
    bits, at = bits | code << at, at + width
data = bits.to_bytes(-(-at // 8), "little")
frame = b"," + struct.pack("<HHHHB", 1, 1, 2, 2, 0) + b"\2" + bytes([len(data)]) + data + b"\0"
with open("a.gif", "wb") as file:
    file.write(screen + frame + b";")

image = pyvips.Image.new_from_file("a.gif")
read = {
    "Pillow": np.asarray(Image.open("a.gif").convert("RGB")),
    "OpenCV": cv2.imread("a.gif")[..., ::-1],
    "libvips": image.numpy(),
}
for name, pixels in read.items():
    print(f"{name:8} frame {pixels[1, 1].tolist()}  around {pixels[0, 0].tolist()}")

assert all(pixels.shape == (4, 4, 3) and (pixels[1:3, 1:3] == [0, 0, 255]).all() for pixels in read.values())
assert [pixels[0, 0].tolist() for pixels in read.values()] == [[0, 255, 0], [255, 0, 0], [0, 0, 0]]
EOF
