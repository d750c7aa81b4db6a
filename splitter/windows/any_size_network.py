"""A network for images of any size: the sizes that it takes, and its axes for each residue of the stride."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, lcm

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ModelError
from serfer.core.geometry import Span
from serfer.core.plan import AxisRule
from serfer.core.plan.windows import Ending, at_least
from serfer.splitter.network.graph import COL_AXIS, ROW_AXIS, Graph, needed_for
from serfer.splitter.network.interpolation import made_size, scale_of
from serfer.splitter.network.unsupported import CannotSplitError, refuse
from serfer.splitter.tiling.tiling_rule import extent
from serfer.splitter.windows.axis_rules import NetworkAxis
from serfer.splitter.windows.global_statistics import passes_of
from serfer.splitter.windows.network_at_sizes import Network
from serfer.splitter.windows.owned_elements import with_skipped
from serfer.splitter.windows.strides import LONGER, Strides, check_shifts
from serfer.splitter.windows.wanted_sizes import MOST_PIXELS, AnySize

_WINDOWS = 8
"""Windows along an axis of the large images, at least."""
_MOST_UNIT = 1_024
_MOST_PAST = 32
"""Sizes that follow each other, among which one is looked for that the network takes."""
SMALLER = 8
"""By what large images are smaller on which residues are tried as well."""
_MOST_REASON = 300
"""Characters of why a network does not take some lengths, as the plan keeps it."""
_FARTHEST = 4
"""By what factor images may be larger, which show how resizings round some sizes."""
_UNKNOWN = -MOST_PIXELS
_GIVE_SIZES = "give the sizes of your images, --size HEIGHTxWIDTH"
ONE_A_SIZE = f"what it computes depends on the image's size: {_GIVE_SIZES}"


@dataclass(frozen=True)
class AnySizeNetwork:
    """A network and the sizes that images may have; `base` is about the side of images that its windows are found on.

    Its units divide `base`, and it takes images of `past` more pixels. `rows` and `cols` are the rows (or columns) of
    each tensor for a unit of the image, by which windows begin. A pass ends as the `map_part` does, None for this.
    """

    network: Network
    base: int
    past: int
    rows: Strides
    cols: Strides
    multiple: int
    map_part: AnySizeNetwork | None = None

    def for_side(self, side: int) -> AnySizeNetwork:
        """Return the network on images that have several windows of a side, in pixels as `NetworkAxis.pixels`."""
        needed = max(_WINDOWS * side / (axis.units * axis.pixels) for axis in self.large)
        return replace(self, base=self.base * ceil(needed))

    def checked(self, size: tuple[int, int]) -> Graph:
        """Return the graph at an image's size; raises ModelError where it looks at more than neighbourhoods."""
        return self.network.checked(size).once(with_skipped)

    @property
    def graph(self) -> Graph:
        return self.checked((self.base + self.past, self.base + self.past))

    @property
    def large(self) -> tuple[NetworkAxis, NetworkAxis]:
        return self.on(self.graph, ROW_AXIS), self.on(self.graph, COL_AXIS)

    def on(self, graph: Graph, axis: int) -> NetworkAxis:
        return NetworkAxis(graph, axis, self.known[axis - ROW_AXIS], in_units=self.network.number is not None)

    @property
    def known(self) -> tuple[Strides, Strides]:
        return self.rows, self.cols

    def axis(self, size: tuple[int, int], axis: int) -> NetworkAxis:
        """Return an axis of the network at a size; raises ModelError for one that it does not take as others."""
        if other := self.network.other_way((self.base + self.past,) * 2, size):
            raise ModelError(f"the network looks at the image's size: {size[0]} x {size[1]} {other}; {_GIVE_SIZES}")
        graph = self.checked(size)
        known = self.known[axis - ROW_AXIS]
        missing = next((node for node in graph.nodes if node.output not in known.rates), None)
        if missing is not None:
            raise refuse(missing.name, missing.kind, "whether the network has it depends on the image's size")
        check_shifts(graph, axis, known)
        return self.on(graph, axis)

    def check_ways(self, rules: Sequence[AxisRule]) -> None:
        """Raise ModelError where not all images that rules of rows and columns are for are known to go the same way."""
        if self.network.number is not None or (sized := self.network.source.sized) is None:
            return  # a pass goes the way of the map, and a file has no other
        stop = MOST_PIXELS + 1.0
        lengths = [np.concatenate([np.arange(end.least, stop, rule.unit) for end in rule.ends]) for rule in rules]
        if condition := sized.of((self.base + self.past,) * 2).guards.unproven(lengths):
            raise ModelError(f"the network looks at the image's size: all may not meet {condition}; {_GIVE_SIZES}")

    def axes(self, axis: int) -> tuple[dict[Ending, NetworkAxis], str]:
        """Return the axis for each way to end that the network takes, and why there are some that it does not.

        Raises ModelError where it takes none.
        """
        taken, errors = dict[Ending, NetworkAxis](), dict[int, ModelError]()
        unit, other = self.known[axis - ROW_AXIS].stride, self.base + self.past
        for residue in range(0, unit, self.multiple):
            try:
                groups = (self.map_part or self).endings(axis, self.base + residue)
                known = sum(len(range(span.start, span.stop, unit)) for sizes in groups for span in sizes)
                if groups != [()] and known < len(range(residue, MOST_PIXELS + 1, unit)):
                    errors[residue] = ModelError("a Resize reads what another one rounds otherwise at other sizes")
                for sizes in groups:
                    lengths = [at_least(size, (residue, sizes), unit) for size in (self.base, self.base // SMALLER)]
                    large, small = (
                        self.axis((length, other) if axis == ROW_AXIS else (other, length), axis)
                        for length in lengths
                        if length is not None
                    )
                    check_extents(small.graph, large, (small.size - large.size) // unit)
                    taken[residue, sizes] = large
            except ModelError as error:
                errors[residue] = error
        if not taken:
            raise errors[self.past % unit]
        return taken, shortened(next(iter(errors.values()))) if errors else ""

    def endings(self, axis: int, length: int) -> list[tuple[Span, ...]]:
        """Return sizes, by units more or fewer than `length`, in groups that are alike in how resizings round them.

        One group, (), has all. Left out are sizes at which a resizing reads what another one rounds otherwise.
        """
        other, unit = self.base + self.past, self.known[axis - ROW_AXIS].stride
        graph = self.checked((length, other) if axis == ROW_AXIS else (other, length))
        lengths = np.arange(length % unit, MOST_PIXELS + 1, unit)
        units, rounded = (lengths - length) // unit, dict[str, NDArray[np.int64]]()
        for node in graph.nodes:
            scale = scale_of(graph, node, axis) if node.kind == "Resize" else None
            if scale is None or scale.denominator & (scale.denominator - 1) == 0:
                continue
            size, made = (
                extent(graph, name, axis) + units * self.known[axis - ROW_AXIS].of(name)
                for name in (node.inputs[0], node.output)
            )
            off = made_size(float(scale), size, by_torch=self.network.source.exported) - made
            before = [rounded[n.output] for n in needed_for(graph.nodes, [node.inputs[0]]) if n.output in rounded]
            rounded[node.output] = np.where(np.any(before, axis=0), _UNKNOWN, off) if before else off
        if not any(off.any() for off in rounded.values()):
            return [()]
        ways, numbers = np.unique(np.stack([*rounded.values()]), axis=1, return_inverse=True)
        groups = [lengths[numbers == number] for number, way in enumerate(ways.T) if (way != _UNKNOWN).all()]
        shown = [group for group in groups if ((group >= self.base) & (group <= _FARTHEST * self.base)).any()]
        return [_runs(group, unit) for group in sorted(shown, key=len, reverse=True)]


def _runs(lengths: NDArray[np.int64], unit: int) -> tuple[Span, ...]:
    parts = np.split(lengths, np.flatnonzero(np.diff(lengths) != unit) + 1)
    return tuple(Span(int(part[0]), int(part[-1]) + 1) for part in parts)


def any_size_networks(network: Network, wanted: AnySize) -> tuple[AnySizeNetwork, ...]:
    """Return the network with its units, and each of the passes before it, if there are any, with the same ones.

    Raises ModelError where it looks at more than neighbourhoods and statistics of the whole image.
    """
    try:
        networks = _networks(replace(network, by_position=False), wanted)
    except CannotSplitError as error:
        if not _has_certain_sizes(network, base_size(wanted)):
            raise
        remedy = "windows that depend on where they are have plans for certain sizes: give those of your images"
        raise ModelError(f"{error}; {remedy}, --size HEIGHTxWIDTH") from None
    if conditions := network.branched((networks[0].base + networks[0].past,) * 2)[1]:
        raise ModelError(f"which branch of an If runs, by {min(conditions)!r}, is by the size: {_GIVE_SIZES}")
    return networks


def _has_certain_sizes(network: Network, side: int) -> bool:
    try:
        network.strides(network.checked((side, side)))
    except ModelError:
        return False
    return True


def _networks(network: Network, wanted: AnySize) -> tuple[AnySizeNetwork, ...]:
    base, (past, graph) = base_size(wanted), _find_size_taken(network, wanted)
    parts = [network, *(replace(network, number=number) for number in range(passes_of(graph)))]
    known = [part.strides(part.checked((base + past, base + past))) for part in parts]
    units = [lcm(wanted.multiple, *(strides.stride for strides in axis)) for axis in zip(*known, strict=True)]
    if max(units) > _MOST_UNIT or any(base % unit for unit in units):
        raise ModelError(
            f"the network's strides of {units[0]:,} and {units[1]:,} pixels are too unusual for images of any size: "
            "give the sizes of your images, --size HEIGHTxWIDTH"
        )
    rows, cols = units
    first, *passes = (
        AnySizeNetwork(part, base, past, replace(down, stride=rows), replace(across, stride=cols), wanted.multiple)
        for part, (down, across) in zip(parts, known, strict=True)
    )
    return first, *(replace(part, map_part=first) for part in passes)


def _find_size_taken(network: Network, wanted: AnySize) -> tuple[int, Graph]:
    base, first = base_size(wanted), None
    for past in range(0, _MOST_PAST * wanted.multiple, wanted.multiple):
        try:
            return past, network.checked((base + past, base + past))
        except CannotSplitError as error:
            raise first or error from None
        except ModelError as error:
            first = first or error
    assert first is not None  # noqa: S101 - there is a first size
    raise first


def shortened(why: ModelError) -> str:
    """Return why a network does not take some lengths, without what to do, as the plan keeps it."""
    return str(why).split("; ")[0][:_MOST_REASON]


def base_size(wanted: AnySize) -> int:
    """Return the side of the images on which windows are found: so large that most windows are in the middle."""
    return lcm(LONGER, wanted.multiple)


def check_extents(graph: Graph, axis: NetworkAxis, units: int) -> None:
    for node in axis.graph.nodes:
        wanted = axis.extent(node.output) + units * axis.known.of(node.output)
        if node.output not in graph.shapes or extent(graph, node.output, axis.axis) != wanted:
            raise refuse(node.name, node.kind, ONE_A_SIZE)
