"""Charts below each other on matplotlib's axes: a colour for each curve, a legend, and where the numbers come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from serfer.pictures.render import COLOURS, GREY, INK, LIGHT, drawable, fitting_size, picture_settings, stage_colour
from serfer_bench.core.charts import Chart

_WIDTH, _CHART, _MARGIN = 9.0, 3.9, 0.3  # inches: of the page, the height of a chart, and the distance from the edges
_TITLE, _ENTRY, _LINE = 0.3, 0.205, 0.15  # inches: the height of the title, of a legend's line, and of a stamp's
_DASHES = ("-", "--", ":", "-.")
_MANY_DECADES = 4
_AIR = 1.04


def charts_figure(title: str, charts: Sequence[Chart], legend: Sequence[str], stamp: Sequence[str]) -> Figure:
    above = _MARGIN + _TITLE + _ENTRY * len(legend)
    below = _LINE * len(stamp) + (_MARGIN if stamp else 0.0)
    height = above + _CHART * len(charts) + below
    with picture_settings():
        rect = (0.0, below / height, 1.0, 1.0 - (above + below) / height)
        layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=_MARGIN / 2, rect=rect)
        figure = Figure(figsize=(_WIDTH, height), layout=layout)
        names = list(dict.fromkeys(curve.name for chart in charts for curve in chart.curves))
        for axes, chart in zip(figure.subplots(len(charts), 1, squeeze=False)[:, 0], charts, strict=True):
            _chart(axes, chart, names)
        left, top = _MARGIN / _WIDTH, 1.0 - _MARGIN / height
        size = fitting_size(title, 13, _WIDTH - 2 * _MARGIN, bold=True)
        figure.text(left, top, drawable(title, bold=True), size=size, weight="bold", color=INK, va="center_baseline")
        handles = [_handle(names, line) for line in legend]
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (left, top - 0.6 * _TITLE / height)}
        figure.legend(handles=handles, borderaxespad=0.0, borderpad=0.0, fontsize=8, **place)
        for number, line in enumerate(reversed(stamp)):
            size = fitting_size(line, 7, _WIDTH - 2 * _MARGIN)
            figure.text(left, (_MARGIN / 2 + _LINE * number) / height, drawable(line), size=size, color=GREY)
    return figure


def _handle(names: Sequence[str], line: str) -> Artist:
    known = max((name for name in names if line.startswith(name)), key=len, default=None)
    if known is None:
        return Patch(color=LIGHT, label=drawable(line))
    return Line2D([], [], linewidth=2.2, label=drawable(line), **_look(names, known))


def _look(names: Sequence[str], name: str) -> dict[str, Any]:
    number = names.index(name)
    return {"color": stage_colour(number), "linestyle": _DASHES[number // COLOURS % len(_DASHES)]}


def _chart(axes: Axes, chart: Chart, names: Sequence[str]) -> None:
    for begin, end in chart.bands:
        axes.axvspan(begin, end, color=LIGHT, linewidth=0, zorder=0)
    for curve in chart.curves:
        if curve.points:
            lone = chart.dots or len(curve.points) == 1
            style: dict[str, Any] = {"marker": "s", "markersize": 2, "alpha": 0.6, "linestyle": "none"}
            if not lone:
                style = {"linewidth": 1.1} | ({"linestyle": _DASHES[1]} if curve.dashed else {})
            axes.plot(*zip(*curve.points, strict=True), **{**_look(names, curve.name), **style})
    axes.set_title(f"{chart.title} ({_label(chart.y_label, log=chart.y_log)})", loc="left", fontsize=9, weight="bold")
    axes.set_xlabel(_label(chart.x_label, log=chart.x_log), loc="right", fontsize=8, color=GREY)
    points = [point for curve in chart.curves for point in curve.points]
    if chart.x_log:
        log_axis(axes, "x", [x for x, _ in points])
    else:
        axes.set_xlim(0.0, _end((x for x, _ in points), chart.x_max))
    if chart.y_log:
        log_axis(axes, "y", [y for _, y in points])
    else:
        axes.set_ylim(chart.y_min, _end((y for _, y in points), chart.y_max))
    plain_ticks(axes)


def _label(label: str, *, log: bool) -> str:
    return f"{label}, logarithmic scale" if log else label


def _end(values: Iterable[float], end: float | None) -> float:
    return end if end is not None else max(values, default=1.0) * _AIR or 1.0


def log_axis(axes: Axes, name: Literal["x", "y"], values: Sequence[float]) -> None:
    axes.set(**{f"{name}scale": "log"})
    axis = axes.xaxis if name == "x" else axes.yaxis
    few = max(values) <= min(values) * 10**_MANY_DECADES
    axis.set_major_locator(LogLocator(10.0, subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axis.set_minor_locator(NullLocator())


def plain_ticks(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.grid(color=LIGHT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, color=GREY)
    for spine in axes.spines.values():
        spine.set_color(GREY)
