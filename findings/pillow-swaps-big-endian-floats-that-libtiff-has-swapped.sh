#!/usr/bin/env bash
# Pillow 13.0.0 swaps the bytes of big-endian float32 and int16 samples of a compressed TIFF, which libtiff has swapped already: the
# picture is noise. No error, no warning. Without compression they are right, and so are big-endian uint16 and little-endian samples.
# One expects the samples, which OpenCV and tifffile read.
#
# Seen on 2026-11-30, 1.0 and 258 stored:
#             none     deflate
#   float32 <   1        1
#   float32 >   1        4.6006e-41
#   int16   <   258      258
#   int16   >   258      513
#   uint16  >   258      258
#   OpenCV      1.0 258 258
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check tifffile==2026.3.3 imagecodecs==2026.3.6 opencv-python-headless==5.0.0.93 pillow==13.0.0 numpy==2.4.6
pip freeze
python <<'EOF'
import cv2
import numpy as np
import tifffile
from PIL import Image

VALUES = {"float32": 1.0, "int16": 258, "uint16": 258}
read, others = {}, {}
print("            none     deflate")
for kind, order in (("float32", "<"), ("float32", ">"), ("int16", "<"), ("int16", ">"), ("uint16", ">")):
    for compression in (None, "deflate"):
        tifffile.imwrite("a.tif", np.full((16, 16), VALUES[kind], kind), byteorder=order, compression=compression)
        with Image.open("a.tif") as image:
            read[kind, order, compression] = image.getpixel((0, 0))
        assert tifffile.imread("a.tif")[0, 0] == VALUES[kind]
        if order == ">":
            others[kind, compression] = cv2.imread("a.tif", cv2.IMREAD_UNCHANGED)[0, 0]
    print(f"{kind:7} {order}  ", "    ".join(f"{read[kind, order, way]:<5.5g}" for way in (None, "deflate")))
print("OpenCV     ", *(others[kind, "deflate"] for kind in VALUES))

wrong = {key for key, value in read.items() if value != VALUES[key[0]]}
assert wrong == {("float32", ">", "deflate"), ("int16", ">", "deflate")} and read["int16", ">", "deflate"] == 513
assert all(value == VALUES[kind] for (kind, _), value in others.items())
EOF
