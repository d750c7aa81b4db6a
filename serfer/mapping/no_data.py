"""Pixels that hold no data: what the network sees of them, and which pixels of the result have none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Rect, Span
from serfer.core.plan.windows import AxisWindows, ImageWindow, ImageWindows
from serfer.mapping.options import WindowOptions
from serfer.raster import RasterSource

NO_PLACE = "where the result lies on its image has no one answer, for branches of the network are off from one another"
_NEARLY = 1e-6  # of a pixel: what a step such as 1/3 adds up to is not exact


@dataclass(frozen=True)
class Sampling:
    """Where along an axis the pixels of a result lie: pixel r covers [start + r * step, start + (r + 1) * step)."""

    start: float
    step: float

    @classmethod
    def of(cls, axis: AxisWindows) -> Sampling | None:
        return None if axis.start is None else cls(axis.start, axis.step)

    def covered(self, written: Span, read: Span) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the first pixel that each written one covers, counted within `read`, and the one after its last."""
        at = np.arange(written.start, written.stop)
        first = np.floor(self.start + at * self.step + _NEARLY).astype(np.intp) - read.start
        last = np.ceil(self.start + (at + 1) * self.step - _NEARLY).astype(np.intp) - read.start
        first = first.clip(0, read.size - 1)
        return first, last.clip(first + 1, read.size)

    def hull(self, written: Span, read: Span, size: int) -> Span:
        first, last = self.covered(written, Span(0, size))
        return Span(min(read.start, int(first[0])), max(read.stop, int(last[-1])))


@dataclass(frozen=True)
class Place:
    """Where on its image the rows and columns of a result lie."""

    rows: Sampling
    cols: Sampling

    @classmethod
    def of(cls, windows: ImageWindows) -> Place | None:
        rows, cols = Sampling.of(windows.rows), Sampling.of(windows.cols)
        return None if rows is None or cols is None else cls(rows, cols)

    def covered(self, window: ImageWindow, size: tuple[int, int]) -> Rect:
        (height, width), read, written = size, window.read, window.written
        return Rect(self.rows.hull(written.rows, read.rows, height), self.cols.hull(written.cols, read.cols, width))


@dataclass(frozen=True)
class Gaps:
    """What says of an image's pixels that they hold no data, as GDAL has it: a value, a mask, and an alpha of 0.

    `no_data` has a value or None for each of `bands`, those that the network takes; a pixel holds none where all of
    them have it, or with `any_band` one. An alpha band which the network takes is a channel as any other.
    """

    bands: tuple[int, ...]
    no_data: tuple[float | None, ...]
    any_band: bool = False
    mask: bool = False
    alpha: int | None = None

    @classmethod
    def of(cls, source: RasterSource, bands: tuple[int, ...], options: WindowOptions) -> Gaps:
        if options.no_data == "none":
            return cls(bands, (None,) * len(bands))
        if options.no_data == "auto":
            values = tuple(source.nodatas[band] if source.nodatas else None for band in bands)
        else:
            values = (source.value(float(options.no_data)),) * len(bands)
        alpha = source.alpha if source.alpha not in bands else None
        return cls(bands, values, options.no_data_bands == "any", source.masked, alpha)

    @property
    def possible(self) -> bool:
        return self.mask or self.alpha is not None or any(value is not None for value in self.no_data)

    def missing(
        self, pixels: NDArray[Any], masked: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
        """Return which pixels (rows, cols) hold no data, `masked` ones too, and which only in some bands, or None."""
        missing = np.zeros(pixels.shape[1:], bool)
        if self.mask and masked is not None:
            missing |= masked
        if self.alpha is not None:
            missing |= pixels[self.alpha] == 0
        if all(no_data is None for no_data in self.no_data):
            return missing, None
        empty = [_is(pixels[band], value) for band, value in dict(zip(self.bands, self.no_data, strict=True)).items()]
        some, every = np.logical_or.reduce(empty), np.logical_and.reduce(empty)
        missing |= some if self.any_band else every
        partly = some & ~missing
        return missing, partly if partly.any() else None

    def notes(self, source: RasterSource) -> Iterator[str]:
        if source.masked:
            which = "count as without data" if self.mask else "are taken as they are"
            yield f"pixels that its mask or palette hides {which}"
        if source.alpha is not None:
            band = f"its band {source.alpha + 1} is alpha"
            if source.alpha in self.bands:
                yield f"{band}, which the network takes as a channel: no pixel counts as without data for it"
            elif self.alpha is None:
                yield f"{band}, which counts for nothing"
            else:
                yield f"{band}: pixels of alpha 0 count as without data, colours of the others are as they are stored"


def _is(values: NDArray[Any], no_data: float | None) -> NDArray[np.bool_]:
    if no_data is None:
        return np.zeros(values.shape, bool)
    equal: NDArray[np.bool_] = np.isnan(values) if math.isnan(no_data) else values == no_data
    return equal


def missing_written(missing: NDArray[np.bool_], read: Rect, written: Rect, place: Place) -> NDArray[np.bool_]:
    """Return which of a window's written pixels have none: those that cover missing pixels alone."""
    counts = np.zeros((missing.shape[0] + 1, missing.shape[1] + 1), np.int64)
    counts[1:, 1:] = missing.cumsum(0).cumsum(1)
    top, bottom = place.rows.covered(written.rows, read.rows)
    left, right = place.cols.covered(written.cols, read.cols)
    inside = counts[np.ix_(bottom, right)] - counts[np.ix_(top, right)]
    inside -= counts[np.ix_(bottom, left)] - counts[np.ix_(top, left)]
    empty: NDArray[np.bool_] = inside == np.outer(bottom - top, right - left)
    return empty
