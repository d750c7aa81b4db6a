"""Figures into files, whole or not at all, by matplotlib; colours and text that all pictures share."""

from __future__ import annotations

import io
import logging
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.textpath import text_to_path

from serfer.files import write_whole

logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it logs how long its first start takes

INK, GREY, LIGHT, WHITE = "#1a1a1a", "#666666", "#d9d9d9", "#ffffff"
_STAGES = ("#0072b2", "#007a5a", "#a04a8c", "#8a6500", "#5a4fcf", "#a83232", "#2f6f8f", "#4d6b1f")
COLOURS = len(_STAGES)
_DPI = 110
_MAX_PIXELS = 7000  # of either side
_POINTS = 72
_SAFE = 0.94  # letters on whole pixels are a little wider than their outlines
_FONT = "DejaVu Sans"
_SETTINGS: Any = {
    "font.family": _FONT,
    "legend.frameon": False,
    "svg.hashsalt": "serfer",
    "hatch.linewidth": 0.6,
    "text.usetex": False,
    "text.parse_math": False,  # names of models come from anywhere
}
_NO_DATES = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def stage_colour(stage: int) -> str:
    return _STAGES[stage % len(_STAGES)]


def picture_settings() -> AbstractContextManager[None]:
    """Return the settings under which every picture is made, whatever the machine's own are."""
    return mpl.rc_context({**mpl.rcParamsDefault, **_SETTINGS})


def save(figure: Figure, out: Path) -> None:
    write_whole(out, render(figure, out.suffix.lower()[1:]))


def render(figure: Figure, kind: str) -> bytes:
    """Return a figure as a file of a kind: png, svg or pdf; the same figure gives the same bytes."""
    file = io.BytesIO()
    with picture_settings():
        dpi = min(_DPI, _MAX_PIXELS / max(figure.get_size_inches()))
        figure.savefig(file, format=kind, dpi=dpi, metadata=_NO_DATES.get(kind, {}), facecolor=WHITE)
    return file.getvalue()


@cache
def _font_file(*, bold: bool) -> str:
    """Return the file of matplotlib's own font; looking for it takes longer than a text takes to draw."""
    return str(findfont(FontProperties(family=_FONT, weight="bold" if bold else "normal")))


def text_width(line: str, size: float, *, bold: bool = False) -> float:
    font = FontProperties(fname=_font_file(bold=bold), size=size)
    return float(text_to_path.get_text_width_height_descent(drawable(line, bold=bold), font, ismath=False)[0]) / _POINTS


def fitting_size(line: str, size: float, width: float, *, bold: bool = False) -> float:
    """Return `size`, or less where a line of text would be wider than `width` inches."""
    return size * min(1.0, _SAFE * width / max(text_width(line, size, bold=bold), 1 / _POINTS))


def drawable(line: str, *, bold: bool = False) -> str:
    """Return a text with ? for what the font lacks: names of models come from anywhere."""
    known = get_font(_font_file(bold=bold))
    return "".join(char if known.get_char_index(ord(char)) else "?" for char in line)
