"""Map plans: choose windows, write a graph for each kind of them, and check them against the whole network.

network at the image's size ──▶ strides, or a refusal ──▶ windows by kinds ──▶ a tile for each pair of kinds
   (shapes alone: nothing of that size is computed)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from math import lcm
from pathlib import Path

from serfer.core.costs.cost_model import plan_load, stage_price
from serfer.core.errors import ModelError, UsageError
from serfer.core.geometry import Grid, Rect
from serfer.core.plan import (
    FETCHED,
    FORMAT,
    IMAGE,
    INLINE,
    MAX_ELEMENTS,
    ZIP,
    AxisResult,
    AxisWindows,
    Cell,
    ImageWindows,
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
from serfer.splitter.network.description import Reduction
from serfer.splitter.network.graph import COL_AXIS, ROW_AXIS, Graph
from serfer.splitter.network.reductions import with_reduction
from serfer.splitter.network.source import Source
from serfer.splitter.network.unsupported import refuse
from serfer.splitter.plan_dir.emit import TileGraph
from serfer.splitter.plan_dir.functions import artefact, write_functions
from serfer.splitter.planning.limits import room_in
from serfer.splitter.planning.ort_kernels import tile_works
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.cuts import weight_bytes
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.regions import Regions, tile_macs
from serfer.splitter.tiling.tiling_rule import extent
from serfer.splitter.windows.global_statistics import part_of, with_statistics
from serfer.splitter.windows.memory import window_mb
from serfer.splitter.windows.pass_windows import PassTile, pass_spans
from serfer.splitter.windows.position import place_of, placed
from serfer.splitter.windows.positions import is_positioned, may_depend, told_where
from serfer.splitter.windows.reading_tiles import read_form, reading_tile
from serfer.splitter.windows.same_windows import GraphNumbers, check_alike, inlined, weights_by_size
from serfer.splitter.windows.sections import Section, read_maps
from serfer.splitter.windows.strides import LONGER, Strides, check_local, check_shifts, strides
from serfer.splitter.windows.whole_tile import whole_tile
from serfer.splitter.windows.window_kinds import (
    AxisKinds,
    AxisSpans,
    axis_kinds,
    axis_spans,
    check_step,
    merged,
    middle_regions,
    regions_of,
    rounded_step,
)

STEPS = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Sides of windows, in pixels of the result, among which the planner chooses."""
_NO_PADDING = Padding(0, 0, 0, 0)
_Size = tuple[int, int]


@dataclass(frozen=True)
class Network:
    """A network that can be read at any size: `at` returns its graph for images of height x width.

    Or, where images of different sizes go different ways through its Python, that of images which go the way of those
    of the size that is its third argument. What `checked`, `larger` and `strides` are of is the part of it that makes
    the map of statistics over the whole image, or that of a pass which adds up such (global_statistics.py). Without
    `by_position`, what depends on where in the image a window is is refused. With `sections`, of the passes and of the
    map, these parts read maps that earlier ones keep (sections.py).
    """

    source: Source
    at: Callable[..., Graph]
    number: int | None = None
    by_position: bool = True
    sections: tuple[Section, ...] = ()

    @property
    def section(self) -> Section:
        """What the part reads and keeps."""
        if not self.sections:
            return Section()
        return self.sections[-1 if self.number is None else self.number]

    @classmethod
    def of(cls, source: Source, reduction: Reduction | None) -> Network:
        """Return the network of a source, whose answers are reduced here and in its graphs."""

        @cache
        def at(height: int, width: int, like: tuple[int, int] | None = None) -> Graph:
            model = source.at(like or (height, width))
            return from_onnx(model, height, width, source.outputs, reduction, any_size=True)

        return cls(with_reduction(source, reduction), at)

    def checked(self, size: _Size) -> Graph:
        """Return the graph at an image's size; raises ModelError where it looks at more than neighbourhoods.

        What it has of the whole image are statistics alone, and then its result is one map.
        """
        given = self.of_maps(size)
        graph = self.cut(size)
        if graph.output in graph.fixed:
            last = given.nodes[-1]
            raise refuse(
                last.name, last.kind, "its result does not grow with the image, so no window makes a part of it"
            )
        check_local(graph)
        if graph.statistics and len(graph.outputs) > 1:
            raise ModelError(
                f"a network that looks at the whole image has one map, and this one has {_in_words_of(graph)}: of "
                "several make one, by torch.cat along their channels, or a plan for each"
            )
        if missing := {*self.section.reads, *self.section.keeps} - graph.shapes.keys():
            raise ModelError(f"images of this size go another way through the network, without {min(missing)!r}")
        return graph.once(part_of, self.number, self.section)

    def of_maps(self, size: _Size) -> Graph:
        """Return the graph at a size; raises ModelError where its results are not maps."""
        graph = self.at(*size)
        if any(graph.shape(name).flat for name in graph.outputs):
            raise ModelError(
                f"a map plan needs outputs that are maps, (N, C, H, W) or (N, H, W), and this network has "
                f"{_in_words_of(graph)}"
            )
        return graph

    def larger(self, size: _Size) -> Graph:
        """Return the graph of an image of LONGER more rows and columns, which goes the way of one of this size."""
        height, width = size
        larger: Graph = self.at(height + LONGER, width + LONGER, size)
        return larger.once(with_statistics, self._other(size)).once(part_of, self.number, self.section)

    def cut(self, size: _Size) -> Graph:
        """Return the graph at a size without reductions over the whole image, those of all passes in their place."""
        graph: Graph = self.at(*size)
        if self._other(size) is None:
            return graph.once(with_statistics)
        height, width = size
        return graph.once(with_statistics, self.at(height + LONGER, width + LONGER, size))

    def _other(self, size: _Size) -> Graph | None:
        """Return the graph at a size where something in it may depend on the position, None for other networks."""
        graph: Graph = self.at(*size)
        return graph if self.by_position and graph.once(may_depend) else None

    def strides(self, graph: Graph) -> tuple[Strides, Strides]:
        """Return the strides of rows and columns; raises ModelError for an operator that does not shift by them."""
        shape = graph.shape(graph.input)
        larger = self.larger((shape.height, shape.width))
        known = strides(graph, larger, ROW_AXIS), strides(graph, larger, COL_AXIS)
        for axis, each in zip((ROW_AXIS, COL_AXIS), known, strict=True):
            check_shifts(graph, axis, each)
        return known


def _in_words_of(graph: Graph) -> str:
    return ", ".join(f"{each.name} {list(each.dims)}" for each in graph.output_tensors)


@dataclass(frozen=True)
class WindowChoice:
    """The side of windows in pixels of the (finest) result, and what the function that computes them has."""

    step: int
    memory_mb: int
    weights_in: str


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
        """The form of what it reads."""
        return read_form(self.graph, self.regions)

    def write(self) -> TileGraph:
        """Return the tile's graph."""
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
        """The tiles' graphs."""
        return [tile.write() for tile in self.tiles]


def choose_windows(graph: Graph, known: tuple[Strides, Strides], budget: Budget, window: int | None) -> WindowChoice:
    """Return the windows that cost the least for a pixel of the result, among those that functions can hold.

    Raises UsageError where none of `window` pixels, or none at all, fits the memory.
    """
    weights = weight_bytes(graph, 0, len(graph.nodes))
    place = ZIP if weights <= room_in(ZIP, budget) else FETCHED
    output = known[0].finest(graph.outputs)
    # Of maps as coarse as a detector's, windows of the usual sides in pixels of the image.
    scale = known[0].rates[output] if len(graph.outputs) > 1 else 1
    sides = [window] if window else [int(scale * side) for side in STEPS]
    steps = [rounded_step(side, *known, output) for side in sides]
    if window and steps != [window]:
        raise UsageError(
            f"--window {window} is not a multiple of the network's stride: the nearest ones are {steps[0]} and "
            f"{steps[0] + rounded_step(1, *known, output)}"
        )
    best: tuple[float, WindowChoice] | None = None
    for step in dict.fromkeys(steps):
        regions = middle_regions(graph, *known, step)
        needed = window_mb(graph, regions, weights, place)
        for memory in (size for size in budget.memory_mb if size >= needed):
            usd = window_usd(graph, regions, budget, memory) / regions[output].area
            if best is None or usd < best[0]:
                best = usd, WindowChoice(step, memory, place)
    if best is None:
        raise UsageError(
            f"windows of {steps[0]} pixels take about {needed:,} MB, and functions have at most "
            f"{max(budget.memory_mb):,}: choose smaller ones, or more --memory"
        )
    return best[1]


def window_usd(graph: Graph, regions: Regions, budget: Budget, memory_mb: int) -> float:
    """Price the computing of a window: dollars without what all windows pay alike."""
    serial, parallel = _compute(graph, regions, budget)
    functions = budget.facts.functions
    vcpus = memory_mb / functions.memory_per_vcpu
    seconds = (serial / min(1.0, vcpus) + parallel / vcpus) / MS_PER_S
    return functions.price_request + seconds * memory_mb / 1024 * functions.price_gb_second


def _compute(graph: Graph, regions: Regions, budget: Budget) -> tuple[float, float]:
    """Return a window's predicted milliseconds on one vCPU: what more vCPUs do not speed up, and what they do."""
    outputs = {name: regions[name] for name in graph.outputs}
    works = tile_works(graph, graph.nodes, regions, read_maps(graph), outputs)
    parts = [(budget.profiles.run_s, 0.0), *(budget.profiles.parts(each) for each in works)]
    serial, parallel = (round(MS_PER_S * sum(each[index] for each in parts), 6) for index in range(2))
    return serial, parallel


_Structure = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class _Image:
    """The network at an image's size, its strides along rows and columns, and the windows along both."""

    graph: Graph
    known: tuple[Strides, Strides]
    rows: AxisSpans
    cols: AxisSpans


def window_tiles(network: Network, sizes: Sequence[_Size], step: int) -> WindowTiles:
    """Return the windows of images of these sizes, and a tile for each pair of kinds that meet."""
    heights, widths = ([*dict.fromkeys(each)] for each in zip(*sizes, strict=True))
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
        stride=lcm(*(each.stride for each in first.known)),
        stride_written=lcm(*(each.of(first.graph.output) for each in first.known)),
        positioned=is_positioned(first.graph),
    )
    return WindowTiles(windows, tuple(tile for row in tiles for tile in row))


def _placed(network: Network, windows: AxisWindows, image: _Image, axis: int) -> AxisWindows:
    """Return windows with the places of their results, which a larger image shows: at its middle no end is read."""
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
    others = tuple(AxisResult(each.result, each.start, each.step) for each in results[1:])
    return replace(results[0], others=others)


@contextmanager
def naming(size: _Size, sizes: Sequence[_Size]) -> Iterator[None]:
    """Say of which of several sizes a ModelError is."""
    try:
        yield
    except ModelError as error:
        if len(sizes) == 1:
            raise
        raise ModelError(f"images of {size[0]} x {size[1]} pixels: {error}") from error


def _images(network: Network, sizes: Sequence[_Size], step: int) -> dict[_Size, _Image]:
    """Return the network and its windows at each size; raises UsageError, or ModelError, which names the size."""
    known: dict[_Structure, tuple[Strides, Strides]] = {}
    images = {}
    for size in sizes:
        with naming(size, sizes):
            images[size] = _image(network, size, step, known)
    scales = {
        tuple(each.rates[name] for each in image.known for name in image.graph.outputs) for image in images.values()
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
    return _Image(graph, (rows, cols), *(replace(each, keeps=network.section.keeps) for each in spans))


def _structure(graph: Graph) -> _Structure:
    """Return what graphs of two sizes have in common, unless what the network does depends on the size."""
    return tuple((node.kind, node.output, str(node.attributes)) for node in graph.nodes)


def _check_images(images: Mapping[_Size, _Image], high: Mapping[int, AxisKinds], wide: Mapping[int, AxisKinds]) -> None:
    """Check that windows of a kind are alike, along each side of the images, for each structure that they have."""
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
    """Return a number of each tile, the same for equal graphs; those of one image are all different."""
    if one_image:
        return [[row * len(cells[0]) + col for col in range(len(cells[0]))] for row in range(len(cells))]
    numbers = GraphNumbers()
    return [[numbers.of(tile.write()) for tile in row] for row in cells]


def _renumbered(kinds: AxisKinds, numbers: Iterator[int]) -> AxisWindows:
    """Return the windows along an axis with the plan's numbers of their kinds, the next ones."""
    own = [next(numbers) for _ in kinds.examples]
    windows = tuple(replace(each, kind=own[each.kind]) for each in kinds.windows.windows)
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
    tiles = tuple(_tile(each, path, budget) for each, path in zip(cut.tiles, written.graphs, strict=True))
    image, *results = (
        _largest(graph.shape(name), [rects[index] for rects in _rects(tiles)])
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
    read, *wrote = (Rect.whole(each.rows.size, each.cols.size) for each in (tile.read, *tile.written))
    serial, parallel = _compute(graph, regions, budget)
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


def _rects(tiles: Sequence[Tile]) -> list[tuple[Rect, ...]]:
    return [(tile.inputs[0], *tile.outputs) for tile in tiles]


def _largest(shape: Shape, rects: Sequence[Rect]) -> Shape:
    """Return the shape of the map that holds any of some rectangles."""
    height, width = max(rect.rows.size for rect in rects), max(rect.cols.size for rect in rects)
    if shape.channels * height * width > MAX_ELEMENTS:
        raise UsageError(
            f"windows of {height} x {width} pixels have more than {MAX_ELEMENTS:,} values: use smaller ones"
        )
    return replace(shape, height=height, width=width)


def _priced(plan: Plan, budget: Budget) -> Plan:
    """Return the plan with the prediction for its commonest window, and its reasons in words."""
    windows, [stage] = plan.windows, plan.stages
    assert windows is not None  # noqa: S101 - of a map plan
    image, common = windows.first, commonest_window(windows)
    seconds, usd = stage_price(plan_load(query_plan(plan, common), 0), stage.memory_mb, budget.platform)
    predicted = replace(stage, predicted_ms=round(float(seconds) * MS_PER_S, 3), predicted_usd=float(usd))
    work = sum(stage.tiles[window.tile].macs for window in image)
    share = work / stage.macs - 1 if stage.macs else 0.0
    why = _in_words(stage, stage.tiles[common], image, share)
    if windows.rules:
        why += f" Images of any size have windows by rules: {windows.rules}."
    if windows.passes:
        why += f" {len(windows.passes)} passes before the map add up statistics of the whole image."
    if windows.approximation:
        why += f" Approximate: {windows.approximation}."
    return replace(plan, stages=(predicted,), why=why)


def _in_words(stage: Stage, common: Tile, image: ImageWindows, share: float) -> str:
    read, *writes = (f"{rect.rows.size} x {rect.cols.size}" for rect in (common.inputs[0], *common.outputs))
    wrote = " and ".join(dict.fromkeys(writes))
    graphs = len(stage.functions[0].graphs)
    return (
        f"Windows write {wrote} pixels of the result and read {read} of the image, in {graphs} graphs for "
        f"{len(stage.tiles)} kinds of windows. An image of {image.rows.size} x {image.cols.size} pixels has "
        f"{len(image)}, whose overlaps are {share:.1%} of its multiply-accumulates."
    )
