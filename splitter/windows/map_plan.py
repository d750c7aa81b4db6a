"""The windows of a map plan: a graph for each kind of them, and the plan that is written of these.

network at the image's size ──▶ strides, or a refusal ──▶ windows by kinds ──▶ a tile for each pair of kinds
   (shapes alone: nothing of that size is computed)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import lcm
from pathlib import Path

from serfer.core.costs.cost_model import plan_load, stage_price
from serfer.core.errors import ModelError, UsageError
from serfer.core.geometry import Grid, Rect
from serfer.core.plan import (
    FORMAT,
    IMAGE,
    INLINE,
    MAX_ELEMENTS,
    AxisResult,
    AxisWindows,
    Cell,
    Input,
    Operator,
    Padding,
    Plan,
    Shape,
    Stage,
    Tile,
    Windows,
    sealed,
)
from serfer.core.plan.layout import UNSPLIT, stage_directory
from serfer.core.plan.window_plan import commonest_window, query_plan
from serfer.core.units import MS_PER_S
from serfer.plan_directory import write_plan
from serfer.splitter.network.graph import COL_AXIS, ROW_AXIS, Graph
from serfer.splitter.plan_dir.emit import TileGraph, whole_tile
from serfer.splitter.plan_dir.functions import artefact, write_functions
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.regions import Regions, tile_macs
from serfer.splitter.tiling.tiling_rule import extent
from serfer.splitter.windows.network_at_sizes import Network
from serfer.splitter.windows.pass_windows import PassTile, pass_spans, read_form, reading_tile
from serfer.splitter.windows.position import place_of, placed
from serfer.splitter.windows.positions import is_positioned, told_where
from serfer.splitter.windows.same_windows import GraphNumbers, check_alike, inlined, weights_by_size
from serfer.splitter.windows.strides import Strides, check_shifts
from serfer.splitter.windows.window_choice import WindowChoice, window_ms
from serfer.splitter.windows.window_kinds import (
    AxisKinds,
    AxisSpans,
    axis_kinds,
    axis_spans,
    check_step,
    merged,
    regions_of,
)

_NO_PADDING = Padding(0, 0, 0, 0)
_Size = tuple[int, int]


@dataclass(frozen=True)
class WindowTile:
    """One kind of windows: what it writes of each output, and the regions that this depends on.

    `graph` is that of an image which has such a window. Weights in `own` have other values in those of other images.
    """

    graph: Graph
    regions: Regions
    written: tuple[Rect, ...]
    own: frozenset[str] = frozenset()

    @property
    def read(self) -> Rect:
        return read_form(self.graph, self.regions)

    def write(self) -> TileGraph:
        graph = self.graph
        written = dict(zip(graph.outputs, self.written, strict=True))
        return inlined(reading_tile(graph, self.regions, written), self.own)


@dataclass(frozen=True)
class WindowTiles:
    """The windows of a map plan, and its tiles: a kind of rows and a kind of columns each.

    Those of passes (passes.py) come behind those of the map.
    """

    windows: Windows
    tiles: tuple[WindowTile | PassTile, ...]

    @cached_property
    def graphs(self) -> list[TileGraph]:
        return [tile.write() for tile in self.tiles]


_Structure = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class _Image:
    graph: Graph
    known: tuple[Strides, Strides]
    rows: AxisSpans
    cols: AxisSpans


def window_tiles(network: Network, sizes: Sequence[_Size], step: int) -> WindowTiles:
    heights, widths = ([*dict.fromkeys(sides)] for sides in zip(*sizes, strict=True))
    images = _images(network, [*product(heights, widths)], step)
    high = {height: axis_kinds([images[height, width].rows for width in widths]) for height in heights}
    wide = {width: axis_kinds([images[height, width].cols for height in heights]) for width in widths}
    _check_images(images, high, wide)
    down = [(height, window) for height in heights for window in high[height].examples]
    across = [(width, window) for width in widths for window in wide[width].examples]
    own = weights_by_size(image.graph for image in images.values())
    cells = [
        [_window_tile(network, images[height, width], row, col, own) for width, col in across] for height, row in down
    ]
    rows, cols = merged(_numbers(cells, one_image=len(images) == 1))
    tiles = [[cells[rows.index(row)][cols.index(col)] for col in sorted({*cols})] for row in sorted({*rows})]
    row_numbers, col_numbers = iter(rows), iter(cols)
    first = images[heights[0], widths[0]]
    windows = Windows(
        tuple(
            _placed(network, _renumbered(high[height], row_numbers), images[height, widths[0]], ROW_AXIS)
            for height in heights
        ),
        tuple(
            _placed(network, _renumbered(wide[width], col_numbers), images[heights[0], width], COL_AXIS)
            for width in widths
        ),
        tuple(tuple(range(row * len(tiles[0]), (row + 1) * len(tiles[0]))) for row in range(len(tiles))),
        stride=lcm(*(strides.stride for strides in first.known)),
        stride_written=lcm(*(strides.of(first.graph.output) for strides in first.known)),
        positioned=is_positioned(first.graph),
    )
    return WindowTiles(windows, tuple(tile for row in tiles for tile in row))


def _placed(network: Network, windows: AxisWindows, image: _Image, axis: int) -> AxisWindows:
    if network.number is not None:
        return windows  # what a pass writes lies nowhere on the image
    graph, whole = image.graph, replace(network, sections=())
    shape = graph.shape(graph.input)
    size = shape.height, shape.width
    known = whole.strides(whole.checked(size)) if network.sections else image.known
    larger, rates = whole.larger(size), known[axis - ROW_AXIS].rates
    steps = [1 / rates[name] for name in larger.outputs]
    sizes = [extent(graph, name, axis) for name in graph.outputs]
    anywhere = [AxisResult(size, None, float(step)) for size, step in zip(sizes, steps, strict=True)]
    windows = replace(windows, step=anywhere[0].step, others=tuple(anywhere[1:]))
    results = [
        placed(windows.of_output(number), place_of(larger, name, axis, rates), step)
        for number, (name, step) in enumerate(zip(larger.outputs, steps, strict=True))
    ]
    others = tuple(AxisResult(result.result, result.start, result.step) for result in results[1:])
    return replace(results[0], others=others)


@contextmanager
def naming(size: _Size, sizes: Sequence[_Size]) -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        if len(sizes) == 1:
            raise
        raise ModelError(f"images of {size[0]} x {size[1]} pixels: {error}") from error


def _images(network: Network, sizes: Sequence[_Size], step: int) -> dict[_Size, _Image]:
    known: dict[_Structure, tuple[Strides, Strides]] = {}
    images = {}
    for size in sizes:
        with naming(size, sizes):
            images[size] = _image(network, size, step, known)
    scales = {
        tuple(axis.rates[name] for axis in image.known for name in image.graph.outputs) for image in images.values()
    }
    if len(scales) > 1:
        raise ModelError("results of images of these sizes differ in their scale: make a plan for each size")
    if any(is_positioned(image.graph) for image in images.values()):
        return {size: replace(image, graph=told_where(image.graph)) for size, image in images.items()}
    return images


def _image(network: Network, size: _Size, step: int, known: dict[_Structure, tuple[Strides, Strides]]) -> _Image:
    graph = network.checked(size)
    structure = _structure(graph)
    if structure not in known:
        known[structure] = network.strides(graph)
    rows, cols = known[structure]
    check_shifts(graph, ROW_AXIS, rows)
    check_shifts(graph, COL_AXIS, cols)
    if network.number is None:
        check_step(step, rows, cols, rows.finest(graph.outputs))
    cut = axis_spans if network.number is None else pass_spans
    spans = cut(graph, ROW_AXIS, rows, step), cut(graph, COL_AXIS, cols, step)
    return _Image(graph, (rows, cols), *(replace(span, keeps=network.section.keeps) for span in spans))


def _structure(graph: Graph) -> _Structure:
    return tuple((node.kind, node.output, str(node.attributes)) for node in graph.nodes)


def _check_images(images: Mapping[_Size, _Image], high: Mapping[int, AxisKinds], wide: Mapping[int, AxisKinds]) -> None:
    seen = set[tuple[int, int, _Structure]]()
    for (height, width), image in images.items():
        structure = _structure(image.graph)
        for axis, length in ((ROW_AXIS, height), (COL_AXIS, width)):
            if (axis, length, structure) in seen:
                continue
            seen.add((axis, length, structure))
            with naming((height, width), [*images]):
                if axis == ROW_AXIS:
                    check_alike(image.graph, image.rows, high[height].windows, image.cols, rows=True)
                else:
                    check_alike(image.graph, image.cols, wide[width].windows, image.rows, rows=False)


def _window_tile(network: Network, image: _Image, row: int, col: int, own: frozenset[str]) -> WindowTile | PassTile:
    graph, regions = image.graph, regions_of((image.rows, row), (image.cols, col))
    if network.number is None:
        return WindowTile(graph, regions, tuple(regions[name] for name in graph.outputs), own)
    return PassTile.of(graph, regions, network.number, network.section.keeps, own)


def _numbers(cells: Sequence[Sequence[WindowTile | PassTile]], *, one_image: bool) -> list[list[int]]:
    if one_image:
        return [[row * len(cells[0]) + col for col in range(len(cells[0]))] for row in range(len(cells))]
    numbers = GraphNumbers()
    return [[numbers.of(tile.write()) for tile in row] for row in cells]


def _renumbered(kinds: AxisKinds, numbers: Iterator[int]) -> AxisWindows:
    own = [next(numbers) for _ in kinds.examples]
    windows = tuple(replace(window, kind=own[window.kind]) for window in kinds.windows.windows)
    return replace(kinds.windows, windows=windows)


def write_map_plan(
    network: Network,
    cut: WindowTiles,
    choice: WindowChoice,
    reference: Graph,
    budget: Budget,
    directory: Path,
    finished: Callable[[Plan, Path], Plan],
) -> Plan:
    """Write a map plan into an empty directory and return it; `reference` is the network at a part's size (crops.py).

    `finished` adds what the plan has besides windows.
    """
    graph = cut.tiles[0].graph
    size = cut.windows.heights[0].size, cut.windows.widths[0].size
    whole = replace(network, sections=()).checked(size) if cut.windows.kept else graph
    image_area = cut.windows.heights[0].result * cut.windows.widths[0].result
    result_area = graph.shape(graph.output).whole.area  # of another image's, where the plan is for any size
    written = write_functions(cut.graphs, [list(range(len(cut.tiles)))], directory / stage_directory(0))
    files = {f"{stage_directory(0)}/{file.name}": file for file in written.weights}
    unsplit = inlined(whole_tile(reference), weights_by_size([graph, reference]))
    (directory / UNSPLIT).write_bytes(unsplit.model(files).SerializeToString())
    tiles = tuple(_tile(tile, path, budget) for tile, path in zip(cut.tiles, written.graphs, strict=True))
    image, *results = (
        _largest(graph.shape(name), [(*tile.inputs, *tile.outputs)[index] for tile in tiles])
        for index, name in enumerate((graph.input, *graph.outputs))
    )
    if sum(shape.elements for shape in results) > MAX_ELEMENTS:
        raise UsageError(f"windows have more than {MAX_ELEMENTS:,} values: use smaller ones")
    stage = Stage(
        operators=tuple(
            Operator(
                node.name,
                node.kind,
                operators.macs(whole, node, whole.shape(node.output).whole.area) * image_area // result_area,
            )
            for node in whole.nodes
        ),
        grid=Grid(1, len(tiles)),
        memory_mb=choice.memory_mb,
        inputs=(Input(IMAGE, IMAGE, image),),
        outputs=tuple(results),
        tiles=tiles,
        functions=written.functions,
        path=INLINE,
        weights_in=choice.weights_in,
    )
    source = network.source
    plan = Plan(
        format=FORMAT,
        model=source.name,
        weights=source.weights,
        input=image,
        output=results[0],
        activation="none",
        preprocess=source.preprocess,
        labels=source.labels,
        limit=budget.limit,
        memory_per_vcpu=float(budget.facts.functions.memory_per_vcpu),
        stages=(stage,),
        unsplit=artefact(directory / UNSPLIT, directory),
        original=(),
        store=budget.store,
        digest="",
        outputs=tuple(
            replace(tensor, dims=(*tensor.dims[:-2], result.height, result.width))
            for tensor, result in zip(graph.output_tensors, results, strict=True)
        ),
        windows=cut.windows,
    )
    plan = sealed(_priced(finished(plan, directory), budget))
    write_plan(plan, directory)
    return plan


def _tile(tile: WindowTile | PassTile, path: str, budget: Budget) -> Tile:
    graph, regions = tile.graph, tile.regions
    read, *wrote = (Rect.whole(region.rows.size, region.cols.size) for region in (tile.read, *tile.written))
    serial, parallel = window_ms(graph, regions, budget)
    return Tile(
        graph=path,
        function=0,
        inputs=(read,),
        padding=(_NO_PADDING,),
        outputs=tuple(wrote),
        cells=tuple(Cell(number, rect) for number, rect in enumerate(wrote)),
        pieces=(),
        macs=tile_macs(graph, graph.nodes, regions),
        serial_ms=serial,
        parallel_ms=parallel,
    )


def _largest(shape: Shape, rects: Sequence[Rect]) -> Shape:
    height, width = max(rect.rows.size for rect in rects), max(rect.cols.size for rect in rects)
    if shape.channels * height * width > MAX_ELEMENTS:
        raise UsageError(
            f"windows of {height} x {width} pixels have more than {MAX_ELEMENTS:,} values: use smaller ones"
        )
    return replace(shape, height=height, width=width)


def _priced(plan: Plan, budget: Budget) -> Plan:
    windows, [stage] = plan.windows, plan.stages
    assert windows is not None  # noqa: S101 - of a map plan
    common = commonest_window(windows)
    seconds, usd = stage_price(plan_load(query_plan(plan, common), 0), stage.memory_mb, budget.platform)
    predicted = replace(stage, predicted_ms=float(seconds) * MS_PER_S, predicted_usd=float(usd))
    why = _in_words(windows, stage, stage.tiles[common])
    if windows.rules:
        why += f" Images of any size have windows by rules: {windows.rules}."
    if windows.passes:
        why += f" {len(windows.passes)} passes before the map add up statistics of the whole image."
    return replace(plan, stages=(predicted,), why=why)


def _in_words(windows: Windows, stage: Stage, common: Tile) -> str:
    image = windows.first
    read, *writes = (f"{rect.rows.size} x {rect.cols.size}" for rect in (common.inputs[0], *common.outputs))
    wrote = " and ".join(dict.fromkeys(writes))
    what = f"{read} of the image"
    work = sum(stage.tiles[window.tile].macs for window in image) / (stage.macs or 1)
    computed = f"overlaps are {max(0.0, work - 1):.1%} of its multiply-accumulates"
    if windows.kept:  # the map alone is less than the network then
        what = "maps that passes have kept"
        cuts = [pass_.of(image.rows.size, image.cols.size) for pass_ in windows.passes]
        work += sum(stage.tiles[window.tile].macs for cut in cuts for window in cut) / (stage.macs or 1)
        computed = f"multiply-accumulates, those of all passes, are {work:.2f} times the network's"
    return (
        f"Windows write {wrote} pixels of the result and read {what}, in {len(stage.functions[0].graphs)} graphs for "
        f"{len(stage.tiles)} kinds of windows. An image of {image.rows.size} x {image.cols.size} pixels has "
        f"{len(image)}, whose {computed}."
    )
