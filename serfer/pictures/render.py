"""A scene onto paper, by matplotlib, and the file into its place, whole or not at all."""

from __future__ import annotations

import io
import logging
from functools import cache
from pathlib import Path as File
from typing import TYPE_CHECKING, Any

from serfer.core.errors import UsageError
from serfer.files import write_whole
from serfer.pictures.scene import WHITE, Block, Path, Raster, Scene, Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")
_DPI = 110
_MOST_PIXELS = 7000  # of either side
_POINTS = 72
_SAFE = 0.94  # letters on whole pixels are a little wider than their outlines
_FONT = "DejaVu Sans"
_SETTINGS: Any = {"font.family": _FONT, "svg.hashsalt": "serfer", "hatch.linewidth": 0.6, "text.usetex": False}


def check_suffix(out: File) -> str:
    """Return the suffix of a picture's name; raises UsageError for one that no picture has."""
    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"{out} is not a name of a picture: it should end in {', '.join(SUFFIXES)}")
    return suffix


def save(scene: Scene, out: File) -> None:
    """Draw a scene into a file; raises InputError where it cannot be written."""
    write_whole(out, render(scene, check_suffix(out)[1:]))


def render(scene: Scene, kind: str) -> bytes:
    """Return a scene as a file of a kind: png, svg or pdf; the same scene gives the same bytes."""
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it tells how long its first start takes
    import matplotlib as mpl  # noqa: PLC0415 - slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415 - same

    stamp: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(scene.width, scene.height), facecolor=WHITE)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, scene.width)
        axes.set_ylim(scene.height, 0)
        axes.set_autoscale_on(False)
        for shape in scene.shapes:
            _put(axes, shape)
        file = io.BytesIO()
        figure.savefig(file, format=kind, dpi=_dpi(scene), metadata=stamp)
    return file.getvalue()


def _dpi(scene: Scene) -> float:
    return min(_DPI, _MOST_PIXELS / max(scene.width, scene.height))


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
    from matplotlib.colors import to_rgba  # noqa: PLC0415 - slow to import
    from matplotlib.patches import FancyBboxPatch  # noqa: PLC0415 - same

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
    from matplotlib.font_manager import FontProperties  # noqa: PLC0415 - slow to import

    font = FontProperties(fname=_font_file(bold=text.bold))
    line = _drawable(text.text, bold=text.bold)
    font.set_size(text.size * _fit(line, text, font))
    where: dict[str, Any] = {"ha": text.align, "va": "center_baseline", "zorder": text.layer}
    axes.text(text.x, text.y, line, color=text.colour, fontproperties=font, parse_math=False, **where)


@cache
def _font_file(*, bold: bool) -> str:
    """Return the file of matplotlib's own font; looking for it takes longer than a text takes to draw."""
    from matplotlib.font_manager import FontProperties, findfont  # noqa: PLC0415 - slow to import

    return str(findfont(FontProperties(family=_FONT, weight="bold" if bold else "normal")))


def _fit(line: str, text: Text, font: Any) -> float:  # noqa: ANN401 - matplotlib's FontProperties
    """Return by how much a text must shrink to be as narrow as it should."""
    from matplotlib.textpath import text_to_path  # noqa: PLC0415 - slow to import

    if text.width is None or not line:
        return 1.0
    font.set_size(text.size)
    width, _, _ = text_to_path.get_text_width_height_descent(line, font, ismath=False)
    return min(1.0, _SAFE * text.width * _POINTS / max(width, 1.0))


def _drawable(line: str, *, bold: bool) -> str:
    """Return a text with ? for what the font lacks: names of models come from anywhere."""
    from matplotlib.font_manager import get_font  # noqa: PLC0415 - slow to import

    known = get_font(_font_file(bold=bold))
    return "".join(char if known.get_char_index(ord(char)) else "?" for char in line)


def _raster(axes: Axes, raster: Raster) -> None:
    from matplotlib.patches import Rectangle  # noqa: PLC0415 - slow to import

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
