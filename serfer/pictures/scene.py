"""Pictures as lists of shapes, in inches from the top left corner; `serfer.pictures.render` puts them on paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

INK, GREY, LIGHT, WHITE = "#1a1a1a", "#666666", "#d9d9d9", "#ffffff"
HALO, PIXELS = "#d55e00", "#cc00aa"
_STAGES = ("#0072b2", "#007a5a", "#a04a8c", "#8a6500", "#5a4fcf", "#a83232", "#2f6f8f", "#4d6b1f")
COLOURS = len(_STAGES)


def stage_colour(stage: int) -> str:
    """Return the colour of a stage."""
    return _STAGES[stage % len(_STAGES)]


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle; `fill` and `edge` may be None, `alpha` is that of the fill."""

    x: float
    y: float
    width: float
    height: float
    fill: str | None = None
    edge: str | None = None
    line: float = 0.8
    dash: str = "-"
    alpha: float = 1.0
    hatch: str = ""
    layer: int = 2
    radius: float = 0.0


@dataclass(frozen=True, slots=True)
class Path:
    """A line through points, with an arrow at its end where `arrow`."""

    points: tuple[tuple[float, float], ...]
    colour: str = GREY
    line: float = 0.9
    dash: str = "-"
    arrow: bool = False
    layer: int = 1


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text, as high as `size` points or less, so that it is no wider than `width` inches."""

    x: float
    y: float
    text: str
    size: float = 8.0
    colour: str = INK
    align: str = "left"
    bold: bool = False
    width: float | None = None
    layer: int = 4


@dataclass(frozen=True, slots=True)
class Raster:
    """An image, (H, W, 3) uint8, of which `clip` (x, y, width, height) is shown."""

    x: float
    y: float
    width: float
    height: float
    pixels: NDArray[np.uint8]
    alpha: float = 1.0
    clip: tuple[float, float, float, float] | None = None
    layer: int = 1


Shape = Block | Path | Text | Raster


@dataclass(slots=True)
class Scene:
    """Shapes on a page of width x height inches."""

    width: float
    height: float
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        """Put shapes onto the page."""
        self.shapes.extend(shapes)


def moved(shape: Shape, x: float, y: float) -> Shape:
    """Return a shape that lies elsewhere."""
    if isinstance(shape, Path):
        return replace(shape, points=tuple((left + x, top + y) for left, top in shape.points))
    if isinstance(shape, Raster) and shape.clip:
        left, top, width, height = shape.clip
        return replace(shape, x=shape.x + x, y=shape.y + y, clip=(left + x, top + y, width, height))
    return replace(shape, x=shape.x + x, y=shape.y + y)


def stacked(scenes: Sequence[Scene]) -> Scene:
    """Put scenes below each other."""
    whole = Scene(max(scene.width for scene in scenes), sum(scene.height for scene in scenes))
    top = 0.0
    for scene in scenes:
        whole.add(*_all_moved(scene.shapes, top))
        top += scene.height
    return whole


def _all_moved(shapes: Iterable[Shape], y: float) -> list[Shape]:
    return [moved(shape, 0.0, y) for shape in shapes]
