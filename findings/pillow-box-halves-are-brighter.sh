#!/usr/bin/env bash
# Pillow 13.0.0: `resize(half, Image.BOX)` averages squares of 2 x 2 pixels in two passes, first along rows and then along columns,
# and rounds a half up to 8 bits in each. `reduce(2)` averages the same squares and rounds once, as OpenCV's INTER_AREA does.
# More than a third of the pixels of the resized image are brighter by one, and each level of a pyramid adds half a grey level
# to the mean (`reduce`: an eighth), where one expects two names for one computation.
#
# Seen on 2026-11-30, random samples of 8 bits:
#   one halving: 37.6% of pixels differ, all by 1; reduce(2) equals INTER_AREA
#   mean above the exact mean after each halving
#     resize(BOX)  0.50 1.00 1.50 2.00 2.50
#     reduce(2)    0.12 0.25 0.37 0.50 0.62
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check pillow==13.0.0 opencv-python-headless==5.0.0.93 numpy==2.4.6
pip freeze
python <<'EOF'
import cv2
import numpy as np
from PIL import Image

samples = np.random.default_rng(0).integers(0, 256, (2048, 2048), dtype=np.uint8)
boxed = reduced = Image.fromarray(samples)
differences = np.asarray(boxed.resize((1024, 1024), Image.Resampling.BOX)).astype(int) - np.asarray(reduced.reduce(2))
share = (differences != 0).mean()
same = (np.asarray(reduced.reduce(2)) == cv2.resize(samples, (1024, 1024), interpolation=cv2.INTER_AREA)).all()
print(f"one halving: {share:.1%} of pixels differ, all by {differences.max()}; reduce(2) equals INTER_AREA: {same}")

above = {"resize(BOX)": [], "reduce(2)": []}
for level in range(5):
    size = boxed.width // 2
    boxed, reduced = boxed.resize((size, size), Image.Resampling.BOX), reduced.reduce(2)
    for name, image in (("resize(BOX)", boxed), ("reduce(2)", reduced)):
        above[name].append(np.asarray(image).mean() - samples.mean())
print("mean above the exact mean after each halving")
for name, values in above.items():
    print(f"  {name:12}", *(f"{value:.2f}" for value in values))

assert 0.36 < share < 0.39 and set(np.unique(differences)) == {0, 1} and same
assert 2.4 < above["resize(BOX)"][-1] < 2.6 and above["reduce(2)"][-1] < 0.7
EOF
