"""Figures into files, whole or not at all, and scenes onto figures, by matplotlib."""

from __future__ import annotations

import io
import logging
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path as File
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.textpath import text_to_path

from serfer.files import write_whole
from serfer.pictures.formats import check_suffix
from serfer.pictures.scene import WHITE, Block, Path, Raster, Scene, Text

logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it logs how long its first start takes

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


def picture_settings() -> AbstractContextManager[None]:
    """Return the settings under which every picture is made, whatever the machine's own are."""
    return mpl.rc_context({**mpl.rcParamsDefault, **_SETTINGS})


def save(figure: Figure, out: File) -> None:
    """Write a figure, its format by the suffix; raises InputError where it cannot be written."""
    write_whole(out, render(figure, check_suffix(out)[1:]))


def render(figure: Figure, kind: str) -> bytes:
    """Return a figure as a file of a kind: png, svg or pdf; the same figure gives the same bytes."""
    file = io.BytesIO()
    with picture_settings():
        dpi = min(_DPI, _MAX_PIXELS / max(figure.get_size_inches()))
        figure.savefig(file, format=kind, dpi=dpi, metadata=_NO_DATES.get(kind, {}), facecolor=WHITE)
    return file.getvalue()


def scene_figure(scene: Scene) -> Figure:
    """Put a scene's shapes onto a figure of its size."""
    with picture_settings():
        figure = Figure(figsize=(scene.width, scene.height))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, scene.width)
        axes.set_ylim(scene.height, 0)
        axes.set_autoscale_on(False)
        for shape in scene.shapes:
            _put(axes, shape)
    return figure


def _put(axes: Axes, shape: Block | Path | Text | Raster) -> None:
    if isinstance(shape, Block):
        _block(axes, shape)
    elif isinstance(shape, Path):
        _path(axes, shape)
    elif isinstance(shape, Text):
        _text(axes, shape)
    else:
        _raster(axes, shape)


def _block(axes: Axes, block: Block) -> None:
    style = f"round,pad=0,rounding_size={block.radius}" if block.radius else "square,pad=0"
    patch = FancyBboxPatch(
        (block.x, block.y),
        block.width,
        block.height,
        boxstyle=style,
        facecolor=to_rgba(block.fill, block.alpha) if block.fill else "none",
        edgecolor=block.edge or "none",
        linewidth=block.line if block.edge else 0,
        linestyle=block.dash,
        hatch=block.hatch or None,
        zorder=block.layer,
    )
    axes.add_patch(patch)


def _path(axes: Axes, path: Path) -> None:
    across, down = zip(*path.points, strict=True)
    style: dict[str, Any] = {"color": path.colour, "linewidth": path.line, "linestyle": path.dash, "zorder": path.layer}
    axes.plot(across, down, solid_joinstyle="round", **style)
    if path.arrow:
        arrow = {"arrowstyle": "-|>,head_width=0.12,head_length=0.22", "color": path.colour, "linewidth": path.line}
        arrow |= {"shrinkA": 0, "shrinkB": 0}
        axes.annotate("", path.points[-1], path.points[-2], arrowprops=arrow, zorder=path.layer)


def _text(axes: Axes, text: Text) -> None:
    size = text.size if text.width is None else fitting_size(text.text, text.size, text.width, bold=text.bold)
    font = FontProperties(fname=_font_file(bold=text.bold), size=size)
    where: dict[str, Any] = {"ha": text.align, "va": "center_baseline", "zorder": text.layer}
    axes.text(text.x, text.y, drawable(text.text, bold=text.bold), color=text.colour, fontproperties=font, **where)


@cache
def _font_file(*, bold: bool) -> str:
    """Return the file of matplotlib's own font; looking for it takes longer than a text takes to draw."""
    return str(findfont(FontProperties(family=_FONT, weight="bold" if bold else "normal")))


def text_width(line: str, size: float, *, bold: bool = False) -> float:
    """Return how many inches a line of text is wide."""
    font = FontProperties(fname=_font_file(bold=bold), size=size)
    return float(text_to_path.get_text_width_height_descent(drawable(line, bold=bold), font, ismath=False)[0]) / _POINTS


def fitting_size(line: str, size: float, width: float, *, bold: bool = False) -> float:
    """Return `size`, or less where a line of text would be wider than `width` inches."""
    return size * min(1.0, _SAFE * width / max(text_width(line, size, bold=bold), 1 / _POINTS))


def drawable(line: str, *, bold: bool = False) -> str:
    """Return a text with ? for what the font lacks: names of models come from anywhere."""
    known = get_font(_font_file(bold=bold))
    return "".join(char if known.get_char_index(ord(char)) else "?" for char in line)


def _raster(axes: Axes, raster: Raster) -> None:

    extent = (raster.x, raster.x + raster.width, raster.y + raster.height, raster.y)
    picture = axes.imshow(
        raster.pixels,
        extent=extent,
        alpha=raster.alpha,
        zorder=raster.layer,
        aspect="auto",
        interpolation="antialiased",
    )
    if raster.clip:
        x, y, width, height = raster.clip
        picture.set_clip_path(Rectangle((x, y), width, height, transform=axes.transData))
