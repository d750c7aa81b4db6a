#!/usr/bin/env bash
# A grey PNG may name one sample that is transparent (tRNS). Pillow 13.0.0 scales samples of 2 and 4 bits to 8 bits (1 of 2 bits is
# 85) but compares them with the unscaled sample of tRNS, so `convert("RGBA")` leaves every pixel opaque, or makes others transparent.
# With 8 bits it is right. One expects the same alpha at each depth, as libvips 8.18.7 gives it.
#
# Seen on 2026-11-30, a row of four samples of which the second is named by tRNS:
#   2 bits  Pillow alpha [255, 255, 255, 255]  libvips alpha [255, 0, 255, 255]
#   4 bits  Pillow alpha [255, 255, 255, 255]  libvips alpha [255, 0, 255, 255]
#   8 bits  Pillow alpha [255, 0, 255, 255]  libvips alpha [255, 0, 255, 255]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check pillow==13.0.0 pyvips==3.2.0 pyvips-binary==8.18.7 numpy==2.4.6
pip freeze
python <<'EOF'
import struct
import zlib

import pyvips
from PIL import Image


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def write_png(path, bits, row, transparent):
    head = struct.pack(">IIBBBBB", 4, 1, bits, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"tRNS", struct.pack(">H", transparent)), (b"IDAT", zlib.compress(b"\0" + row)), (b"IEND", b""))
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in chunks))


seen = {}
for bits, row, transparent in ((2, [0b00_01_10_11], 1), (4, [0x05, 0xAF], 5), (8, [0, 85, 170, 255], 85)):
    write_png(f"grey{bits}.png", bits, bytes(row), transparent)
    pillow = list(Image.open(f"grey{bits}.png").convert("RGBA").getchannel("A").tobytes())
    libvips = pyvips.Image.new_from_file(f"grey{bits}.png").numpy()[0, :, 1].tolist()
    print(f"{bits} bits  Pillow alpha {pillow}  libvips alpha {libvips}")
    assert libvips == [255, 0, 255, 255]
    seen[bits] = pillow == libvips

assert seen == {2: False, 4: False, 8: True}
EOF
