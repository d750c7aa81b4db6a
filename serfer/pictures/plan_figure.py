"""The picture of a plan: its stages as boxes, cuts as the lines between them, and a tile of each spread stage."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from numpy.typing import NDArray

from serfer.core.geometry import Rect
from serfer.core.plan import IMAGE, Plan, Shape
from serfer.pictures.anatomy import (
    Area,
    Tensor,
    halo,
    handed_on,
    middle_tile,
    spread,
    stage_lines,
    stage_title,
    tensors,
    view,
)
from serfer.pictures.render import GREY, INK, drawable, fitting_size, picture_settings, stage_colour

_WIDE, _HIGH = 5.4, 0.62  # inches of a stage's box
_STEP = 1.05  # from one box to the next
_LANE = 0.22  # between lines of tensors that skip stages
_PANEL, _CAPTION = 2.6, 0.75  # inches of a tile's panel, and of what is said below it
_ACROSS = 3  # panels in a row
_MARGIN = 0.3
_PALE = 0.6  # share of an image's own colours
_READS = "#d55e00"
_LEGEND = "full: what the tile computes; orange: what it reads; dashed: other tiles; hatched: padding beyond the edge"


def plan_figure(plan: Plan, image: NDArray[np.uint8] | None) -> Figure:
    """Draw the network with its cuts on the left, and tiles over the image, or over a gradient, on the right."""
    tiled = [number for number, stage in enumerate(plan.stages) if spread(stage)]
    lanes = [tensor for tensor in tensors(plan) if max(tensor.readers, default=0) > tensor.stage + 1]
    across = min(len(tiled), _ACROSS)
    left = _WIDE + 2 * _MARGIN + _LANE * len(lanes)
    width = left + across * (_PANEL + _MARGIN)
    height = max(_STEP * (len(plan.stages) + 1), ceil(len(tiled) / _ACROSS) * (_PANEL + _CAPTION)) + 2 * _MARGIN
    with picture_settings():
        figure = Figure(figsize=(width, height))
        title = drawable(f"{plan.model}: {len(plan.stages)} stages, {plan.tasks} tasks a query", bold=True)
        size = fitting_size(title, 12, width - 2 * _MARGIN, bold=True)
        figure.text(
            _MARGIN / width, 1 - 0.6 * _MARGIN / height, title, size=size, weight="bold", color=INK, va="center"
        )
        axes = figure.add_axes((0, 0, left / width, 1))
        axes.set_axis_off()
        axes.set_xlim(0, left)
        axes.set_ylim(height, 0)
        _draw_network(axes, plan, lanes)
        for place, number in enumerate(tiled):
            x = left + place % _ACROSS * (_PANEL + _MARGIN)
            y = height - 2 * _MARGIN - place // _ACROSS * (_PANEL + _CAPTION) - _PANEL
            _draw_tile(figure.add_axes((x / width, y / height, _PANEL / width, _PANEL / height)), plan, number, image)
        if tiled:
            size = fitting_size(_LEGEND, 7, width - left)
            figure.text(left / width, 0.4 * _MARGIN / height, _LEGEND, size=size, color=GREY)
    return figure


def _draw_network(axes: Axes, plan: Plan, lanes: Sequence[Tensor]) -> None:
    left = _MARGIN + _LANE * len(lanes)
    tops = [_STEP * (number + 1) for number in range(len(plan.stages))]
    _write(axes, left, tops[0] - 0.3, f"image {plan.input}", INK)
    for number, top in enumerate(tops):
        colour = stage_colour(number)
        box = FancyBboxPatch((left, top), _WIDE, _HIGH, "round,pad=0,rounding_size=0.06", facecolor="none", ec=colour)
        axes.add_patch(box)
        _write(axes, left + 0.1, top + 0.13, stage_title(plan, number), colour, weight="bold")
        for row, line in enumerate(stage_lines(plan, number)):
            _write(axes, left + 0.1, top + 0.31 + 0.17 * row, line, INK)
        cut = left + _WIDE / 2
        axes.annotate("", (cut, top), (cut, top - _STEP + _HIGH), arrowprops={"arrowstyle": "-|>", "color": GREY})
        if number:
            passed = ", ".join(str(shape) for shape in plan.stages[number - 1].outputs)
            _write(axes, left, top - 0.3, passed, GREY, room=_WIDE / 2)
            _write(axes, cut + 0.1, top - 0.15, handed_on(plan, number), GREY, room=_WIDE / 2 - 0.1)
    for lane, tensor in enumerate(lanes):
        x = _MARGIN + _LANE * lane
        start, stop = tops[max(tensor.stage, 0)] + _HIGH / 2, tops[max(tensor.readers)] + _HIGH / 2
        axes.plot((left, x, x, left), (start, start, stop, stop), color=GREY, linewidth=0.9)
    _write(axes, left, tops[-1] + _HIGH + 0.15, f"{plan.output} values, {plan.activation}", INK)


def _write(axes: Axes, x: float, y: float, text: str, colour: str, room: float = _WIDE - 0.2, **style: Any) -> None:  # noqa: ANN401 - matplotlib's
    size = fitting_size(text, 7.5, room, bold="weight" in style)
    axes.text(x, y, drawable(text), size=size, color=colour, va="center_baseline", **style)


def _draw_tile(axes: Axes, plan: Plan, number: int, image: NDArray[np.uint8] | None) -> None:
    """Draw the middle tile of a stage over the image: what it computes, what it reads, and padding beyond the edge."""
    stage, colour = plan.stages[number], stage_colour(number)
    tile = middle_tile(stage)
    seen, part = view(plan, number, tile), stage.tiles[tile]
    axes.add_patch(_rectangle(seen.padded, facecolor="none", edgecolor=GREY, hatch="////", linewidth=0.5, zorder=-1))
    axes.imshow(_pixels(plan, image), extent=(0, plan.input.width, plan.input.height, 0))
    for other in seen.neighbours:
        axes.add_patch(_rectangle(other, facecolor="none", edgecolor=INK, linestyle="--", linewidth=0.9))
    axes.add_patch(_rectangle(seen.reads, facecolor="none", edgecolor=_READS, linewidth=2))
    axes.add_patch(_rectangle(seen.own, facecolor=colour, edgecolor=colour, alpha=0.45))
    axes.set_xlim(min(0, seen.padded.left), max(plan.input.width, seen.padded.right))
    axes.set_ylim(max(plan.input.height, seen.padded.bottom), min(0, seen.padded.top))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_frame_on(False)
    axes.set_title(drawable(f"stage {number}: {stage.grid}, tile {tile}"), size=8, color=colour, weight="bold")
    source = stage.inputs[0]
    of = "the image" if source.stage == IMAGE else f"stage {source.stage}"
    lines = [
        f"computes {_size(part.outputs[0])} of the {_map(stage.outputs[0])} map",
        f"reads {_size(part.inputs[0])} of {of} ({_map(source.shape)}), halo +{halo(stage):.0%}",
    ]
    axes.set_xlabel("\n".join(lines), size=7, color=INK)


def _pixels(plan: Plan, image: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    """Return an image of one or three channels as pale RGB, or a gradient where there is none."""
    if image is None:
        down, across = np.mgrid[0 : plan.input.height, 0 : plan.input.width]
        image = (140 + 100 * (down + across) / (plan.input.height + plan.input.width)).astype(np.uint8)[..., None]
    pale = (_PALE * image + (1 - _PALE) * np.iinfo(np.uint8).max).astype(np.uint8)
    return np.repeat(pale, 3, axis=2) if image.shape[2] == 1 else pale


def _rectangle(area: Area, **style: Any) -> Rectangle:  # noqa: ANN401 - matplotlib's
    return Rectangle((area.left, area.top), area.width, area.height, **style)


def _size(rect: Rect) -> str:
    return f"{rect.rows.size}x{rect.cols.size}"


def _map(shape: Shape) -> str:
    return f"{shape.height}x{shape.width}"
