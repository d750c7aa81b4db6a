"""The picture of tiles: what one of them computes and reads, over the image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Rect
from serfer.core.plan import IMAGE, Plan, Stage
from serfer.pictures.anatomy import Area, View, count_bytes, halo, middle_tile, plural, scaled, spread, view
from serfer.pictures.scene import (
    GREY,
    HALO,
    INK,
    LIGHT,
    PIXELS,
    WHITE,
    Block,
    Path,
    Raster,
    Scene,
    Shape,
    Text,
    moved,
    stage_colour,
)

_MARGIN, _SIDE, _AIR = 0.25, 2.9, 0.4
_TITLE, _CAPTION, _LINE = 0.8, 0.3, 0.17
_MOST_MARGIN = 0.5
_ACROSS = 4
_LEAST_WIDTH = 7.0
_MOST_GROUPS = 32
_SIDES = ("top", "left", "bottom", "right")
_STEP = 32


def tiles_scene(plan: Plan, image: NDArray[np.uint8] | None) -> Scene:
    """Draw, for each stage that is spread, one of its tiles over the image, or the groups of its vector's values."""
    panels = _panels(plan, _drawable(plan, image))
    across = min(_ACROSS, max(1, len(panels)))
    rows = [panels[start : start + across] for start in range(0, len(panels), across)]
    width = max([sum(panel.width + _AIR for panel in row) - _AIR for row in rows] + [_LEAST_WIDTH - 2 * _MARGIN])
    height = sum(max(panel.height for panel in row) + _AIR for row in rows)
    scene = Scene(width + 2 * _MARGIN, _TITLE + height + 1.75)
    scene.add(*_title(plan, single=[number for number, stage in enumerate(plan.stages) if stage.grid.tiles == 1]))
    top = _TITLE
    for row in rows:
        left = _MARGIN
        for panel in row:
            scene.add(*(moved(shape, left, top) for shape in panel.shapes))
            left += panel.width + _AIR
        top += max(panel.height for panel in row) + _AIR
    scene.add(*_legend(top, scene.width))
    return scene


def _panels(plan: Plan, pixels: NDArray[np.uint8]) -> list[Scene]:
    """Draw the panels, those of tiles with the image at the same height."""
    tiled = [(number, stage) for number, stage in enumerate(plan.stages) if spread(stage)]
    frame = _Frame.around(plan, [view(plan, number, middle_tile(stage)) for number, stage in tiled])
    return [
        _tile_panel(plan, number, pixels, frame) if spread(stage) else _vector_panel(plan, number, frame.before)
        for number, stage in enumerate(plan.stages)
        if stage.grid.tiles > 1
    ]


def _title(plan: Plan, single: Sequence[int]) -> list[Shape]:
    text = "one tile of each stage that is spread, over the image"
    if single:
        numbers = ", ".join(map(str, single))
        text += f"; stages {numbers} run as one task" if len(single) > 1 else f"; stage {numbers} runs as one task"
    return [
        Text(_MARGIN, 0.3, f"{plan.model}: tiles and their halos", 13, bold=True),
        Text(_MARGIN, 0.56, text, 8, GREY),
    ]


def _drawable(plan: Plan, image: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    """Return the image as (H, W, 3) in red, green, blue; where there is none, a gradient with a grid on it."""
    if image is None:
        rows, cols = np.mgrid[: plan.input.height, : plan.input.width]
        checks = 24 * ((rows // _STEP + cols // _STEP) % 2)
        red, blue = 90 + 120 * cols / plan.input.width, 210 - 120 * rows / plan.input.height
        return np.stack([red + checks, 140 + checks + 0 * red, blue + checks], axis=-1).clip(0, 255).astype(np.uint8)
    colours = np.atleast_3d(image)
    return np.ascontiguousarray(colours if colours.shape[-1] == 3 else np.repeat(colours[..., :1], 3, axis=-1))  # noqa: PLR2004 - RGB


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the image lies in its panel: below and right of `before` inches for padding, and `after` inches around."""

    before: float
    after: float
    scale: float
    height: float
    width: float

    @classmethod
    def around(cls, plan: Plan, views: Sequence[View]) -> _Frame:
        """Return the frame that shows the padding of all views, as far as there is room; all panels have the same."""
        scale = _SIDE / max(plan.input.height, plan.input.width)
        parts = [seen.padded for seen in views]
        before = max((-min(part.top, part.left, 0.0) for part in parts), default=0.0)
        ends = [(part.bottom - plan.input.height, part.right - plan.input.width) for part in parts]
        after = max((max(*end, 0.0) for end in ends), default=0.0)
        rooms = [min(_MOST_MARGIN, scale * room) + 0.04 for room in (before, after)]
        return cls(rooms[0], rooms[1], scale, plan.input.height * scale, plan.input.width * scale)

    @property
    def bottom(self) -> float:
        """The top of the captions."""
        return _CAPTION + self.before + self.height + self.after + 0.04

    def place(self, area: Area) -> tuple[float, float, float, float]:
        """Return an area's x, y, width and height in the panel, cut off at its border."""
        before, after = self.before / self.scale, self.after / self.scale
        shown = area.within(Area(-before, -before, self.height / self.scale + after, self.width / self.scale + after))
        left, top = self.before + shown.left * self.scale, _CAPTION + self.before + shown.top * self.scale
        return left, top, shown.width * self.scale, shown.height * self.scale


def _tile_panel(plan: Plan, number: int, pixels: NDArray[np.uint8], frame: _Frame) -> Scene:
    """Draw one tile of a stage over the image: its share, what it reads, and the padding beyond the edge."""
    stage = plan.stages[number]
    tile = middle_tile(stage)
    seen = view(plan, number, tile)
    captions = _captions(plan, number, tile, seen)
    scene = Scene(frame.before + frame.width + frame.after, frame.bottom + _LINE * len(captions))
    title = f"stage {number}:  {stage.grid}, tile {tile} of {stage.grid.tiles}"
    scene.add(Text(frame.before, 0.14, title, 10, stage_colour(number), bold=True, width=frame.width))
    whole = frame.place(scaled(plan.input.whole, plan.input, plan.input))
    scene.add(Block(*frame.place(seen.padded), "#f2f2f2", GREY, 0.5, hatch="////", layer=0))
    scene.add(Block(*whole, WHITE, layer=1), Raster(*whole, pixels, alpha=0.3, layer=2))
    scene.add(Raster(*whole, pixels, alpha=0.65, clip=frame.place(seen.reads), layer=3))
    scene.add(Raster(*whole, pixels, clip=frame.place(seen.own), layer=4))
    scene.add(*_outlines(number, seen, frame))
    for index, caption in enumerate(captions):
        scene.add(Text(frame.before, frame.bottom + _LINE * (index + 0.5), caption, 7.5, width=frame.width))
    return scene


def _outlines(number: int, seen: View, frame: _Frame) -> Iterator[Shape]:
    for other in seen.neighbours:
        yield Block(*frame.place(other), None, WHITE, 2.2, layer=5)
        yield Block(*frame.place(other), None, INK, 1.1, "--", layer=6)
    yield Block(*frame.place(seen.reads), None, WHITE, 3.4, layer=7)
    yield Block(*frame.place(seen.reads), None, HALO, 2.2, layer=8)
    if seen.pixels:
        yield Block(*frame.place(seen.pixels), None, PIXELS, 1.6, ":", layer=9)
    yield Block(*frame.place(seen.own), None, stage_colour(number), 2.4, layer=10)


def _captions(plan: Plan, number: int, tile: int, seen: View) -> list[str]:
    stage = plan.stages[number]
    part, source, target = stage.tiles[tile], stage.inputs[0].shape, stage.outputs[0]
    lines = [
        f"computes {_size(part.outputs[0])} of the {target.height}x{target.width} map it writes",
        f"reads {_size(part.inputs[0])} of {_source(stage)}",
        f"all tiles: halo +{halo(stage):.0%}, work \u00d7{stage.inflation:.2f}",
    ]
    if len(stage.inputs) > 1:
        others = ", ".join(
            f"{_size(rect)} of {given.shape}" for given, rect in zip(stage.inputs[1:], part.inputs[1:], strict=True)
        )
        lines.insert(2, f"and {others}")
    if seen.pixels:
        lines.append(f"depends on {seen.pixels.height:.0f}x{seen.pixels.width:.0f} pixels through the stages before")
    padding = part.padding[0]
    if sides := [side for side in _SIDES if getattr(padding, side) > 0]:
        where = "all sides" if len(sides) == len(_SIDES) else ", ".join(sides)
        reach = max(getattr(padding, side) for side in sides)
        unit = "pixels" if source == plan.input else "positions of that map"
        lines.append(f"reaches {reach} {unit} beyond the edge: {where}")
    return lines


def _source(stage: Stage) -> str:
    source = stage.inputs[0]
    size = f"{source.shape.height}x{source.shape.width}"
    return f"the {size} pixels" if source.stage == IMAGE else f"the {size} map of stage {source.stage}"


def _size(rect: Rect) -> str:
    return f"{rect.rows.size}x{rect.cols.size}"


def _vector_panel(plan: Plan, number: int, top: float) -> Scene:
    """Draw the groups that a vector's values are cut into: each task reads all of the input and computes its group."""
    stage = plan.stages[number]
    source, target, colour = stage.inputs[0].shape, stage.outputs[0], stage_colour(number)
    captions, top = _vector_captions(stage), top + _CAPTION
    scene = Scene(_SIDE, top + 2.0 + _LINE * len(captions))
    title = f"stage {number}:  {stage.grid}, {stage.grid.tiles} groups of a vector"
    scene.add(Text(0, 0.14, title, 10, colour, bold=True, width=_SIDE))
    scene.add(Text(0, top + 0.1, f"input {source}: {source.elements} values", 7.5))
    scene.add(Block(0, top + 0.22, _SIDE, 0.28, HALO, HALO, alpha=0.35))
    for index, tile in enumerate(stage.tiles[:_MOST_GROUPS]):
        span, scale = tile.outputs[0].cols, _SIDE / target.width
        scene.add(*_group(span.start * scale, top + 1.35, span.size * scale, str(span.size), None if index else colour))
    first = stage.tiles[0].outputs[0].cols.size * _SIDE / target.width
    scene.add(Path(((0.0, top + 0.5), (0.0, top + 1.35)), HALO), Path(((_SIDE, top + 0.5), (first, top + 1.35)), HALO))
    note = f"output: {target.width} values, those of task 0 in full colour"
    scene.add(Text(0, top + 1.83, note, 7.5, width=_SIDE))
    for index, caption in enumerate(captions):
        scene.add(Text(0, top + 2.0 + _LINE * (index + 0.5), caption, 7.5, width=_SIDE))
    return scene


def _group(x: float, y: float, width: float, size: str, colour: str | None) -> Iterator[Shape]:
    """Draw one group of values; in colour, it is the one that is explained."""
    yield Block(x, y, width, 0.35, colour or LIGHT, WHITE, 1.5)
    yield Text(x + width / 2, y + 0.18, size, 7.5, WHITE if colour else INK, "center", width=width * 0.8)


def _vector_captions(stage: Stage) -> list[str]:
    weights = sum(function.weights.bytes for function in stage.functions)
    return [
        f"each of the {stage.grid.tiles} tasks reads the whole input",
        "and multiplies it with its own columns of the weights",
        f"weights: {count_bytes(weights)} in {plural(len(stage.functions), 'function')}",
        f"work of all tasks: \u00d7{stage.inflation:.2f}",
    ]


def _legend(y: float, width: float) -> Iterator[Shape]:
    """Explain the outlines, below the panels."""
    signs = [
        (
            Block(0, 0, 0.4, 0.2, None, stage_colour(0), 2.4),
            "the tile's own share of the stage's output (the stage's colour)",
        ),
        (
            Block(0, 0, 0.4, 0.2, None, HALO, 2.2),
            "what it reads of the stage's input: its share and the halo around it",
        ),
        (Block(0, 0, 0.4, 0.2, None, INK, 1.1, "--"), "the shares of the other tiles"),
        (
            Block(0, 0, 0.4, 0.2, "#f2f2f2", GREY, 0.5, hatch="////"),
            "padding, where it reaches beyond the map's edge (as much as there is room for)",
        ),
        (Block(0, 0, 0.4, 0.2, None, PIXELS, 1.6, ":"), "the pixels that all of this depends on, stage by stage"),
    ]
    for index, (sign, text) in enumerate(signs):
        line = y + 0.26 * index
        yield moved(sign, _MARGIN, line)
        yield Text(_MARGIN + 0.5, line + 0.1, text, 7.5, GREY)
    note = "maps of later stages are stretched over the image: their rows and columns lie above the pixels they show"
    yield Text(_MARGIN, y + 0.26 * len(signs) + 0.1, note, 7.5, GREY, width=width - 2 * _MARGIN)
