"""Pictures of a plan: its stages, cuts and tiles as characters (`text`) or as a file (`plan_figure`).

`anatomy` has the numbers. matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import UsageError
from serfer.core.plan import ImageLimits, Plan, Preprocess
from serfer.extras import installed
from serfer.images import Recipe, decode_image, read_image
from serfer.pictures.text import text_picture

__all__ = ["SUFFIXES", "check_suffix", "draw_plan", "picture_pixels", "text_picture"]

SUFFIXES = (".png", ".svg", ".pdf")


def check_suffix(out: Path) -> str:
    """Return the suffix of a picture's name; raises UsageError for any other, MissingExtraError without matplotlib."""
    installed("matplotlib")  # before the work that is to be drawn
    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"{out} is not a name of a picture: it should end in {', '.join(SUFFIXES)}")
    return suffix


def draw_plan(plan: Plan, out: Path, image: NDArray[np.uint8] | None = None) -> None:
    """Draw a plan's stages with the cuts between them, and a tile of each spread stage over an image."""
    check_suffix(out)
    from serfer.pictures.plan_figure import plan_figure  # noqa: PLC0415 - matplotlib is slow to import
    from serfer.pictures.render import save  # noqa: PLC0415 - same

    save(plan_figure(plan, image), out)


def picture_pixels(plan: Plan, path: Path, limits: ImageLimits) -> NDArray[np.uint8]:
    """Return what the network sees of an image file, (H, W, 3) in red, green, blue; raises ImageError."""
    stretched = Preprocess(None, "bilinear", "RGB", 1.0, (0.0,) * 3, (1.0,) * 3)
    known = plan.preprocess or stretched
    colours = replace(stretched, resize=known.resize, interpolation=known.interpolation, pad=known.pad)
    recipe = Recipe(colours, replace(plan.input, channels=3), limits)
    return decode_image(read_image(path, limits), str(path), recipe).pixels
