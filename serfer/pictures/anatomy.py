"""The numbers behind a plan's pictures: tensors that cross its cuts, and the tiles' regions on the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from serfer.core.costs.cost_model import gang_load
from serfer.core.geometry import Rect, Span
from serfer.core.plan import IMAGE, Plan, Shape, Stage, Tile
from serfer.core.units import FLOAT_BYTES

_KB = 1024


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that a stage passes on, or the image, whose stage is IMAGE; `readers` are the stages that read it."""

    stage: int
    shape: Shape
    readers: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of one image's share, as float32."""
        return FLOAT_BYTES * self.shape.elements


def tensors(plan: Plan) -> list[Tensor]:
    readers: dict[tuple[int, int], list[int]] = {}
    for number, stage in enumerate(plan.stages):
        for source in stage.inputs:
            readers.setdefault((source.stage, source.output), []).append(number)
    listed = [Tensor(IMAGE, plan.input, (0,))]
    for number, stage in enumerate(plan.stages[:-1]):
        listed += [
            Tensor(number, shape, tuple(readers.get((number, output), ())))
            for output, shape in enumerate(stage.outputs)
        ]
    return listed


def written(stage: Stage) -> int:
    return sum(stage.written(tile) for tile in stage.tiles)


def read(stage: Stage) -> int:
    """Return the bytes that a stage's tiles read for one image, what several of them read counted as often."""
    ranges = (part for tile in stage.tiles for piece in tile.pieces for part in piece.ranges)
    return sum(part.length(1) for part in ranges)


def pixel_bytes(plan: Plan) -> int:
    first = plan.stages[0]
    return sum(shape.channels * rect.area for tile in first.tiles for shape, rect in _sources(first, tile))


def _sources(stage: Stage, tile: Tile) -> list[tuple[Shape, Rect]]:
    return [(source.shape, rect) for source, rect in zip(stage.inputs, tile.inputs, strict=True)]


def halo(stage: Stage) -> float:
    """Return how much more its tiles read together than there is: 0.5 is half as much again."""
    whole = sum(source.shape.elements for source in stage.inputs)
    parts = (shape.channels * rect.area for tile in stage.tiles for shape, rect in _sources(stage, tile))
    return sum(parts) / whole - 1


def in_one_gang(plan: Plan, number: int) -> bool:
    gang = plan.gang_of(number)
    return gang is not None and number > gang.start


def handed_on(plan: Plan, number: int) -> str:
    if not in_one_gang(plan, number):
        return f"{count_bytes(written(plan.stages[number - 1]))} written, {count_bytes(read(plan.stages[number]))} read"
    gang = plan.gang_of(number)
    assert gang is not None  # noqa: S101 - in_one_gang has it
    exchange = gang_load(plan, gang).exchanges[number - gang.start - 1]
    return f"{count_bytes(int(exchange.bytes_sent.sum()))} of borders exchanged, the rest stays"


def stage_title(plan: Plan, number: int) -> str:
    gang, stage = plan.gang_of(number), plan.stages[number]
    name = f"stage {number}" + (f" (gang of {gang.start} to {gang.stop - 1})" if gang else "")
    return f"{name}  ·  {stage.grid}  ·  {plural(stage.grid.tiles, 'task')}"


def stage_lines(plan: Plan, number: int) -> list[str]:
    stage = plan.stages[number]
    first, last = stage.operators[0].kind, stage.operators[-1].kind
    extra = f", halo +{halo(stage):.0%}" if spread(stage) else ""
    weights = sum(function.weights.bytes for function in stage.functions)
    work = f"work x{stage.inflation:.2f}{extra}, weights {count_bytes(weights)}"
    if stage.predicted_ms is not None:
        work += f", {stage.predicted_ms:.0f} ms"
    return [f"{plural(len(stage.operators), 'operator')}, {first} to {last}", work]


def spread(stage: Stage) -> bool:
    return stage.grid.tiles > 1 and not stage.grid.columns


def count_bytes(count: float) -> str:
    return f"{count / _KB**2:.1f} MB" if count >= _KB**2 else f"{count / _KB:.1f} kB"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle in the image's pixels; its corners need not be whole numbers, nor lie on the image."""

    top: float
    left: float
    bottom: float
    right: float

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def width(self) -> float:
        return self.right - self.left

    def within(self, other: Area) -> Area:
        return Area(
            max(self.top, other.top),
            max(self.left, other.left),
            min(self.bottom, other.bottom),
            min(self.right, other.right),
        )


def scaled(rect: Rect, shape: Shape, onto: Shape) -> Area:
    """Return a rectangle of a map as the pixels of `onto` above which it lies, the map stretched over all of it."""
    down, across = onto.height / shape.height, onto.width / shape.width
    return Area(rect.rows.start * down, rect.cols.start * across, rect.rows.stop * down, rect.cols.stop * across)


def unclipped(tile: Tile, number: int) -> Rect:
    """Return what a tile would read of its stage's input `number` if the map had no edge."""
    rect, padding = tile.inputs[number], tile.padding[number]
    return Rect(
        Span(rect.rows.start - padding.top, rect.rows.stop + padding.bottom),
        Span(rect.cols.start - padding.left, rect.cols.stop + padding.right),
    )


@dataclass(frozen=True, slots=True)
class _Window:
    """The input rows of a stage's output rows `start` to `stop`: step * start + lead to step * stop + trail."""

    step: float
    lead: float
    trail: float

    def of(self, start: float, stop: float) -> tuple[float, float]:
        return self.step * start + self.lead, self.step * stop + self.trail


def _window(pairs: Sequence[tuple[Span, Span]]) -> _Window | None:
    """Return what (output, input) spans have in common; None where they are too few or follow no one rule."""
    known = sorted(set(pairs))
    steps = {(b[1].start - a[1].start) / (b[0].start - a[0].start) for a, b in pairwise(known) if a[0] != b[0]}
    if len(steps) != 1:
        return None
    step = steps.pop()
    leads = {source.start - step * target.start for target, source in known}
    trails = {source.stop - step * target.stop for target, source in known}
    return _Window(step, leads.pop(), trails.pop()) if len(leads) == len(trails) == 1 else None


def _windows(stage: Stage) -> tuple[_Window, _Window] | None:
    """Return how a stage's rows and columns lead from its one input to its one output, as its tiles show."""
    if len(stage.inputs) != 1 or len(stage.outputs) != 1 or not spread(stage):  # others read what several need
        return None
    pairs = [(tile.outputs[0], unclipped(tile, 0)) for tile in stage.tiles]
    down = _window([(target.rows, source.rows) for target, source in pairs])
    across = _window([(target.cols, source.cols) for target, source in pairs])
    return (down, across) if down and across else None


def traced(plan: Plan, stage: int, area: Area) -> Area | None:
    """Return which pixels lead to an area of what `stage` reads first, exactly; None where the tiles do not tell."""
    while stage > 0:
        source = plan.stages[stage].inputs[0]
        windows = _windows(plan.stages[source.stage])
        if windows is None:
            return None
        rows, cols = windows[0].of(area.top, area.bottom), windows[1].of(area.left, area.right)
        area, stage = Area(rows[0], cols[0], rows[1], cols[1]), source.stage
    return area


@dataclass(frozen=True, slots=True)
class View:
    """A tile over the image: its `own` share of the stage's output, and what it `reads`, both scaled to pixels.

    `padded` is what it reads with the padding beyond the map's edge, `neighbours` are the other tiles' shares, `pixels`
    is what it depends on through all stages before (for stage 0, and where the plan does not tell, None).
    """

    own: Area
    reads: Area
    padded: Area
    neighbours: tuple[Area, ...]
    pixels: Area | None


def view(plan: Plan, stage: int, number: int) -> View:
    part = plan.stages[stage]
    tile, source = part.tiles[number], part.inputs[0].shape
    needed, whole = unclipped(tile, 0), scaled(plan.input.whole, plan.input, plan.input)
    start = Area(
        tile.inputs[0].rows.start, tile.inputs[0].cols.start, tile.inputs[0].rows.stop, tile.inputs[0].cols.stop
    )
    pixels = traced(plan, stage, start) if stage else None
    return View(
        own=scaled(tile.outputs[0], part.outputs[0], plan.input),
        reads=scaled(tile.inputs[0], source, plan.input),
        padded=scaled(needed, source, plan.input),
        neighbours=tuple(
            scaled(other.outputs[0], part.outputs[0], plan.input)
            for index, other in enumerate(part.tiles)
            if index != number
        ),
        pixels=pixels.within(whole) if pixels else None,
    )


def middle_tile(stage: Stage) -> int:
    """Return the number of the tile in the middle of the grid, or the one left of it and above."""
    return (stage.grid.rows - 1) // 2 * stage.grid.cols + (stage.grid.cols - 1) // 2
