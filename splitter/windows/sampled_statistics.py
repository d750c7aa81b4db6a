"""Statistics over the whole image, measured once on a sample: one pass over an image then makes its map.

The sample is parts of an image, from all over it. How much a result depends on where they come from is measured as
well: parts of one half are mapped with the statistics of their own half, which is exact, and with those of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from serfer.core.errors import InputError, UsageError
from serfer.core.exactness import agreement, class_overlaps, overlap, relative_error
from serfer.core.pixel_look import look_of, places_of_parts
from serfer.core.plan import Foreground, SampleDifference, Windows
from serfer.raster import open_raster
from serfer.splitter.network.size_guards import CHECKED_STEP
from serfer.splitter.network.source import Array
from serfer.splitter.windows.image_values import ImageValues
from serfer.splitter.windows.network_at_sizes import Network
from serfer.splitter.windows.passes import windows_in_memory
from serfer.splitter.windows.sample import Sample, generated
from serfer.splitter.windows.window_sessions import WindowSessions

_SIDES = (512, 384, 256, 192)
"""Sides that a part of a sample may have; it has as many pixels more as an image is past a multiple of CHECKED_STEP."""
_WINDOW = 256
_Size = tuple[int, int]


def parts_of_sample(network: Network, size: _Size, channels: int, file: Path | None) -> list[Sample]:
    """Return parts of an image `file`, or of a generated one, for a network that maps images of `size`.

    Raises what `open_raster` raises, and InputError for an image of other bands or of too few pixels.
    """
    if file is None:
        height, width = _part(size, _SIDES[0])
        whole = network.source.like_images(generated(channels, 2 * height, 2 * width))
        places = places_of_parts((2 * height, 2 * width), (height, width))
        return [Sample("a generated image", np.ascontiguousarray(whole[:, :, *place.slices])) for place in places]
    with open_raster(file) as source:
        if source.bands != channels:
            raise InputError(f"{file} has {source.bands} bands, and the network takes {channels} channels")
        sides = [_part(size, side) for side in _SIDES]
        fitting = [part for part in sides if len(places_of_parts(source.size, part)) > 1]
        if not fitting:
            least = " x ".join(f"{side:,}" for side in sides[-1])
            raise InputError(
                f"{file} has {source.size[0]:,} x {source.size[1]:,} pixels, and a sample has at least two parts of "
                f"{least}: give a larger one"
            )
        values = ImageValues.of_file(source, network.source.preprocess)
        places = max((places_of_parts(source.size, part) for part in fitting), key=len)  # the first is of the largest
        return [Sample(file.name, values.of(source.read(place))) for place in places]


def _part(size: _Size, side: int) -> _Size:
    height, width = (side + each % CHECKED_STEP for each in size)
    return height, width


def with_sampled_statistics(
    network: Network, windows: Windows, sample: Sequence[Sample], threshold: float | None
) -> Windows:
    """Return windows that have the statistics of a sample, and what that makes of it; of parts, at least two.

    With a `threshold` of the map's values, that says how the foreground above it changes, too. Raises UsageError for
    one of a map of classes.
    """
    size: _Size = sample[0].values.shape[2:]
    [tensor] = network.of_maps(size).output_tensors
    if threshold is not None and tensor.dtype != "float32":
        raise UsageError(
            "--threshold is of a map's values, and this one has whole numbers, of which the IoU of each is measured: "
            "leave it out"
        )
    sessions = WindowSessions(windows_in_memory(network, size, _WINDOW))
    values = [each.values for each in sample]
    halves = [sessions.statistics_of(half) for half in (values[::2], values[1::2])]
    exact, other = (np.stack([sessions.map(each, known)[0] for each in values[1::2]]) for known in reversed(halves))
    known = sessions.statistics_of(values)
    name = f"{len(sample) - len(sample) // 2} and {len(sample) // 2} parts of {sample[0].name}"
    if tensor.dtype == "float32":
        difference = _of_values(name, exact[:, 0], other[:, 0], threshold)
    else:
        difference = _of_classes(name, exact, other)
    looks = [look_of([each[0] for each in some]) for some in (values, values[::2], values[1::2])]
    spread, _ = looks[1].apart(looks[2])
    difference = replace(difference, look=looks[0], spread=spread)
    return replace(windows, known=tuple(known.tolist()), difference=difference)


def _of_classes(name: str, exact: Array, other: Array) -> SampleDifference:
    """Compare maps of classes (parts, 1, 1, rows, cols) of the same pixels."""
    foreground = Foreground(None, None, class_overlaps(exact, other)) if exact.min() >= 0 else None
    height, width = exact.shape[-2:]
    return SampleDifference(name, height, width, None, None, float((exact == other).mean()), foreground)


def _of_values(name: str, exact: Array, other: Array, threshold: float | None) -> SampleDifference:
    """Compare maps (parts, channels, rows, cols) of the same pixels."""
    error, span = relative_error(other, exact), float(np.ptp(exact)) or 1.0
    mean = float(np.abs(other - exact).mean(dtype=np.float64)) / span
    same = agreement(other, exact) if exact.shape[1] > 1 else None
    foreground = None
    if threshold is not None:
        one, twin = exact > threshold, other > threshold
        shares = tuple(overlap(one[:, channel], twin[:, channel]) for channel in range(one.shape[1]))
        foreground = Foreground(threshold, float((one != twin).mean()), shares)
    height, width = exact.shape[-2:]
    return SampleDifference(name, height, width, error, mean, same, foreground)
