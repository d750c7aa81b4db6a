"""Build a map plan: read the model, choose its windows, write them, and check them on a small image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from serfer.core.errors import ModelError, WrongAnswerError
from serfer.core.exactness import TOLERANCE, check_finite, difference
from serfer.core.plan import ZIP, Plan
from serfer.core.plan.answers import Answer, as_answer, shaped
from serfer.images import check_channels
from serfer.splitter.network.description import Description
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.reductions import check_one_to_reduce, of_one_class, with_reduction
from serfer.splitter.network.size_guards import CHECKED_STEP
from serfer.splitter.network.source import Array, ImageNotTakenError, Progress, Source, load
from serfer.splitter.plan_dir.check import whole_runner
from serfer.splitter.plan_dir.output_directory import appearing_whole
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.windows.any_size import AnySizeNetwork, any_size_tiles, base_size
from serfer.splitter.windows.approximate import choose_overlapping, overlapping_tiles, steps_of
from serfer.splitter.windows.crops import crops_of
from serfer.splitter.windows.detector import detector_of, example_of, in_strides, is_detector
from serfer.splitter.windows.global_statistics import passes_of
from serfer.splitter.windows.map_plan import (
    Network,
    WindowChoice,
    WindowTiles,
    choose_windows,
    naming,
    window_tiles,
    write_map_plan,
)
from serfer.splitter.windows.passes import check_times, with_passes
from serfer.splitter.windows.sample import measured, sample_of
from serfer.splitter.windows.sampled_statistics import parts_of_sample, with_sampled_statistics
from serfer.splitter.windows.wanted_sizes import AnySize
from serfer.splitter.windows.window_kinds import rounded_step
from serfer.splitter.windows.window_sessions import WindowSessions

_SMALL = 192
"""Rows and columns that the image of the check has at least; it has as many more as the sizes are past a multiple."""
_SMALL_WINDOW = 48
_AUTO, _SAMPLE = "auto", "sample"
_ANY_MB = 1 << 30
_ROUNDING = frozenset({"Round", "Floor", "Ceil", "Cast", "Sign"})


@dataclass(frozen=True)
class WindowRequest:
    """Windows as they are asked for: of `side` pixels of the result, None for the cheapest.

    With an `overlap` they are images of their own that have so many pixels around what they write, compared with the
    whole on an image file `sample`, or a generated one; without it they are exact. `statistics` over the whole image
    are "exact", "sample": those of the sample, or "auto": exact where that takes at most a few times the work of the
    map alone.
    """

    side: int | None = None
    overlap: int | None = None
    sample: Path | None = None
    statistics: str = "auto"


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
    example = _example(channels, small)
    source, example = _load(model, example, first)
    detector = None
    if is_detector(source, description) and wanted.overlap is None:
        if isinstance(sizes, AnySize):
            raise ModelError("boxes are for images of certain sizes: give them, --size HEIGHTxWIDTH")
        progress("finding the heads of the detector")
        detector = detector_of(source, channels, description)
        large = [*dict.fromkeys(detector.padded(size) for size in large)]
        source, example = detector.trunk, example_of(detector, channels, large[0], _SMALL)
    small = example.shape[2], example.shape[3]
    source = replace(
        with_reduction(source, description.reduction),
        name=description.name or source.name,
        preprocess=description.preprocess or source.preprocess,
        labels=description.labels or source.labels,
    )

    @cache
    def at(height: int, width: int, like: tuple[int, int] | None = None) -> Graph:
        model = source.at(like or (height, width))
        return from_onnx(model, height, width, source.outputs, description.reduction, any_size=True)

    network = Network(source, at)
    made = _Making(network, large, small, example, budget, progress)
    if source.preprocess:
        reference = network.of_maps(small)
        check_channels(source.preprocess, reference.shape(reference.input))
        source.check_numbers(source.preprocess)
    if description.reduction and description.reduction.output is None:
        check_one_to_reduce(network.of_maps(small).output_tensors)
    if isinstance(sizes, AnySize):
        cut, choice = made.any_size(sizes, wanted.side)
    else:
        cut, choice = made.exact(wanted) if wanted.overlap is None else made.overlapping(wanted, wanted.overlap)
    crops = crops_of(network, cut.windows, example.shape[1])
    cut = replace(cut, windows=replace(cut.windows, crops=crops.size if crops else None))
    with appearing_whole(place) as directory:
        progress(f"writing {len(cut.tiles)} kinds of windows")
        finish = detector.written if detector else (lambda plan, _: plan)
        reference = crops.graph if crops else network.of_maps(small)
        plan = write_map_plan(network, cut, choice, reference, budget, directory, finish)
    return plan, tuple(dict.fromkeys(made.notes))


@dataclass(frozen=True)
class _Making:
    """A network whose windows are cut and checked, and an `example` image of a `small` size."""

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
        self.progress("cutting windows")
        cut = window_tiles(network, self.sizes, choice.step)
        if wanted.statistics == _SAMPLE and passes_of(graph):
            self.progress("adding up statistics of a sample")
            parts = parts_of_sample(network, self.sizes[0], self.example.shape[1], wanted.sample)
            cut = replace(cut, windows=with_sampled_statistics(network, cut.windows, parts))
        else:
            cut = with_passes(network, self.sizes, cut, choice)
        if wanted.statistics == _AUTO:
            check_times(cut, choice, self.budget)
        self.progress("checking windows against the whole network")
        self.notes.extend(_check(network, self.example))
        for small in dict.fromkeys(_small(size) for size in self.sizes):
            if small != self.small:
                self.notes.extend(
                    _check_other(network, network.source.like_images(_example(self.example.shape[1], small)))
                )
        return cut, choice

    def any_size(self, sizes: AnySize, window: int | None) -> tuple[WindowTiles, WindowChoice]:
        """Return windows by rules, for images of any size."""
        self.progress("finding what shifts with the image")
        network = AnySizeNetwork.of(self.network, sizes)
        choice = choose_windows(network.graph, network.known, self.budget, window)
        self.progress("finding windows for images of any size")
        cut = any_size_tiles(network.for_side(choice.step), choice.step)
        self.progress("checking windows against the whole network")
        self.notes.extend(_check_rules(self.network, cut, self.example))
        return cut, choice

    def overlapping(self, wanted: WindowRequest, overlap: int) -> tuple[WindowTiles, WindowChoice]:
        """Return windows that are images of their own, and measure what that makes of a sample."""
        network, size = self.network, self.sizes[0]
        self.progress("finding what shifts with the image")
        steps = steps_of(network, self.small)
        cut, choice = choose_overlapping(network, steps, size, overlap, self.budget, wanted.side)
        self.progress("cutting windows")
        tiles = overlapping_tiles(network, self.sizes, cut)
        self.progress("comparing windows of a sample with the whole network")
        _check_reading(network, network.of_one_map(self.small), self.example)
        channels = self.example.shape[1]
        sample = sample_of(network, cut, size, channels, wanted.sample, network.source.preprocess)
        difference = measured(network, cut, sample)
        if difference.of_one_class:
            self.notes.append(_one_class(f"{difference.sample}, on which windows were compared,"))
        return replace(tiles, windows=replace(tiles.windows, difference=difference)), choice


def _load(model: Any, example: Array, size: tuple[int, int]) -> tuple[Source, Array]:  # noqa: ANN401 - as above
    try:
        return load(model, example, any_size=size)
    except ImageNotTakenError as error:
        small, large = (" x ".join(map(str, each)) for each in (example.shape[2:], size))
        if small == large:
            raise
        raise ModelError(
            f"{error} (a network whose strides do not divide {large} pixels does not take {small} either: pad the "
            "image to a multiple)"
        ) from error


def _small(size: tuple[int, int]) -> tuple[int, int]:
    """Return a small size that any stride divides as it does an image's, so that a network that takes one takes it."""
    height, width = (min(each, each % CHECKED_STEP + _SMALL) for each in size)
    return height, width


def _example(channels: int, size: tuple[int, int]) -> Array:
    return np.random.default_rng(0).standard_normal((1, channels, *size), dtype=np.float32)


def _check_reading(network: Network, graph: Graph, example: Array) -> Answer:
    """Return the model's own answer; raises ModelError where the network as it was read gives another one."""
    expected = network.source.run(example)
    check_finite(expected, "the model's own answer to a random image")
    if not difference(whole_runner(graph)(example), expected).exact:
        steps = [node for node in graph.nodes if node.kind in _ROUNDING or node.output in graph.others]
        where = f": {steps[0].name!r} ({steps[0].kind}) rounds, and a value may lie at a step of it" if steps else ""
        raise ModelError(f"the network as it was read differs from the model itself before any window is cut{where}")
    return expected


def _check(network: Network, example: Array) -> list[str]:
    """Compare small windows of a small image with the model on all of it; return notes; raises WrongAnswerError.

    A small image that cannot be cut says nothing against the sizes that were: it is compared as it was read.
    """
    height, width = example.shape[2:]
    graph = network.of_maps((height, width))
    expected = _check_reading(network, graph, example)
    notes = [_one_class("a random image, on which windows were checked,")] if of_one_class(expected) else []
    try:
        local = network.checked((height, width))
        known = network.strides(local)
        step = rounded_step(_SMALL_WINDOW, *known, known[0].finest(local.outputs))
        cut = window_tiles(network, [(height, width)], step)
        cut = with_passes(network, [(height, width)], cut, WindowChoice(step, _ANY_MB, ZIP))
    except ModelError:
        return notes
    _compare(cut, example, expected)
    return notes


def _check_rules(network: Network, cut: WindowTiles, example: Array) -> list[str]:
    """Compare the plan's own windows of a few small images with the model on all of them, as `_check` does."""
    rules = cut.windows.rules
    assert rules is not None  # noqa: S101 - of a plan for any size
    down, across = rules.sides[-1].rows, rules.sides[-1].cols
    notes: list[str] = []
    for number in dict.fromkeys((0, len(down.ends) // 2, len(down.ends) - 1)):
        size = down.ends[number].least, across.ends[number % len(across.ends)].least + across.unit
        image = network.source.like_images(_example(example.shape[1], size))
        expected = _check_reading(network, network.of_one_map(size), image)
        if of_one_class(expected):
            notes.append(_one_class("a random image, on which windows were checked,"))
        _compare(cut, image, expected)
    return notes


def _check_other(network: Network, example: Array) -> list[str]:
    """Do the same for a size that is not the first, unless the network does not take it in small."""
    try:
        network.source.run(example)
    except Exception:  # noqa: BLE001 - the user's own code may raise anything
        return []
    return _check(network, example)


def _compare(cut: WindowTiles, example: Array, expected: Answer) -> None:
    maps = WindowSessions(cut).run(example)
    tensors = [  # a tile may be of an image of another size
        replace(tensor, dims=(*tensor.dims[:-2], *made.shape[2:]))
        for tensor, made in zip(cut.tiles[0].graph.output_tensors, maps, strict=True)
    ]
    got = as_answer(shaped(tensors, maps))
    deviation = difference(got, expected)
    if not deviation.exact:
        height, width = example.shape[2:]
        raise WrongAnswerError(
            f"windows of {height} x {width} pixels differ from the network on the whole image by {deviation.error:.2g} "
            f"of its range (at most {TOLERANCE:g} is allowed), or in their first class; nothing was written"
        )


def _one_class(image: str) -> str:
    """Return the note for classes of windows and of the whole that agree whatever their scores."""
    return (
        f"the network gives {image} one class everywhere, so that the comparison says little: make a plan without "
        "--reduce once, which compares scores"
    )
