"""The picture of latency against dollars: what a plan competed with, and which it is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from textwrap import wrap

from serfer.core.plan import Plan
from serfer.pictures.pareto import Box, Choice, Scale, choices, placed, scale_of
from serfer.pictures.scene import GREY, HALO, INK, LIGHT, WHITE, Block, Path, Scene, Shape, Text, stage_colour

_WIDTH, _LEFT, _TOP, _RIGHT, _CHART = 9.0, 0.8, 1.2, 0.35, 4.2
_DOT, _CHOSEN = 0.12, 0.2
_LETTER, _LINE = 0.075, 0.15  # inches that a letter and a line of a label take, bold ones too
_BLUE = stage_colour(0)
_KEY_LINE, _KEY_LETTERS = 0.19, 92
_NEAR = 0.15  # inches from which on a line leads from a point to its label
_ROPE = 0.08  # inches between the boxes that keep labels off a line
_COLUMNS = (_LEFT, _LEFT + 0.75, _LEFT + 1.65, _LEFT + 2.0)

_Line = tuple[tuple[float, float], ...]


def pareto_scene(plan: Plan) -> Scene:
    """Draw what a plan competed with as points, numbered, with a list of them below."""
    found = choices(plan)
    across, down = scale_of([each.plan.ms for each in found]), scale_of([each.usd for each in found])
    page = Box(_LEFT, _TOP, _WIDTH - _LEFT - _RIGHT, _CHART)
    dots = [_dot(each, across, down, page) for each in found]
    lines = [_wrapped(each.plan.stages) for each in found]
    key = _TOP + _CHART + 1.0
    scene = Scene(_WIDTH, key + _KEY_LINE * (sum(map(len, lines)) + 1) + 0.3)
    scene.add(*_title(plan), *_axes(across, down, page))
    line = tuple(_middle(dot) for each, dot in zip(found, dots, strict=True) if each.best)
    scene.add(*_frontier(line), *_points(found, dots), *_labels(found, dots, [*_rope(line)], page))
    scene.add(*_signs(key - 0.38), *_key(found, lines, key))
    return scene


def _wrapped(stages: str) -> list[str]:
    """Break a list of stages before its "then"s."""
    return wrap(re.sub(" (?!then )", "\N{NO-BREAK SPACE}", stages), _KEY_LETTERS)


def _title(plan: Plan) -> list[Shape]:
    text = f"one warm query over {plan.store}, as predicted: lower is cheaper, further left is faster"
    return [
        Text(0.35, 0.3, f"{plan.model}: latency against dollars", 13, bold=True, width=_WIDTH - 0.7),
        Text(0.35, 0.56, text, 8, GREY, width=_WIDTH - 0.7),
        Text(0.35, 0.98, "dollars for a million queries", 8, GREY),
    ]


def _axes(across: Scale, down: Scale, page: Box) -> Iterator[Shape]:
    """Draw the frame, and round values with their lines."""
    right, bottom = page.left + page.width, page.top + page.height
    yield Block(page.left, page.top, page.width, page.height, None, GREY, 0.8, layer=1)
    for tick in across.ticks:
        x = page.left + page.width * across.at(tick)
        yield Path(((x, page.top), (x, bottom)), LIGHT, 0.6, layer=0)
        yield Text(x, bottom + 0.14, f"{tick:,.6g}", 8, align="center")
    for tick in down.ticks:
        y = bottom - page.height * down.at(tick)
        yield Path(((page.left, y), (right, y)), LIGHT, 0.6, layer=0)
        yield Text(page.left - 0.07, y, f"{tick:,.6g}", 8, align="right", width=page.left - 0.1)
    kinds = " and ".join(name for name, scale in (("latency", across), ("dollars", down)) if scale.log)
    note = f"milliseconds{f' (logarithmic scale of {kinds})' if kinds else ''}"
    yield Text(right, bottom + 0.34, note, 8, GREY, "right")


def _dot(choice: Choice, across: Scale, down: Scale, page: Box) -> Box:
    size = _CHOSEN if choice.plan.chosen else _DOT
    x = page.left + page.width * across.at(choice.plan.ms)
    y = page.top + page.height * (1 - down.at(choice.usd))
    return Box(x - size / 2, y - size / 2, size, size)


def _frontier(line: _Line) -> Iterator[Shape]:
    """Join the points that none beats, from the fastest to the cheapest."""
    if len(line) > 1:
        yield Path(line, _BLUE, 1.2, layer=1)


def _rope(line: _Line) -> Iterator[Box]:
    """Yield small boxes along a line."""
    for (x, y), (next_x, next_y) in pairwise(line):
        knots = math.ceil(math.hypot(next_x - x, next_y - y) / _ROPE)
        for knot in range(1, knots):
            share = knot / knots
            yield Box(x + share * (next_x - x) - 0.01, y + share * (next_y - y) - 0.01, 0.02, 0.02)


def _points(found: Sequence[Choice], dots: Sequence[Box]) -> Iterator[Shape]:
    for each, dot in zip(found, dots, strict=True):
        yield _round(each, dot.left, dot.top, dot.width)


def _round(choice: Choice, left: float, top: float, size: float) -> Block:
    """Draw a point: full where the plan fits its packages, larger and of another colour where it is the chosen one."""
    colour = HALO if choice.plan.chosen else _BLUE if choice.best else GREY
    fill = colour if choice.plan.fits else WHITE
    return Block(left, top, size, size, fill, colour, 1.2, radius=size / 2 * 0.999, layer=3)


def _labels(found: Sequence[Choice], dots: Sequence[Box], line: Sequence[Box], page: Box) -> Iterator[Shape]:
    """Write each point's label beside it, or further off with a line to it."""
    sizes = [(_LETTER * len(each.label), _LINE) for each in found]
    for each, dot, box in zip(found, dots, placed(dots, sizes, line, page), strict=True):
        x, y = _middle(box)
        yield Text(x, y, each.label, 8, HALO if each.plan.chosen else INK, "center", each.plan.chosen, box.width)
        near = _edge(box, dot)
        if math.dist(near, _middle(dot)) > dot.width / 2 + _NEAR:
            yield Path((_middle(dot), near), GREY, 0.6, layer=2)


def _middle(box: Box) -> tuple[float, float]:
    return box.left + box.width / 2, box.top + box.height / 2


def _edge(box: Box, dot: Box) -> tuple[float, float]:
    """Return the point of a label's rectangle that is nearest to a dot."""
    x, y = _middle(dot)
    return min(max(x, box.left), box.left + box.width), min(max(y, box.top), box.top + box.height)


def _signs(y: float) -> Iterator[Shape]:
    """Explain the points."""
    signs = (
        ("chosen", HALO, HALO, _CHOSEN, 0.85),
        ("none that fits is faster and cheaper", _BLUE, _BLUE, _DOT, 2.6),
        ("beaten in both", GREY, GREY, _DOT, 1.3),
        ("does not fit a function's package", GREY, WHITE, _DOT, 2.5),
    )
    x = _LEFT
    for words, edge, fill, size, width in signs:
        yield Block(x, y - size / 2, size, size, fill, edge, 1.2, radius=size / 2 * 0.999, layer=3)
        yield Text(x + 0.27, y, words, 8, GREY, width=width - 0.3)
        x += width


def _key(found: Sequence[Choice], lines: Sequence[Sequence[str]], top: float) -> Iterator[Shape]:
    """List the points with their figures."""
    y = top
    heads = ("", "ms", "$ a million", "stages")
    for x, head, align in zip(_COLUMNS, heads, ("left", "right", "right", "left"), strict=True):
        yield Text(x, y, head, 8, GREY, align)
    for each, text in zip(found, lines, strict=True):
        y += _KEY_LINE
        colour = HALO if each.plan.chosen else INK
        figures = (str(each.number), f"{each.plan.ms:,.1f}", f"{each.usd:,.2f}")
        for x, figure, align in zip(_COLUMNS, figures, ("left", "right", "right"), strict=False):
            yield Text(x, y, figure, 8, colour, align, bold=each.plan.chosen)
        for number, line in enumerate(text):
            y += _KEY_LINE * (number > 0)
            yield Text(_COLUMNS[-1], y, line, 8, colour, width=_WIDTH - _COLUMNS[-1] - _RIGHT)
