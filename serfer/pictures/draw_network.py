"""The picture of a network with its cuts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path as File

from serfer.core.plan import Plan, Stage
from serfer.pictures.anatomy import (
    Tensor,
    count_bytes,
    count_macs,
    halo,
    handed_on,
    pixel_bytes,
    plural,
    spread,
    stage_title,
    tensors,
)
from serfer.pictures.layout import BOX_HEIGHT, BOX_WIDTH, CONTINUED, GUTTER, MARGIN, ROW, Layout, arrange
from serfer.pictures.network import Box, fold, read_steps
from serfer.pictures.scene import GREY, INK, WHITE, Block, Path, Scene, Shape, Text, stage_colour

_TITLE, _FOOT = 0.95, 0.95
_HEADER, _CUT_LINE, _AIR = 0.44, 0.17, 0.12
_STRIP = 0.24
_MOST_TENSORS = 4
_TRACK = 0.022
_TRACKS = 3
_LEAST_WIDTH = 7.0


def network_scene(plan: Plan, directory: File) -> Scene:
    """Draw the operators of a plan, stage by stage, with the tensors that cross its cuts."""
    boxes = fold(read_steps(plan, directory))
    cuts = [_cut(plan, number) for number in range(len(plan.stages))]
    bands = [_AIR + _CUT_LINE * len(cut) + _HEADER + _AIR for cut in cuts]
    layout = arrange(boxes, bands, _TITLE)
    scene = Scene(max(layout.width + MARGIN, _LEAST_WIDTH), layout.height + ROW + _FOOT)
    scene.add(*_title(plan), *_regions(plan, boxes, layout))
    for number, box in enumerate(boxes):
        for source in box.reads:
            scene.add(_edge(layout, boxes, source, number))
        scene.add(*_box(layout, number, box))
    for number, cut in enumerate(cuts):
        scene.add(*_band(plan, number, cut, layout))
    scene.add(*_end(plan, layout, boxes), *_legend(scene, layout, boxes))
    return scene


def _title(plan: Plan) -> list[Shape]:
    text = f"{plan.model}: {plural(len(plan.stages), 'stage')}, {plural(plan.tasks, 'task')} for one image"
    return [
        Text(MARGIN, 0.3, text, 13, bold=True),
        Text(MARGIN, 0.56, f"weights: {plan.weights}; read from top to bottom, column by column", 8, GREY),
    ]


def _regions(plan: Plan, boxes: Sequence[Box], layout: Layout) -> Iterator[Shape]:
    """Colour what belongs to a stage, in each column, and say where a column goes on with one."""
    stages = dict(zip(layout.row_of, (box.stage for box in boxes), strict=True))
    for (column, stage), rows in groupby(sorted(layout.rows), lambda row: (layout.rows[row].column, stages[row])):
        numbers = list(rows)
        top, bottom = layout.rows[numbers[0]].top, layout.rows[numbers[-1]].bottom
        band = layout.bands[stage]
        top = band.bottom - _AIR - _HEADER if band.column == column else top - CONTINUED
        place = layout.columns[column]
        yield Block(place.left, top, place.width, bottom - top, stage_colour(stage), alpha=0.12, layer=0)
        if band.column != column:
            yield Block(place.left, top, place.width, _STRIP, stage_colour(stage), layer=3)
            note = f"stage {stage}, continued:  {plan.stages[stage].grid}"
            yield Text(place.left + 0.1, top + _STRIP / 2, note, 8, WHITE, bold=True, width=place.width - 0.2)


def _cut(plan: Plan, number: int) -> list[str]:
    """Return the lines above a stage: the tensors that cross its cut, and what that costs in bytes."""
    if not number:
        return [f"image {plan.input}, sent with the calls: {count_bytes(pixel_bytes(plan))} of pixels"]
    crossing = [tensor for tensor in tensors(plan) if tensor.crosses(number)]
    lines = [_crossing(tensor, number) for tensor in crossing[:_MOST_TENSORS]]
    if len(crossing) > _MOST_TENSORS:
        lines.append(f"and {len(crossing) - _MOST_TENSORS} more tensors")
    return [*lines, handed_on(plan, number)]


def _crossing(tensor: Tensor, number: int) -> str:
    text = f"{tensor.shape}, {count_bytes(tensor.bytes)}"
    if tensor.stage != number - 1:
        text += f", from stage {tensor.stage}"
    later = [reader for reader in tensor.readers if reader >= number]
    if later != [number]:
        text += f", to stage {' and '.join(map(str, later))}"
    return text


def _band(plan: Plan, number: int, cut: Sequence[str], layout: Layout) -> Iterator[Shape]:
    """Draw what is between two stages: the cut, and the head of the stage below it."""
    place, colour, stage = layout.bands[number], stage_colour(number), plan.stages[number]
    column = layout.columns[place.column]
    left, width, top = column.left, column.width, place.top + _AIR
    middle = left + width / 2
    height = _CUT_LINE * len(cut)
    yield Block(left, top, width, height, WHITE, layer=3)
    yield Path(((left, top), (left + width, top)), INK, 1.0, "--", layer=3)
    for index, line in enumerate(cut):
        yield Text(middle, top + _CUT_LINE * (index + 0.5), line, 7.5, align="center", width=width - 0.1)
    yield Block(left, top + height, width, _HEADER, colour, layer=3)
    room = width - 0.75
    tasks = plural(stage.grid.tiles, "task")
    yield Text(
        left + 0.1,
        top + height + 0.14,
        f"{stage_title(plan, number)}:  {stage.grid}  ({tasks})",
        10,
        WHITE,
        bold=True,
        width=room,
    )
    yield Text(left + 0.1, top + height + 0.32, _facts(stage), 7.5, WHITE, width=room)
    yield from _grid(stage, left + width - 0.55, top + height + 0.06)


def _facts(stage: Stage) -> str:
    extra = f", halo +{halo(stage):.0%}" if spread(stage) else ""
    weights = sum(function.weights.bytes for function in stage.functions)
    work = f"work \u00d7{stage.inflation:.2f}{extra}, weights {count_bytes(weights)}"
    return f"{plural(len(stage.operators), 'operator')}, {work}"


def _grid(stage: Stage, x: float, y: float) -> Iterator[Shape]:
    """Draw a stage's grid as a small window."""
    width, height = 0.45, _HEADER - 0.12
    grid = stage.grid
    for row in range(min(grid.rows, 8)):
        for col in range(min(grid.cols, 16)):
            rows, cols = min(grid.rows, 8), min(grid.cols, 16)
            yield Block(
                x + col * width / cols, y + row * height / rows, width / cols, height / rows, None, WHITE, 1.0, layer=4
            )


def _box(layout: Layout, number: int, box: Box) -> Iterator[Shape]:
    place = layout.rows[layout.row_of[number]]
    x = layout.slot_x(place.column, layout.slots[number]) - BOX_WIDTH / 2
    y = place.top + (ROW - BOX_HEIGHT) / 2
    yield Block(x, y, BOX_WIDTH, BOX_HEIGHT, WHITE, stage_colour(box.stage), 1.0, radius=0.05)
    macs = count_macs(box.macs) if box.macs else ""
    room = BOX_WIDTH - (0.52 if macs else 0.12)
    yield Text(x + 0.06, y + BOX_HEIGHT / 2, box.text, 7.5, width=room)
    yield Text(x + BOX_WIDTH - 0.06, y + BOX_HEIGHT / 2, macs, 6.5, GREY, "right", width=0.4)


def _edge(layout: Layout, boxes: Sequence[Box], source: int, reader: int) -> Path:
    """Draw the line from a box to one that reads it: straight down to its first readers, by a lane to those below."""
    far = layout.row_of[reader] > layout.near[source]
    end = layout.rows[layout.row_of[reader]]
    goal, top = layout.slot_x(end.column, layout.slots[reader]), end.top + (ROW - BOX_HEIGHT) / 2
    turn = end.top + _track(reader if len(boxes[reader].reads) > 1 else source)
    column, points = _start(layout, source, goal, far=far)
    for passed in range(column, end.column):
        points += _to_next_column(layout, passed, points[-1][0], source, far=far)
    points += [(points[-1][0], turn), (goal, turn), (goal, top)]
    colour = stage_colour(boxes[source].stage if source >= 0 else 0)
    return Path(tuple(points), colour if far else INK, 0.8 if far else 1.0, arrow=True)


def _track(number: int) -> float:
    """Return by how much a line lies off the middle between two rows, so that different ones do not meet."""
    return (number % _TRACKS - 1) * _TRACK


def _start(layout: Layout, source: int, goal: float, *, far: bool) -> tuple[int, list[tuple[float, float]]]:
    """Return the column where a line starts, and its first points; the image's lines come from below its band."""
    if source < 0:
        band = layout.bands[0]
        return band.column, [(layout.lane_x(band.column, layout.lanes[source]) if far else goal, band.bottom - _AIR)]
    start = layout.rows[layout.row_of[source]]
    points = [(layout.slot_x(start.column, layout.slots[source]), start.bottom - (ROW - BOX_HEIGHT) / 2)]
    if far:
        lane, turn = layout.lane_x(start.column, layout.lanes[source]), start.bottom + _track(source)
        points += [(points[0][0], turn), (lane, turn)]
    return start.column, points


def _to_next_column(layout: Layout, column: int, x: float, source: int, *, far: bool) -> list[tuple[float, float]]:
    """Return the way of a line from the foot of a column to the head of the next."""
    number = layout.lanes[source] + 1 if far else -layout.slots[source]
    shift = 0.03 * (number % 6)
    here, there = layout.columns[column], layout.columns[column + 1]
    foot, gutter, head = (
        here.bottom + 0.08 + shift,
        here.left + here.width + GUTTER / 2 + shift,
        there.top - 0.2 - shift,
    )
    goal = layout.lane_x(column + 1, layout.lanes[source]) if far else layout.slot_x(column + 1, layout.slots[source])
    return [(x, foot), (gutter, foot), (gutter, head), (goal, head)]


def _end(plan: Plan, layout: Layout, boxes: Sequence[Box]) -> Iterator[Shape]:
    """Draw the answer below the last row."""
    last = len(boxes) - 1
    place = layout.rows[layout.row_of[last]]
    x = layout.slot_x(place.column, layout.slots[last])
    bottom = place.bottom - (ROW - BOX_HEIGHT) / 2
    yield Path(((x, bottom), (x, place.bottom + 0.1)), INK, 1.0, arrow=True)
    yield Text(x, place.bottom + 0.2, f"{plan.output} values, {plan.activation}", 8, align="center", bold=True)


def _legend(scene: Scene, layout: Layout, boxes: Sequence[Box]) -> Iterator[Shape]:
    """Explain the signs, below everything."""
    y = layout.height + ROW + 0.2
    yield Block(MARGIN, y - 0.09, 0.5, 0.18, WHITE, GREY, 1.0, radius=0.05)
    yield Text(MARGIN + 0.25, y, "70 M", 6.5, GREY, "center")
    notes = [
        "an operator, with its kernel/stride and the multiply-accumulates of one image; its colour is its stage's",
        "a cut: the tensors that cross it, the bytes that tiles write to the store and read (halos by several)",
        "work: multiply-accumulates of all tiles over those unsplit; halo: how much more the tiles read than there is",
    ]
    yield Path(((MARGIN, y + 0.2), (MARGIN + 0.5, y + 0.2)), INK, 1.0, "--")
    if layout.lanes:
        notes.append("a coloured line: a tensor that is read again further below")
        colour = stage_colour(boxes[0].stage)
        yield Path(((MARGIN, y + 0.6), (MARGIN + 0.5, y + 0.6)), colour, 0.8, arrow=True)
    for index, note in enumerate(notes):
        yield Text(MARGIN + 0.6, y + 0.2 * index, note, 7.5, GREY, width=scene.width - 2 * MARGIN - 0.6)
