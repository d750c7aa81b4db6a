"""Build a map plan: read the model, choose its windows, write them, and check them on a small image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np

from serfer.core.errors import ModelError, WrongAnswerError
from serfer.core.exactness import TOLERANCE, check_finite, difference
from serfer.core.plan import ImageWindows, Plan
from serfer.core.plan.answers import Answer, as_answer, shaped
from serfer.core.plan.windows import at_least
from serfer.images import check_channels
from serfer.splitter.network.description import Description
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.reductions import check_one_to_reduce, of_one_class
from serfer.splitter.network.size_guards import CHECKED_STEP
from serfer.splitter.network.source import Array, ImageNotTakenError, Progress, Source, load, noise
from serfer.splitter.plan_dir.check import noise_of, whole_runner
from serfer.splitter.plan_dir.output_directory import appearing_whole
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.windows.any_size import any_size_tiles
from serfer.splitter.windows.any_size_network import any_size_networks, base_size
from serfer.splitter.windows.crops import crop_of
from serfer.splitter.windows.detector import detector_of, example_of, in_strides, is_detector
from serfer.splitter.windows.map_plan import WindowTiles, naming, window_tiles, write_map_plan
from serfer.splitter.windows.network_at_sizes import Network
from serfer.splitter.windows.passes import check_times, windows_in_memory, with_passes, with_ruled_passes, with_sections
from serfer.splitter.windows.wanted_sizes import AnySize
from serfer.splitter.windows.window_choice import WindowChoice, choose_windows
from serfer.splitter.windows.window_sessions import WindowSessions

_SMALL = 192
"""Rows and columns that the image of the check has at least; it has as many more as the sizes are past a multiple."""
_SMALL_WINDOW = 48
_AUTO = "auto"
_OTHERS = 4
"""Windows that are checked besides those of each row and each column."""
_ROUNDING = frozenset({"Round", "Floor", "Ceil", "Cast", "Sign"})
_ONE_CLASS = (
    "the network gives a random image, on which windows were checked, one class everywhere, so that the comparison "
    "says little: make a plan without --reduce once, which compares scores"
)


@dataclass(frozen=True)
class WindowRequest:
    """Windows as they are asked for: of `side` pixels of the result, None for the cheapest.

    `statistics` over the whole image are "exact", or "auto": refused where they take more than a few times the work of
    the map alone. `kept` says whether passes keep maps for later ones, as one of KEPT_MAPS (splitter/map_plan.py).
    """

    side: int | None = None
    statistics: str = "auto"
    kept: str = "auto"


def build_map_plan(
    model: Any,  # noqa: ANN401 - a module, a path or a name
    sizes: Sequence[tuple[int, int]] | AnySize,
    place: Path,
    wanted: WindowRequest,
    channels: int,
    budget: Budget,
    description: Description,
    progress: Progress,
) -> tuple[Plan, tuple[str, ...]]:
    """Write the map plan of a model for images of `sizes` to `place`; see `serfer.splitter.map_plan`.

    Returns what that warns of as well.
    """
    progress("reading the network")
    large = [(base_size(sizes),) * 2] if isinstance(sizes, AnySize) else sizes
    first = in_strides(large[0]) if description.boxes else large[0]
    small = _small(first)
    example = noise(channels, small)
    source, example = _load(model, example, first)
    detector = None
    if is_detector(source, description):
        progress("finding the heads of the detector")
        detector = detector_of(source, channels, description)
        if isinstance(sizes, AnySize):  # images are padded to multiples of the strides
            sizes = AnySize(lcm(sizes.multiple, detector.multiple))
            large = [(base_size(sizes),) * 2]
        large = [*dict.fromkeys(detector.padded(size) for size in large)]
        source, example = detector.trunk, example_of(detector, channels, large[0], _SMALL)
    else:
        _check_free(source)
    small = example.shape[2], example.shape[3]
    source = replace(
        source,
        name=description.name or source.name,
        preprocess=description.preprocess or source.preprocess,
        labels=description.labels or source.labels,
    )
    network = Network.of(source, description.reduction)
    made = _WindowPlanner(network, large, small, example, budget, progress)
    if source.preprocess:
        reference = network.of_maps(small)
        check_channels(source.preprocess, reference.shape(reference.input))
        source.check_numbers(source.preprocess)
    if description.reduction and description.reduction.output is None:
        check_one_to_reduce(network.of_maps(small).output_tensors)
    if isinstance(sizes, AnySize):
        cut, choice = made.any_size(sizes, wanted)
    else:
        cut, choice = made.exact(wanted)
    crop, why_none = crop_of(network, cut.windows)
    if why_none:
        made.notes.append(f"maps by this plan are not compared with the network: {why_none}")
    shape = crop.shape(crop.input) if crop else None
    cut = replace(cut, windows=replace(cut.windows, crops=(shape.height, shape.width) if shape else None))
    with appearing_whole(place) as directory:
        progress(f"writing {len(cut.tiles)} kinds of windows")
        finish = detector.written if detector else (lambda plan, _: plan)
        reference = crop or network.of_maps(small)
        plan = write_map_plan(network, cut, choice, reference, budget, directory, finish)
    return plan, tuple(dict.fromkeys(made.notes))


@dataclass(frozen=True)
class _WindowPlanner:
    network: Network
    sizes: Sequence[tuple[int, int]]
    small: tuple[int, int]
    example: Array
    budget: Budget
    progress: Progress
    notes: list[str] = field(default_factory=list)

    def exact(self, wanted: WindowRequest) -> tuple[WindowTiles, WindowChoice]:
        """Return windows that make the network's result on the whole image."""
        network = self.network
        self.progress("finding what shifts with the image")
        with naming(self.sizes[0], self.sizes):
            graph = network.checked(self.sizes[0])
            known = network.strides(graph)
        choice = choose_windows(graph, known, self.budget, wanted.side)
        network = with_sections(network, self.sizes, choice, self.budget, wanted.kept)
        if network.sections:
            graph = network.checked(self.sizes[0])
            choice = choose_windows(graph, network.strides(graph), self.budget, wanted.side)
        self.progress("cutting windows")
        cut = window_tiles(network, self.sizes, choice.step)
        cut = with_passes(network, self.sizes, cut, choice)
        if wanted.statistics == _AUTO:
            check_times(network, cut, choice, self.budget)
        self.progress("checking windows against the whole network")
        self.notes.extend(_check(network, self.example))
        for small in dict.fromkeys(_small(size) for size in self.sizes):
            if small != self.small:
                image = noise(self.example.shape[1], small)
                self.notes.extend(_check_other(network, network.source.like_images(image)))
        return cut, choice

    def any_size(self, sizes: AnySize, wanted: WindowRequest) -> tuple[WindowTiles, WindowChoice]:
        self.progress("finding what shifts with the image")
        network, *passes = any_size_networks(self.network, sizes)
        choice = choose_windows(network.graph, network.known, self.budget, wanted.side)
        self.progress("finding windows for images of any size")
        cut = any_size_tiles(network.for_side(choice.step), choice.step, 1 + len(passes))
        cut = with_ruled_passes(passes, cut, choice)
        if wanted.statistics == _AUTO:
            check_times(self.network, cut, choice, self.budget)
        self.progress("checking windows against the whole network")
        self.notes.extend(_check_rules(self.network, cut, self.example))
        return cut, choice


def _load(model: Any, example: Array, size: tuple[int, int]) -> tuple[Source, Array]:  # noqa: ANN401 - as above
    try:
        source, example = load(model, example, any_size=size)
    except ImageNotTakenError as error:
        small, large = (" x ".join(map(str, sides)) for sides in (example.shape[2:], size))
        if small == large:
            raise
        raise ModelError(
            f"{error} (a network whose strides do not divide {large} pixels does not take {small} either: pad the "
            "image to a multiple)"
        ) from error
    return source, example


def _check_free(source: Source) -> None:
    own = [dim.dim_value or dim.dim_param for dim in source.onnx.inputs[0].type.tensor_type.shape.dim[2:]]
    if any(isinstance(side, int) for side in own):
        raise ModelError(
            f"the network was exported for images of {' x '.join(map(str, own))} alone, and windows of it are found at "
            "other sizes: export it with free height and width"
        )


def _small(size: tuple[int, int]) -> tuple[int, int]:
    """Return a small size with the same remainder for every stride, so that a network takes both or neither."""
    height, width = (min(side, side % CHECKED_STEP + _SMALL) for side in size)
    return height, width


def _check_reading(network: Network, graph: Graph, example: Array) -> Answer:
    expected = network.source.run(example)
    check_finite(expected, "the model's own answer to a random image")
    if not _same(graph, example, whole_runner(graph)(example), expected):
        steps = [node for node in graph.nodes if node.kind in _ROUNDING or node.output in graph.others]
        where = f": {steps[0].name!r} ({steps[0].kind}) rounds, and a value may lie at a step of it" if steps else ""
        raise ModelError(f"the network as it was read differs from the model itself before any window is cut{where}")
    return expected


def _check(network: Network, example: Array) -> list[str]:
    """A small image that cannot be cut says nothing against the sizes that were: it is compared as it was read."""
    height, width = example.shape[2:]
    graph = network.of_maps((height, width))
    expected = _check_reading(network, graph, example)
    notes = [_ONE_CLASS] if of_one_class(expected) else []
    try:
        cut = windows_in_memory(network, (height, width), _SMALL_WINDOW)
    except ModelError:
        return notes
    _compare(WindowSessions(cut).run(example), cut, graph, example, expected)
    return notes


def _check_rules(network: Network, cut: WindowTiles, example: Array) -> list[str]:
    rules = cut.windows.rules
    assert rules is not None  # noqa: S101 - of a plan for any size
    down, across = rules.sides[-1].rows, rules.sides[-1].cols
    notes: list[str] = []
    rounded = (number for number, end in enumerate(down.ends) if end.sizes)
    for number in dict.fromkeys((0, len(down.ends) // 2, len(down.ends) - 1, *rounded)):
        high, wide = down.ends[number], across.ends[number % len(across.ends)]
        size = high.least, at_least(wide.least + across.unit, wide.ending, across.unit) or wide.least
        image = network.source.like_images(noise(example.shape[1], size))
        graph = network.of_maps(size)
        expected = _check_reading(network, graph, image)
        if of_one_class(expected):
            notes.append(_ONE_CLASS)
        sessions, chosen = WindowSessions(cut), crossing(cut.windows.of(*size))
        maps = sessions.map(image, sessions.statistics_of([image]), chosen=chosen)
        _compare(maps, cut, graph, image, expected, chosen)
    return notes


def crossing(windows: ImageWindows) -> list[int]:
    """Return the numbers of windows of every row and every column, far fewer than all: a cross, and a few more.

    What a window has along rows follows from its kind of rows alone, and so for columns; the others are for operators
    that break this.
    """
    rows, cols = len(windows.rows.windows), len(windows.cols.windows)
    cross = {(row, cols // 2) for row in range(rows)} | {(rows // 2, col) for col in range(cols)}
    ends = {(row, col) for row in (0, rows - 1) for col in (0, cols - 1)}
    rng = np.random.default_rng(0)
    others = zip(*(rng.integers(count, size=_OTHERS).tolist() for count in (rows, cols)), strict=True)
    return sorted(row * cols + col for row, col in cross | ends | {*others})


def _check_other(network: Network, example: Array) -> list[str]:
    try:
        network.source.run(example)
    except Exception:  # noqa: BLE001 - the user's own code may raise anything
        return []
    return _check(network, example)


def _compare(
    maps: list[Array], cut: WindowTiles, graph: Graph, image: Array, expected: Answer, chosen: Sequence[int] = ()
) -> None:
    height, width = image.shape[2:]
    tensors = [  # a tile may be of an image of another size
        replace(tensor, dims=(*tensor.dims[:-2], *made.shape[2:]))
        for tensor, made in zip(cut.tiles[0].graph.output_tensors, maps, strict=True)
    ]
    outputs = shaped(tensors, maps)
    if chosen:
        known: dict[str, Any] = expected if len(outputs) > 1 else dict.fromkeys(outputs, expected)
        for number, (name, values) in enumerate(outputs.items()):
            view, computed = cut.windows.of(height, width).of_output(number), np.zeros(values.shape[-2:], bool)
            for window in chosen:
                computed[view[window].written.slices] = True
            outputs[name] = np.where(computed, values, np.asarray(known[name]))
    got = as_answer(outputs)
    if not _same(graph, image, got, expected):
        deviation = difference(got, expected)
        raise WrongAnswerError(
            f"windows of {height} x {width} pixels differ from the network on the whole image by {deviation.error:.2g} "
            f"of its range (at most {TOLERANCE:g} is allowed), or in their first class; nothing was written"
        )


def _same(graph: Graph, image: Array, got: Answer, expected: Answer) -> bool:
    runner = partial(whole_runner, graph)
    return difference(got, expected).exact or difference(got, expected, noise_of(runner, graph, image)).exact
