#!/usr/bin/env bash
# OpenCV 5.0.0 turns no JPEG, PNG or WebP by its EXIF orientation with IMREAD_UNCHANGED. A TIFF that lies on its side is turned even so by
# imdecode, so labels in it no longer lie on the pixels that tifffile or GDAL read; and imread returns None for the same file.
# One expects the stored rows with IMREAD_UNCHANGED, upright ones with IMREAD_COLOR, and the same of a file and of its bytes.
#
# Seen on 2026-11-30, 2 rows of 3 stored with orientation 6, rows and columns:
#         colour: file, bytes   unchanged: file, bytes
#   JPEG  (3, 2) (3, 2)         (2, 3) (2, 3)
#   PNG   (3, 2) (3, 2)         (2, 3) (2, 3)
#   WEBP  (3, 2) (3, 2)         (2, 3) (2, 3)
#   TIFF  None (3, 2)           None (3, 2)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check opencv-python-headless==5.0.0.93 pillow==13.0.0 numpy==2.4.6
pip freeze
python <<'EOF'
import cv2
import numpy as np
from PIL import Image

UPRIGHT, STORED = (3, 2), (2, 3)


def size(pixels):
    return None if pixels is None else pixels.shape[:2]


exif = Image.Exif()
exif[274] = 6
seen = {}
print("      colour: file, bytes   unchanged: file, bytes")
for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
    Image.new("RGB", (3, 2), "red").save(f"a.{kind}", exif=exif)
    data = np.fromfile(f"a.{kind}", np.uint8)
    seen[kind] = [
        size(read) for flag in (cv2.IMREAD_COLOR, cv2.IMREAD_UNCHANGED) for read in (cv2.imread(f"a.{kind}", flag), cv2.imdecode(data, flag))
    ]
    print(f"{kind:4}  {f'{seen[kind][0]} {seen[kind][1]}':21} {seen[kind][2]} {seen[kind][3]}")

assert all(seen[kind] == [UPRIGHT, UPRIGHT, STORED, STORED] for kind in ("JPEG", "PNG", "WEBP"))
assert seen["TIFF"] == [None, UPRIGHT, None, UPRIGHT]
EOF
