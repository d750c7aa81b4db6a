#!/usr/bin/env bash
# OpenCV 5.0.0 with IMREAD_UNCHANGED gives four channels, the fourth from the tRNS chunk, of an RGB PNG with a transparent colour, and of
# a palette with transparent entries. Of a grey PNG with a transparent level it gives one channel: what is transparent is lost.
# One expects an alpha in each, as Pillow 13.0.0 gives.
#
# Seen on 2026-11-30:
#            OpenCV           Pillow
#   RGB      4 channels, 0    alpha 0
#   palette  4 channels, 0    alpha 0
#   grey     1 channel        alpha 0
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
from PIL import Image

grey = Image.new("L", (4, 4), 100)
grey.save("grey.png", transparency=100)
Image.new("RGB", (4, 4), (1, 2, 3)).save("RGB.png", transparency=(1, 2, 3))
grey.convert("P").save("palette.png", transparency=100)
read = {}
print("         OpenCV           Pillow")
for kind in ("RGB", "palette", "grey"):
    pixels = cv2.imread(f"{kind}.png", cv2.IMREAD_UNCHANGED)
    alpha = Image.open(f"{kind}.png").convert("RGBA").getpixel((0, 0))[3]
    read[kind] = "1 channel" if pixels.ndim == 2 else f"{pixels.shape[2]} channels, {pixels[0, 0, 3]}"
    print(f"{kind:8} {read[kind]:15}  alpha", alpha)
    assert alpha == 0

assert read == {"RGB": "4 channels, 0", "palette": "4 channels, 0", "grey": "1 channel"}
EOF
