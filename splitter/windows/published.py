"""What a model package is published with, against its network: the answer to its test, and the halo of its tiles.

A program that cuts an image into tiles runs each as an image of its own, and cuts the halo off each side of its result.
What is left is the network's on the whole image if all that it reads lies in the tile. Tiles that begin at multiples of
the network's stride are the best case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil, floor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ModelError
from serfer.core.exactness import TOLERANCE, difference, relative_error
from serfer.core.geometry import Span
from serfer.core.plan.answers import as_answer, shaped
from serfer.splitter.network.bioimageio.package import Package, read_package
from serfer.splitter.network.description import Reduction
from serfer.splitter.network.graph import COL_AXIS, ROW_AXIS, Graph, needed_for
from serfer.splitter.network.reductions import reduced_answer
from serfer.splitter.network.source import Array, Progress, Source, load
from serfer.splitter.tiling.receptive_field import spans_of
from serfer.splitter.tiling.regions import AxisWalk, axis_node
from serfer.splitter.tiling.tiling_rule import extent
from serfer.splitter.windows.image_values import ImageValues
from serfer.splitter.windows.network_at_sizes import Network
from serfer.splitter.windows.passes import windows_in_memory
from serfer.splitter.windows.strides import Strides
from serfer.splitter.windows.window_sessions import WindowSessions

_RELATIVE = _ABSOLUTE = 1e-3
_MOST_OTHER = 100e-6
"""How far a test may be from what is published, and what share of it further: the format's defaults (its 0.5)."""
_LEAST_OF_RANGE = 0.01  # of the largest value: no absolute tolerance is more
_PER_MILLION = 1_000_000
_WINDOWS = 3  # a side, of a test's image


@dataclass(frozen=True)
class TestedOutput:
    """An output's answer to the test beside the published one: the largest difference relative to its range.

    `other` is the share of values that differ by more than 1e-3 and 1e-3 of their own size; `error` is None where there
    is nothing to compare with, for the reason `why`.
    """

    name: str
    error: float | None = None
    other: float = 0.0
    why: str = ""

    @property
    def as_published(self) -> bool:
        """Whether the answer is the published one, or none is published."""
        return self.other <= _MOST_OTHER

    def __str__(self) -> str:
        """Return it in words."""
        if self.error is None:
            return f"the network's answer to the package's test in {self.name!r} is not compared: {self.why}"
        what = "is" if self.as_published else "is NOT"
        more = "" if self.as_published else f", {self.other:.2%} of values by more than the format allows"
        apart = f"it differs by at most {self.error:.1e} of its range{more}"
        return f"the network's answer to the package's test in {self.name!r} {what} the published one: {apart}"


@dataclass(frozen=True)
class PublishedHalo:
    """A published halo of an output, and the one that its network needs, both along rows and columns.

    They are in pixels of the output; `reads` are the pixels of the image that the network reads around one of the
    output, at most. Without a `needed` one none is enough, or none is known, for the reason `why`.
    """

    name: str
    published: tuple[int, int]
    needed: tuple[int, int] | None
    reads: tuple[int, int] | None
    why: str = ""

    @property
    def enough(self) -> bool:
        """Whether tiles with the published halo make the network's result on the whole image."""
        return self.needed is not None and all(
            one >= other for one, other in zip(self.published, self.needed, strict=True)
        )

    def __str__(self) -> str:
        """Return it in words."""
        said = f"the package publishes a halo of {_sides(self.published)} for {self.name!r}"
        if self.needed is None or self.reads is None:
            return f"{said}, and {self.why}"
        reads = f"its network reads {_sides(self.reads)} pixels around a pixel"
        if self.enough:
            return f"{said}, which is enough: {reads} and needs {_sides(self.needed)}"
        seams = "Tools that cut images into tiles with it have seams"
        return f"{said}, and {_sides(self.needed)} are needed: {reads}. {seams}"


def _sides(pair: tuple[int, int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} (rows) and {pair[1]} (columns)"


@dataclass(frozen=True)
class PackageCheck:
    """What `verify` finds of a package: its answers to its test, those of windows, and its halos.

    `windows` is the largest difference of windows from the network on the whole test image, relative to its range; None
    where the network cannot be cut into windows, for the reason `refused`.
    """

    package: str
    size: tuple[int, int]
    answers: tuple[TestedOutput, ...]
    windows: float | None
    refused: str
    halos: tuple[PublishedHalo, ...]
    notes: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether all answers are as published, and windows make the same."""
        return all(each.as_published for each in self.answers) and (self.windows is None or self.windows <= TOLERANCE)

    @property
    def lines(self) -> list[str]:
        """What was found, in sentences."""
        height, width = self.size
        cut = f"windows of it cannot be made: {self.refused}"
        if self.windows is not None:
            cut = f"windows of it differ from the network on all of it by at most {self.windows:.1e} of its range"
        test = f"{self.package}, whose test is an image of {height:,} x {width:,} pixels"
        return [test, *map(str, self.answers), cut, *map(str, self.halos), *self.notes]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        halos = [{**asdict(each), "enough": each.enough} for each in self.halos]
        answers = [{**asdict(each), "as_published": each.as_published} for each in self.answers]
        return {**asdict(self), "answers": answers, "halos": halos, "exact": self.exact}


def published_reduction(package: Package, source: Source) -> Reduction | None:
    """Return what a package's postprocessing makes of its outputs; raises ModelError for what no plan does."""
    refused = next((each.refused for each in package.outputs if each.refused), None)
    if refused:
        raise ModelError(
            f"{package.files.place}: {refused}: --reduce none, sigmoid, softmax or argmax makes the map of what comes "
            "before"
        )
    reduced = [(number, each.reduce) for number, each in enumerate(package.outputs) if each.reduce]
    if not reduced:
        return None
    if len(reduced) > 1:
        raise ModelError(
            f"{package.files.place} reduces {len(reduced)} outputs, and a plan one: --reduce none makes maps of what "
            "the network gives"
        )
    [(number, kind)] = reduced
    names = [output.name for output in source.onnx.proto.graph.output]
    return Reduction(kind, None, names[number] if len(names) > 1 else None)


def notes_on_package(source: Source, progress: Progress) -> list[str]:
    """Return warnings where the network does not answer a package's own test as it is published."""
    package = source.package
    if package is None or package.test is None:
        return []
    progress("running the package's test")
    return [str(each) for each in _answers(source, package, _test_input(package)) if not each.as_published]


def check_package(place: Path, progress: Progress) -> PackageCheck:
    """Check a package against its network; raises ModelError where it is not one, or has no test.

    The network runs once on the test's image, and once window by window.
    """
    progress("reading the package")
    package = read_package(place)
    image = _test_input(package)
    height, width = image.shape[2:]
    source, _ = load(str(place), image, any_size=(height, width))
    progress("running the package's test")
    answers = tuple(_answers(source, package, image))
    reduction = None if any(each.refused for each in package.outputs) else published_reduction(package, source)
    windows, refused, halos = None, "", tuple[PublishedHalo, ...]()
    try:
        network = Network.of(source, reduction)
        graph = network.checked((height, width))
        known = network.strides(graph)
        progress("comparing windows with the network")
        windows = _windows_of(network, known, image)
        progress("finding what the network reads")
        halos = tuple(_halos(network, package, graph, known))
    except ModelError as error:
        refused = str(error)
        why = "which one it needs is not known, as windows cannot be made of it"
        halos = tuple(PublishedHalo(each.name, each.halo, None, None, why) for each in package.outputs)
    return PackageCheck(str(place), (height, width), answers, windows, refused, halos, source.notes)


def _test_input(package: Package) -> Array:
    """Return the image of a package's test as its network takes it, (1, C, H, W)."""
    planes = np.ascontiguousarray(package.test_image())
    return ImageValues.of_array(planes, package.preprocess).of(planes)


def _answers(source: Source, package: Package, image: Array) -> list[TestedOutput]:
    answer = source.run(image)
    values = [*answer.values()] if isinstance(answer, Mapping) else [answer]
    found = []
    for output, got in zip(package.outputs, values, strict=True):
        if output.refused:
            found.append(TestedOutput(output.name, why=output.refused))
            continue
        expected = package.test_answer(output)
        if expected is None:
            found.append(TestedOutput(output.name, why="the package has no test output"))
            continue
        made = np.asarray(reduced_answer(got, Reduction(output.reduce))) if output.reduce else got
        found.append(_tested(output.name, made, np.asarray(expected)))
    return found


def _tested(name: str, got: NDArray[Any], expected: NDArray[Any]) -> TestedOutput:
    if got.shape != expected.shape:
        raise ModelError(
            f"the network gives {name!r} the shape {got.shape}, and the package's test has {expected.shape}"
        )
    one, other = got.astype(np.float64), expected.astype(np.float64)
    absolute = min(_ABSOLUTE, _LEAST_OF_RANGE * float(np.abs(other).max(initial=0.0)))
    apart = np.abs(one - other) > absolute + _RELATIVE * np.abs(other)
    return TestedOutput(name, relative_error(one, other), float(apart.mean()))


def _windows_of(network: Network, known: tuple[Strides, Strides], image: Array) -> float:
    """Return how far windows of an image are from the network on all of it, relative to its range."""
    size = image.shape[2], image.shape[3]
    graph = network.checked(size)
    finest = known[0].finest(graph.outputs)
    side = max(extent(graph, finest, ROW_AXIS), extent(graph, finest, COL_AXIS)) // _WINDOWS
    cut = windows_in_memory(network, size, max(1, side))
    answer = as_answer(shaped(network.of_maps(size).output_tensors, WindowSessions(cut).run(image)))
    return difference(answer, network.source.run(image)).error


def _halos(network: Network, package: Package, graph: Graph, known: tuple[Strides, Strides]) -> Sequence[PublishedHalo]:
    shape = graph.shape(graph.input)
    if graph.statistics:
        why = (
            "no halo is enough: it takes statistics of the whole image, which a tile does not have. Tools that cut "
            "images into tiles have seams"
        )
        return [PublishedHalo(each.name, each.halo, None, None, why) for each in package.outputs]
    larger = network.larger((shape.height, shape.width))
    found = []
    for output, name in zip(package.outputs, larger.outputs, strict=True):
        rows, cols = (_needed(larger, name, axis, each) for axis, each in zip((ROW_AXIS, COL_AXIS), known, strict=True))
        found.append(PublishedHalo(output.name, output.halo, (rows[0], cols[0]), (rows[1], cols[1])))
    return found


def _needed(graph: Graph, output: str, axis: int, known: Strides) -> tuple[int, int]:
    """Return the halo that an output needs along an axis, and the most pixels read before or after one of it.

    `graph` is that of an image so large that its middle reads nothing beyond its ends. A row is the whole image's in a
    tile that begins at 0 if it reads nothing before 0 there, and in one that ends with the image if nothing after that.
    """
    unit, stride = known.of(output), known.stride
    size, made = extent(graph, graph.input, axis), extent(graph, output, axis)
    first = made // 2 // unit * unit
    rows = [Span(row, row + 1) for row in range(first, first + unit)]
    nodes = needed_for(graph.nodes, [output])
    walk = AxisWalk([axis_node(graph, node, axis) for node in nodes], {output: spans_of(rows)})
    while walk.position:
        walk.step()
    starts, stops = (walk.spans[graph.input] - first // unit * stride).tolist()
    pixels = Fraction(stride, unit)
    inward = max(Fraction(0), size - made * pixels) / 2  # where the result lies on the image, if it does not cover it
    needed, reach = 0, 0
    for row, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        before = (ceil(Fraction(-start, stride)) - 1) * unit + row + 1
        after = made - ((floor(Fraction(size - stop, stride)) + 1) * unit + row)
        needed = max(needed, before, after)
        reach = max(reach, ceil(row * pixels + inward - start), ceil(stop - (row + 1) * pixels - inward))
    return needed, reach
