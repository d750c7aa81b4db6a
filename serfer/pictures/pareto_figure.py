"""The chart of latency against dollars: what a plan competed with, and which it is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from serfer.core.plan import Plan
from serfer.pictures.charts import is_wide
from serfer.pictures.charts_figure import log_axis, plain_ticks
from serfer.pictures.labels import Box, placed
from serfer.pictures.pareto import Choice, choices, query_of
from serfer.pictures.render import drawable, fitting_size, picture_settings, text_width
from serfer.pictures.scene import GREY, HALO, INK, WHITE, stage_colour

_WIDTH, _LEFT, _RIGHT, _ABOVE, _CHART, _BELOW = 9.0, 0.8, 0.35, 1.2, 4.2, 1.0  # inches
_DOT, _CHOSEN = 0.12, 0.2  # inches across
_POINTS = 72  # of an inch
_BLUE = stage_colour(0)
_LINE, _LETTERS, _SIZE = 0.19, 92, 8  # of the list: inches of a line, letters in it, points of a letter
_COLUMNS = ((_LEFT, "left"), (_LEFT + 0.75, "right"), (_LEFT + 1.65, "right"), (_LEFT + 2.0, "left"))
_AIR = 0.08  # inches that a label is further from others than it is wide
_NEAR = 0.15  # inches from which on a line leads from a point to its label
_KNOTS = 0.08  # inches between the boxes that keep labels off a line
_SIGNS = (
    ("chosen", HALO, HALO, _CHOSEN),
    ("none that fits is faster and cheaper", _BLUE, _BLUE, _DOT),
    ("beaten in both", GREY, GREY, _DOT),
    ("does not fit a function's package", GREY, WHITE, _DOT),
)


def pareto_figure(plan: Plan) -> Figure:
    """Draw what a plan competed with as points, numbered, with a list of them below."""
    plans = choices(plan)
    lines = [_wrapped(each.plan.stages) for each in plans]
    below = _BELOW + _LINE * (sum(map(len, lines)) + 1) + 0.3
    with picture_settings():
        figure = Figure(figsize=(_WIDTH, _ABOVE + _CHART + below))
        page = Box(_LEFT, below, _WIDTH - _LEFT - _RIGHT, _CHART)
        _title(figure, plan)
        axes = _axes(figure, page, plans)
        _points(axes, plans)
        _labels(figure, axes, plans, page)
        _list(figure, plans, lines, below - _BELOW)
    return figure


def _wrapped(stages: str) -> list[str]:
    """Break a list of stages before its "then"s."""
    return [
        line.replace("\N{NO-BREAK SPACE}", " ")
        for line in wrap(re.sub(" (?!then )", "\N{NO-BREAK SPACE}", stages), _LETTERS)
    ]


def _write(figure: Figure, place: tuple[float, float], text: str, **style: Any) -> None:  # noqa: ANN401 - matplotlib's
    """Write a text at a place in inches from the lower left corner."""
    figure.text(*place, drawable(text), transform=figure.dpi_scale_trans, va="center_baseline", **style)


def _title(figure: Figure, plan: Plan) -> None:
    top, title = figure.get_figheight(), f"{plan.model}: latency against dollars"
    size = fitting_size(title, 13, _WIDTH - 2 * _RIGHT, bold=True)
    _write(figure, (_RIGHT, top - 0.3), title, size=size, weight="bold", color=INK)
    about = f"{query_of(plan)} over {plan.store}, as predicted: lower is cheaper, further left is faster"
    _write(figure, (_RIGHT, top - 0.56), about, size=_SIZE, color=GREY)


def _axes(figure: Figure, page: Box, plans: Sequence[Choice]) -> Axes:
    width, height = figure.get_size_inches()
    axes = figure.add_axes((page.left / width, page.bottom / height, page.width / width, page.height / height))
    axes.margins(0.08)
    axes.set_title("dollars for a million queries", loc="left", fontsize=_SIZE, color=GREY)
    axes.scatter([each.plan.ms for each in plans], [each.usd for each in plans], s=0)  # for the limits
    logs = []
    if is_wide(each.plan.ms for each in plans):
        log_axis(axes, "x", [each.plan.ms for each in plans])
        logs.append("latency")
    if is_wide(each.usd for each in plans):
        log_axis(axes, "y", [each.usd for each in plans])
        logs.append("dollars")
    axes.set_xlim(left=max(axes.get_xlim()[0], 0.0))
    axes.set_ylim(bottom=max(axes.get_ylim()[0], 0.0))
    scales = f" (logarithmic scale of {' and '.join(logs)})" if logs else ""
    axes.set_xlabel(f"milliseconds{scales}", loc="right", fontsize=_SIZE, color=GREY)
    plain_ticks(axes)
    return axes


def _points(axes: Axes, plans: Sequence[Choice]) -> None:
    """Draw points, full where the plan fits its packages, and the line through those that none beats."""
    best = [each for each in plans if each.best]
    axes.plot([each.plan.ms for each in best], [each.usd for each in best], color=_BLUE, linewidth=1.2)
    for each in plans:
        colour = HALO if each.plan.chosen else _BLUE if each.best else GREY
        fill = colour if each.plan.fits else WHITE
        sign = _sign(colour, fill, _CHOSEN if each.plan.chosen else _DOT)
        axes.plot(each.plan.ms, each.usd, **sign, zorder=3, clip_on=False)
    for words, edge, fill, size in _SIGNS:
        axes.plot([], [], **_sign(edge, fill, size), label=words)
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.0, -0.11), "borderaxespad": 0.0}
    axes.legend(ncols=len(_SIGNS), fontsize=_SIZE, labelcolor=GREY, **place)


def _sign(edge: str, fill: str, size: float) -> dict[str, Any]:
    style = {"marker": "o", "markersize": size * _POINTS, "markeredgewidth": 1.2, "linestyle": "none"}
    return {**style, "markeredgecolor": edge, "markerfacecolor": fill}


def _labels(figure: Figure, axes: Axes, plans: Sequence[Choice], page: Box) -> None:
    """Write each point's label beside it, or further off with a line to it."""
    places = axes.transData.transform([(each.plan.ms, each.usd) for each in plans]) / figure.dpi
    dots = [_dot(each, x, y) for each, (x, y) in zip(plans, places.tolist(), strict=True)]
    sizes = [(text_width(each.label, _SIZE, bold=each.plan.chosen) + _AIR, _SIZE / _POINTS * 1.3) for each in plans]
    best = [dot.middle for each, dot in zip(plans, dots, strict=True) if each.best]
    for each, dot, box in zip(plans, dots, placed(dots, sizes, [*_along(best)], page), strict=True):
        chosen = each.plan.chosen
        style: dict[str, Any] = {"color": HALO if chosen else INK, "weight": "bold" if chosen else "normal"}
        _write(figure, box.middle, each.label, size=_SIZE, ha="center", **style)
        near = box.nearest(*dot.middle)
        if math.dist(near, dot.middle) > dot.width / 2 + _NEAR:
            line: dict[str, Any] = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0}
            inches = figure.dpi_scale_trans
            axes.annotate("", dot.middle, near, xycoords=inches, textcoords=inches, arrowprops=line, zorder=2)


def _dot(choice: Choice, x: float, y: float) -> Box:
    size = _CHOSEN if choice.plan.chosen else _DOT
    return Box(x - size / 2, y - size / 2, size, size)


def _along(line: Sequence[tuple[float, float]]) -> Iterator[Box]:
    """Yield small boxes along a line."""
    for (x, y), (next_x, next_y) in pairwise(line):
        knots = math.ceil(math.hypot(next_x - x, next_y - y) / _KNOTS)
        for knot in range(1, knots):
            share = knot / knots
            yield Box(x + share * (next_x - x) - 0.01, y + share * (next_y - y) - 0.01, 0.02, 0.02)


def _list(figure: Figure, plans: Sequence[Choice], lines: Sequence[Sequence[str]], y: float) -> None:
    """List the points with their figures, downwards from `y`."""
    for (x, align), head in zip(_COLUMNS, ("", "ms", "$ a million", "stages"), strict=True):
        _write(figure, (x, y), head, size=_SIZE, color=GREY, ha=align)
    for each, stages in zip(plans, lines, strict=True):
        y -= _LINE
        colour, weight = (HALO, "bold") if each.plan.chosen else (INK, "normal")
        figures = (str(each.number), f"{each.plan.ms:,.1f}", f"{each.usd:,.2f}")
        for (x, align), text in zip(_COLUMNS, figures, strict=False):
            _write(figure, (x, y), text, size=_SIZE, color=colour, ha=align, weight=weight)
        for number, line in enumerate(stages):
            y -= _LINE * (number > 0)
            size = fitting_size(line, _SIZE, _WIDTH - _COLUMNS[-1][0] - _RIGHT)
            _write(figure, (_COLUMNS[-1][0], y), line, size=size, color=colour)
