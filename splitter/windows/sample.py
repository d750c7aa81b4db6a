"""What windows that are images of their own make of a sample, beside the network on all of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError, UsageError, WrongAnswerError
from serfer.core.exactness import agreement, check_finite, difference, relative_error
from serfer.core.geometry import Rect, Span
from serfer.core.plan import Preprocess, SampleDifference
from serfer.core.units import MIB
from serfer.raster import RasterSource, open_raster
from serfer.splitter.network.graph import MAP_RANK
from serfer.splitter.network.reductions import of_one_class
from serfer.splitter.network.source import Array
from serfer.splitter.tiling.regions import tile_macs, whole_regions
from serfer.splitter.windows.approximate import FixedOverlap, overlapping_tiles
from serfer.splitter.windows.image_values import ImageValues
from serfer.splitter.windows.map_plan import Network
from serfer.splitter.windows.memory import peak_bytes
from serfer.splitter.windows.window_sessions import WindowSessions

_GIB = 1024 * MIB
_MOST_BYTES = 4 * _GIB
_MOST_MACS = 10**12
"""Multiply-accumulates of a sample of three windows a side, above which it has two: half a minute on two cores."""
_Size = tuple[int, int]


@dataclass(frozen=True)
class Sample:
    """A sample as the network's input (1, C, H, W), and what it is in words."""

    name: str
    values: Array


def sample_of(
    network: Network, cut: FixedOverlap, size: _Size, channels: int, file: Path | None, preprocess: Preprocess | None
) -> Sample:
    """Return a sample of two or three windows a side: the middle of an image `file`, or a generated one.

    Raises UsageError where the network on all of it takes too much memory, or what `open_raster` raises, and InputError
    for an image of other bands or of fewer pixels.
    """
    if file is None:
        height, width = _sample_size(network, cut, size, size)
        return Sample("a generated image", network.source.like_images(generated(channels, height, width)))
    with open_raster(file) as source:
        if source.bands != channels:
            raise InputError(f"{file} has {source.bands} bands, and the network takes {channels} channels")
        height, width = _sample_size(network, cut, size, source.size)
        if height > source.size[0] or width > source.size[1]:
            raise InputError(
                f"{file} has {source.size[0]:,} x {source.size[1]:,} pixels, and a sample has at least "
                f"{height:,} x {width:,}: give a larger one, or smaller windows"
            )
        return Sample(file.name, _middle_of(source, height, width, preprocess))


def _sample_size(network: Network, cut: FixedOverlap, size: _Size, most: _Size) -> _Size:
    two, three = cut.beside(size, 1), cut.beside(size, 2)
    needed, macs = _takes(network, two)
    if needed > _MOST_BYTES:
        raise UsageError(
            f"the network on a whole sample of {two[0]:,} x {two[1]:,} pixels takes about {needed / _GIB:.0f} GiB of "
            "memory, so nothing can be compared with it: choose a smaller --window or overlap"
        )
    if three[0] > most[0] or three[1] > most[1] or macs * _ratio(three, two) > _MOST_MACS:
        return two
    return three if _takes(network, three)[0] <= _MOST_BYTES else two


def _ratio(one: _Size, other: _Size) -> float:
    return one[0] * one[1] / (other[0] * other[1])


def _takes(network: Network, size: _Size) -> tuple[int, int]:
    """Return the bytes and the multiply-accumulates of the network on an image."""
    graph = network.of_one_map(size)
    whole = whole_regions(graph, graph.nodes)
    return peak_bytes(graph, whole), tile_macs(graph, graph.nodes, whole)


def generated(channels: int, height: int, width: int) -> Array:
    """Return an image (1, C, H, W), the same each time: a slope, waves of many lengths, and noise.

    Its windows have other averages than the whole, as those of photographs have.
    """
    rng = np.random.default_rng(0)
    rows, cols = np.indices((height, width), dtype=np.float32)
    image = np.empty((1, channels, height, width), dtype=np.float32)
    for channel in range(channels):
        values = rows / height - cols / width
        for length in (700, 150, 40, 12):
            down, across = rng.uniform(0.5, 1.5, 2) * 2 * np.pi / length
            values += np.sin(down * rows + channel) * np.cos(across * cols) / 2
        image[0, channel] = values + rng.normal(0, 0.2, values.shape)
    return image


def _middle_of(source: RasterSource, height: int, width: int, preprocess: Preprocess | None) -> Array:
    """Return the middle of an image as the network takes it, (1, C, H, W)."""
    top, left = (source.size[0] - height) // 2, (source.size[1] - width) // 2
    place = Rect(Span(top, top + height), Span(left, left + width))
    return ImageValues.of_file(source, preprocess).of(source.read(place))


def measured(network: Network, cut: FixedOverlap, sample: Sample) -> SampleDifference:
    """Compare a sample's windows with the model on all of it.

    Raises ModelError where the model's own answer is not finite, WrongAnswerError where windows are not what the model
    answers to them.
    """
    height, width = sample.values.shape[2:]
    expected = network.source.run(sample.values)
    check_finite(expected, f"the model's own answer to {sample.name}")
    assert isinstance(expected, np.ndarray)  # noqa: S101 - of one output
    [got] = WindowSessions(overlapping_tiles(network, [(height, width)], cut)).run(sample.values)
    got = got.reshape(expected.shape).astype(expected.dtype, copy=False)  # classes are float32 between functions
    _check_windows(network, cut, sample, got)
    if not np.issubdtype(expected.dtype, np.floating):
        same: float | None = agreement(got, expected)
        if same == 1 and of_one_class(expected):
            same = None  # it says nothing about scores
        return SampleDifference(sample.name, height, width, None, None, same)
    error, span = relative_error(got, expected), float(np.ptp(expected)) or 1.0
    mean = float(np.abs(got - expected).mean(dtype=np.float64)) / span
    same = agreement(got, expected) if expected.ndim == MAP_RANK and expected.shape[1] > 1 else None
    return SampleDifference(sample.name, height, width, error, mean, same)


def _check_windows(network: Network, cut: FixedOverlap, sample: Sample, got: NDArray[Any]) -> None:
    """Compare the first and the last window of a sample with what the model makes of those pixels alone."""
    size: _Size = sample.values.shape[2:]
    windows = overlapping_tiles(network, [size], cut).windows.of(*size)
    read = high, wide = cut.reads(size)
    last_high, last_wide = (
        each + (whole - each) % step.pixels for each, whole, step in zip(read, size, (cut.rows, cut.cols), strict=True)
    )
    ends = ((0, sample.values[:, :, :high, :wide]), (len(windows) - 1, sample.values[:, :, -last_high:, -last_wide:]))
    for number, pixels in ends:
        answer = np.asarray(network.source.run(np.ascontiguousarray(pixels)))
        window = windows[number]
        rows, cols = window.written.rows.size, window.written.cols.size
        own = answer[..., -rows:, -cols:] if number else answer[..., :rows, :cols]
        if not difference(got[..., *window.written.slices], own).exact:
            raise WrongAnswerError(
                "a window differs from what the model makes of its pixels alone; nothing was written"
            )
