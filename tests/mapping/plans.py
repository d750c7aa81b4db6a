"""A map plan made by hand from an ordinary one: the nine tiles of a 3 x 3 grid are its kinds of windows."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import serfer
from serfer.core.geometry import Grid, Rect, Span
from serfer.core.plan import Cell, Preprocess, sealed
from serfer.core.plan.windows import AxisWindow, AxisWindows, Windows
from serfer.plan_directory import load_plan, write_plan
from tests.support.onnx_graph import Graph

WINDOW, HALO = 16, 2
PREPROCESS = Preprocess(
    resize=None, interpolation="bilinear", channels="RGB", scale=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25)
)


def network():
    """An ONNX file of two convolutions, so that pixels of the result depend on two around them, for any size."""
    graph = Graph()
    first = graph.op("Conv", "image", graph.normal(4, 3, 3, 3), graph.normal(4), pads=[1] * 4)
    graph.op("Conv", graph.op("Relu", first), graph.normal(2, 4, 3, 3), graph.normal(2), output="map", pads=[1] * 4)
    return graph.model({"map": 2}).SerializeToString()


def axis(count):
    """The windows along an axis of `count` times WINDOW pixels: the first, those between, the last."""
    size = count * WINDOW
    windows = []
    for number in range(count):
        written = Span(number * WINDOW, (number + 1) * WINDOW)
        read = Span(max(0, written.start - HALO), min(size, written.stop + HALO))
        kind = 0 if number == 0 else 2 if number == count - 1 else 1
        windows.append(AxisWindow(kind, read, written))
    return AxisWindows(size, size, tuple(windows), start=0.0)


def make_map_plan(directory, rows=(3, 4), cols=(5,), preprocess=PREPROCESS, crops=(3 * WINDOW, 3 * WINDOW)):
    """Write a map plan for images of `rows` windows by `cols` windows."""
    example = np.zeros((1, 3, 3 * WINDOW, 3 * WINDOW), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder, "dense.onnx")).write_bytes(network())
        serfer.split(path, example, out=directory, grids=(3, 3), stages=1, cold_plan="never")
    plan = load_plan(directory)
    [stage] = plan.stages
    assert stage.grid == Grid(3, 3)
    whole = lambda rect: Rect.whole(rect.rows.size, rect.cols.size)  # noqa: E731 - short
    tiles = tuple(
        replace(
            tile,
            inputs=tuple(whole(rect) for rect in tile.inputs),
            outputs=tuple(whole(rect) for rect in tile.outputs),
            cells=tuple(Cell(cell.output, whole(cell.rect)) for cell in tile.cells),
        )
        for tile in stage.tiles
    )
    heights, widths = (tuple(axis(count) for count in counts) for counts in (rows, cols))
    windows = Windows(heights, widths, ((0, 1, 2), (3, 4, 5), (6, 7, 8)), 1, 1, crops=crops)
    image = replace(plan.input, height=WINDOW + 2 * HALO, width=WINDOW + 2 * HALO)
    output = replace(plan.output, height=WINDOW, width=WINDOW)
    inputs = (replace(stage.inputs[0], shape=image),)
    operators = tuple(replace(each, macs=each.macs * rows[0] * cols[0] // 9) for each in stage.operators)
    stage = replace(stage, tiles=tiles, grid=Grid(1, 9), inputs=inputs, outputs=(output,), operators=operators)
    plan = replace(
        plan,
        stages=(stage,),
        input=image,
        output=output,
        outputs=(replace(plan.outputs[0], dims=(output.channels, WINDOW, WINDOW)),),
        windows=windows,
        preprocess=preprocess,
    )
    write_plan(sealed(plan), directory)
    return json.loads((directory / "plan.json").read_text())
