"""The picture of the demonstration: the page, and a part of it with the boxes that each way has found."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from serfer_bench.mapping.page import read
from serfer_bench.mapping.text_boxes import Boxes, Fates, belonging

_PART = 0.136, 0.206  # of the page's height: the end of the heading, and the first lines
_SHOWN, _DPI, _COLOURS = 1200, 110, 96  # pixels of an image's width, dots an inch, colours of the file
_SAME, _OTHER, _LOST = "#1a7f37", "#d1242f", "#0550ae"


@dataclass(frozen=True)
class Drawn:
    """A way's name, its boxes, and the fates of the reference's boxes in them."""

    way: str
    boxes: Boxes
    fates: Fates


def draw(page: Path, drawn: Sequence[Drawn], path: Path) -> None:
    """Draw to a PNG, the boxes of the first way, the reference, included.

    Boxes that are the reference's are green, others red; dashed ones are the reference's that a way has lost.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import

    pixels = read(page).transpose(1, 2, 0)
    height, width = pixels.shape[:2]
    top, bottom = (round(share * height) for share in _PART)
    step = max(1, width // _SHOWN)
    figure = Figure(figsize=(10.4, 6.2), layout="constrained")
    whole, *parts = figure.subplot_mosaic(
        [["page", f"{number}"] for number in range(len(drawn))], width_ratios=[1, 3.4]
    ).values()
    _show(whole, _smaller(pixels, 2 * step), (0, width, height, 0))
    whole.add_patch(_rectangle((top, 0, bottom, width), "black"))
    whole.set_title(f"{height:,} x {width:,} pixels", fontsize=8)
    part = _smaller(pixels[top:bottom], step)
    for axis, one in zip(parts, drawn, strict=True):
        _show(axis, part, (0, width, bottom, top))
        for box, colour in _coloured(one, drawn[0].boxes):
            axis.add_patch(_rectangle(box[:4], colour))
        axis.set_title(_title(one), fontsize=8, loc="left")
        axis.set_xlim(0, width)
        axis.set_ylim(bottom, top)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    Image.open(file).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(path, "PNG", optimize=True)


def _title(one: Drawn) -> str:
    found = one.fates
    counts = f"{found.count('same')} boxes the same"
    others = [
        *(f"{found.count(fate)} {fate}" for fate in ("cut", "doubled", "lost") if found.count(fate)),
        *([f"{found.added} added"] if found.added else []),
    ]
    return f"{one.way}: {', '.join([counts, *others])}"


def _coloured(one: Drawn, reference: Boxes) -> list[tuple[Boxes, str]]:
    ends = np.array(one.fates.of)
    same = reference[ends == "same"]
    others = [box for box in one.boxes if not belonging(same, box).any()]
    return [
        *((box, _SAME) for box in same),
        *((box, _OTHER) for box in others),
        *((box, _LOST) for box in reference[ends == "lost"]),
    ]


def _rectangle(box: Sequence[float] | Boxes, colour: str) -> Any:  # noqa: ANN401 - matplotlib's, which is slow to import
    from matplotlib.patches import Rectangle  # noqa: PLC0415 - slow to import

    top, left, bottom, right = map(float, box)
    style, width = ("--", 1.4) if colour == _LOST else ("-", 0.9)
    sides = right - left, bottom - top
    return Rectangle((left, top), *sides, fill=False, color=colour, linewidth=width, linestyle=style)


def _show(axis: Any, pixels: np.ndarray[Any, Any], extent: tuple[int, int, int, int]) -> None:  # noqa: ANN401 - as above
    axis.imshow(pixels, extent=extent, interpolation="antialiased", aspect="equal")
    axis.set_axis_off()


def _smaller(pixels: np.ndarray[Any, Any], step: int) -> np.ndarray[Any, Any]:
    rows, cols = (size // step * step for size in pixels.shape[:2])
    squares = pixels[:rows, :cols].reshape(rows // step, step, cols // step, step, 3)
    return np.asarray(squares.mean(axis=(1, 3)).astype(np.uint8))
