"""The picture of a load: charts below each other, a colour for each system, and where the numbers come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from serfer.pictures.latency import Chart, Point
from serfer.pictures.pareto import Box
from serfer.pictures.scene import GREY, LIGHT, Block, Path, Scene, Shape, Text, stage_colour

_WIDTH, _LEFT, _RIGHT, _TOP = 9.0, 0.9, 0.35, 0.95
_CHART, _BETWEEN, _BELOW = 3.2, 0.95, 0.45
_DOT = 0.035


def latency_scene(title: str, charts: Sequence[Chart], keys: Sequence[str], stamp: Sequence[str]) -> Scene:
    """Draw charts with a title, a line of the key for each of the systems in `keys`, and lines of the stamp."""
    names = list(dict.fromkeys(curve.name for chart in charts for curve in chart.curves))
    top = _TOP + 0.2 * len(keys)
    bottom = top + len(charts) * (_CHART + _BETWEEN)
    scene = Scene(_WIDTH, bottom + _BELOW)
    scene.add(Text(0.35, 0.3, title, 13, bold=True, width=_WIDTH - 0.7), *_key(names, keys))
    for number, chart in enumerate(charts):
        page = Box(_LEFT, top + number * (_CHART + _BETWEEN), _WIDTH - _LEFT - _RIGHT, _CHART)
        scene.add(*_axes(chart, page), *_curves(chart, names, page))
    for number, line in enumerate(stamp):
        scene.add(Text(0.35, bottom + 0.17 * number, line, 7, GREY, width=_WIDTH - 0.7))
    return scene


def _key(names: Sequence[str], keys: Sequence[str]) -> Iterator[Shape]:
    for number, words in enumerate(keys):
        y = 0.58 + 0.2 * number
        known = [index for index, name in enumerate(names) if words.startswith(name)]
        yield Block(0.37, y - 0.05, 0.22, 0.1, stage_colour(known[-1]) if known else LIGHT)
        yield Text(0.7, y, words, 8, width=_WIDTH - 1.1)


def _axes(chart: Chart, page: Box) -> Iterator[Shape]:
    """Draw the frame, round values with their lines, and what the axes mean."""
    right, bottom = page.left + page.width, page.top + page.height
    yield Block(page.left, page.top, page.width, page.height, None, GREY, 0.8, layer=1)
    yield Text(
        page.left, page.top - 0.15, f"{chart.title} ({_words(chart.down_name, log=chart.down.log)})", 9, bold=True
    )
    for tick in chart.across.ticks:
        x = page.left + page.width * chart.across.at(tick)
        yield Path(((x, page.top), (x, bottom)), LIGHT, 0.6, layer=0)
        yield Text(x, bottom + 0.14, f"{tick:,.6g}", 8, align="center")
    for tick in chart.down.ticks:
        y = bottom - page.height * chart.down.at(tick)
        yield Path(((page.left, y), (right, y)), LIGHT, 0.6, layer=0)
        yield Text(page.left - 0.07, y, f"{tick:,.6g}", 8, align="right", width=page.left - 0.1)
    yield Text(right, bottom + 0.34, _words(chart.across_name, log=chart.across.log), 8, GREY, "right")


def _words(name: str, *, log: bool) -> str:
    return f"{name}, logarithmic scale" if log else name


def _curves(chart: Chart, names: Sequence[str], page: Box) -> Iterator[Shape]:
    for curve in chart.curves:
        colour = stage_colour(names.index(curve.name))
        points = [_place(point, chart, page) for point in curve.points]
        if chart.dots or len(points) == 1:
            yield from (_dot(point, colour) for point in points)
        elif points:
            yield Path(tuple(points), colour, 1.1, layer=2)


def _dot(point: Point, colour: str) -> Block:
    return Block(point[0] - _DOT / 2, point[1] - _DOT / 2, _DOT, _DOT, colour, alpha=0.6)


def _place(point: Point, chart: Chart, page: Box) -> Point:
    across, down = chart.across.at(point[0]), chart.down.at(point[1])
    return page.left + page.width * across, page.top + page.height * (1 - down)
