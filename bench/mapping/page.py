"""A page that looks as if it was scanned, of any size: typeset, turned a little, on paper with stains and noise.

declaration.txt is the Declaration of Independence, laid out like its first printing by John Dunlap on July 4, 1776; it
is in the public domain, its spelling modern. Between lines of dashes are the heading and the signatures, whose lines
begin with their sizes in pixels, and paragraphs. The fonts are matplotlib's DejaVu. The same size gives the same page.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from rasterio.errors import NotGeoreferencedWarning
from rasterio.windows import Window

from serfer_bench.mapping.images import tiled

_MARGIN = 0.06  # of the width
_LEADING = 1.45  # of the size
_PREAMBLE, _CHARGES, _CLOSING = 72, 56, 80  # sizes in pixels
_LEFT_CHARGES = 11  # about half of the text
_GUTTER = 160
_DEGREES, _BLUR = 0.15, 0.9
_PAPER, _INK = (232, 222, 200), (52, 44, 40)
_STAIN, _STAINS, _NOISE = 512, 7.0, 5.0  # a stain's pixels, and deviations of 255
_STRIP = 512
_SEED = 1776


def write_page(path: Path, size: tuple[int, int]) -> None:
    height, width = size
    printed = np.asarray(_typeset(size).rotate(_DEGREES, Image.Resampling.BICUBIC, fillcolor=0).filter(_blur()))
    small = -(-height // _STAIN), -(-width // _STAIN)
    stains = Image.fromarray(np.random.default_rng(_SEED).normal(0, _STAINS, small).astype(np.float32))
    paper = np.asarray(stains.resize((width, height), Image.Resampling.BICUBIC))
    with _opened(path, "w", **tiled(size), photometric="RGB") as dataset:
        for top in range(0, height, _STRIP):
            rows = slice(top, min(height, top + _STRIP))
            window = Window(0, top, width, rows.stop - top)
            dataset.write(_scanned(printed[rows], paper[rows], top), window=window)


def read(path: Path) -> NDArray[Any]:
    with _opened(path) as dataset:
        values: NDArray[Any] = dataset.read()
    return values


@contextmanager
def _opened(path: Path, *words: str, **form: Any) -> Iterator[Any]:  # noqa: ANN401 - rasterio has no types
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path, *words, **form) as dataset:
            yield dataset


def _blur() -> ImageFilter.GaussianBlur:
    return ImageFilter.GaussianBlur(_BLUR)


def _scanned(printed: NDArray[np.uint8], stains: NDArray[np.float32], top: int) -> NDArray[np.uint8]:
    """Return rows of the page (3, rows, cols) for how much ink is on them, 0 to 255."""
    share = printed.astype(np.float32) / 255
    noise = np.random.default_rng([_SEED, top]).standard_normal(printed.shape, dtype=np.float32) * _NOISE
    bands = [paper + stains + (ink - paper) * share + noise for paper, ink in zip(_PAPER, _INK, strict=True)]
    pixels: NDArray[np.uint8] = np.clip(np.stack(bands), 0, 255).astype(np.uint8)
    return pixels


def _typeset(size: tuple[int, int]) -> Image.Image:
    height, width = size
    page = Image.new("L", (width, height), 0)
    draw = ImageDraw.Draw(page)
    margin = round(_MARGIN * width)
    left, right, bottom = margin, width - margin, height - margin
    gutter = min(_GUTTER, margin)
    half = (right - left - gutter) // 2
    text = Path(__file__).with_name("declaration.txt").read_text(encoding="utf-8")
    heading, preamble, charges, closing, signature = (part.strip().split("\n\n") for part in text.split("----\n"))
    top = _centred(draw, heading[0], margin, (left, right), bottom)
    top = _paragraphs(draw, preamble, _PREAMBLE, top, (left, right), bottom)
    columns = (left, left + half), (right - half, right)
    halves = charges[:_LEFT_CHARGES], charges[_LEFT_CHARGES:]
    ends = [_paragraphs(draw, part, _CHARGES, top, sides, bottom) for part, sides in zip(halves, columns, strict=True)]
    top = _paragraphs(draw, closing, _CLOSING, max(ends), (left, right), bottom)
    _centred(draw, signature[0], top, (left, right), bottom)
    return page


def _centred(draw: ImageDraw.ImageDraw, lines: str, top: int, sides: tuple[int, int], bottom: int) -> int:
    left, right = sides
    for pixels, line in (line.split(" ", 1) for line in lines.splitlines()):
        wanted = int(pixels)
        size = min(wanted, int(wanted * (right - left) / _font(wanted, bold=True).getlength(line)))
        if top + size > bottom:
            return bottom
        draw.text(((left + right) // 2, top), line, fill=255, font=_font(size, bold=True), anchor="ma")
        top += round(_LEADING * size)
    return top


def _paragraphs(
    draw: ImageDraw.ImageDraw, paragraphs: Sequence[str], size: int, top: int, sides: tuple[int, int], bottom: int
) -> int:
    left, right = sides
    font = _font(size)
    for paragraph in paragraphs:
        for number, line in enumerate(_wrapped(paragraph, font, right - left, indent=size)):
            if top + size > bottom:
                return bottom
            draw.text((left if number else left + size, top), line, fill=255, font=font, anchor="la")
            top += round(_LEADING * size)
    return top + size // 2


def _wrapped(paragraph: str, font: ImageFont.FreeTypeFont, width: int, *, indent: int) -> Iterator[str]:
    line, room = "", width - indent
    for word in paragraph.split():
        longer = f"{line} {word}" if line else word
        if line and font.getlength(longer) > room:
            yield line
            longer, room = word, width
        line = longer
    yield line


@cache
def _font(size: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    import matplotlib as mpl  # noqa: PLC0415 - slow to import

    name = "DejaVuSerif-Bold.ttf" if bold else "DejaVuSerif.ttf"
    return ImageFont.truetype(Path(mpl.get_data_path(), "fonts", "ttf", name), max(1, size))
