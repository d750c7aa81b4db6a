"""A window's pixels as the network's input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError, PlanError, UsageError
from serfer.core.geometry import Rect, Span
from serfer.core.plan import Plan, Preprocess
from serfer.core.plan.image_normalisation import ImageNormalisation, ImageStatistics
from serfer.core.plan.pixels import levels_by_image, normalise, normalise_by_image, scaled_to
from serfer.core.plan.preprocess import BAND, Levels
from serfer.mapping.options import WindowOptions
from serfer.raster import Georeference, RasterSource
from serfer.raster.reading.header import DTYPES
from serfer.samples import Samples

_FULL = 255.0  # of a picture of 8 bits
_BYTE = 255.0


@dataclass(frozen=True)
class WindowInput:
    """How pixels (bands, rows, cols) of an image become a query's batch.

    `bands` are those that the network takes, in its order, from 0. Where `bytes_as_they_are`, the workers normalise
    uint8 pixels; otherwise `preprocess`, scaled to the image's type, is applied here, and without one values are taken
    as they are. One by the whole image needs its `statistics`; of uint8 pixels workers then do it by `levels`, a
    quarter of the bytes, where there are such.
    """

    bands: tuple[int, ...]
    preprocess: Preprocess | None
    bytes_as_they_are: bool
    statistics: ImageStatistics | None = None
    levels: Levels | None = None

    @classmethod
    def of(cls, plan: Plan, source: RasterSource, options: WindowOptions) -> WindowInput:
        dtype, chosen = source.dtype, _bands(plan, source, options.bands)
        if plan.preprocess is None:
            if options.full_scale is not None:
                raise UsageError(
                    "the plan has no preprocessing, so values reach the network as they are: leave full_scale out"
                )
            return cls(chosen, None, bytes_as_they_are=False)
        by_image = plan.preprocess.by_image is not None
        if options.full_scale is not None and (by_image or plan.preprocess.stored):
            how = "normalises pixels by the whole image" if by_image else "takes values as they are stored"
            raise UsageError(f"the plan {how}, whatever the full scale: leave full_scale out")
        if by_image:
            return cls(chosen, plan.preprocess, bytes_as_they_are=False)
        full = options.full_scale or source.white
        colours = BAND not in plan.preprocess.channels
        as_bytes = colours and dtype == "uint8" and (full == _FULL or plan.preprocess.stored)
        return cls(chosen, scaled_to(plan.preprocess, full), bytes_as_they_are=as_bytes)

    @property
    def by_image(self) -> ImageNormalisation | None:
        return self.preprocess.by_image if self.preprocess else None

    def measured(self, statistics: ImageStatistics | None, dtype: str) -> WindowInput:
        levels = None
        if statistics is not None and self.preprocess and self.preprocess.by_image and dtype == "uint8":
            levels = levels_by_image(statistics, self.preprocess.by_image, self.preprocess.levels)
        as_bytes = self.bytes_as_they_are or levels is not None
        return replace(self, statistics=statistics, levels=levels, bytes_as_they_are=as_bytes)

    def as_values(self) -> WindowInput:
        return replace(self, bytes_as_they_are=False, levels=None)

    @property
    def value_bytes(self) -> int:
        return 1 if self.bytes_as_they_are else 4

    def batch(self, pixels: NDArray[Any], missing: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Return (1, H, W, C) uint8 or (1, C, H, W) float32; `missing` pixels (H, W) become 0 after normalisation."""
        # Most images have the bands that the network takes: nothing is copied then.
        chosen = pixels if self.bands == tuple(range(len(pixels))) else pixels[[*self.bands]]
        if self.bytes_as_they_are and missing is None:
            return np.ascontiguousarray(chosen.transpose(1, 2, 0))[None]
        if self.preprocess is None:
            values = np.ascontiguousarray(chosen, np.float32)[None]
            values = values.copy() if missing is not None else values
        elif self.preprocess.by_image is not None:
            values = self._by_image(chosen, self.preprocess, self.preprocess.by_image)
        else:
            values = normalise(chosen.transpose(1, 2, 0)[None], self.preprocess)
        if missing is not None:
            values[:, :, missing] = 0.0
        return values

    def values(self, pixels: NDArray[Any]) -> NDArray[np.float32]:
        own = replace(self, bytes_as_they_are=False)
        values: NDArray[np.float32] = own.batch(pixels, None)[0]
        return values

    def _by_image(self, pixels: NDArray[Any], preprocess: Preprocess, how: ImageNormalisation) -> NDArray[np.float32]:
        if self.statistics is None:
            raise PlanError("the image was not measured, and the plan normalises by the whole of it")
        return normalise_by_image(pixels, self.statistics, how, preprocess.levels)[None]


def _bands(plan: Plan, source: RasterSource, given: tuple[int, ...]) -> tuple[int, ...]:
    channels, name, bands = plan.input.channels, source.name, source.bands
    if given:
        if max(given) > bands:
            raise InputError(f"{name} has {_bands_in_words(bands)}, and --bands names band {max(given)}")
        if len(given) != channels:
            raise InputError(f"--bands names {len(given)} bands, and the network takes {channels} channels")
        return tuple(band - 1 for band in given)
    if bands < channels and source.pages > 1:
        raise InputError(
            f"{name} has {source.pages} pages, of which the first is read: it has {_bands_in_words(bands)}, and the "
            f"network takes {channels} channels; if each page is a channel, store the pages as bands of one image, or "
            "name bands of the first with --bands"
        )
    if bands != channels:
        raise InputError(
            f"{name} has {_bands_in_words(bands)}, and the network takes {channels} channels: choose them with "
            f"--bands, such as --bands {','.join(str(min(number, bands)) for number in range(1, channels + 1))}"
        )
    order = range(channels)
    blue_first = plan.preprocess is not None and plan.preprocess.channels == "BGR"
    return tuple(reversed(order)) if blue_first else tuple(order)


def _bands_in_words(bands: int) -> str:
    return f"{bands} band{'' if bands == 1 else 's'}"


class PaddedSource(RasterSource):
    """An open image with rows below and columns to the right of its own, in which each band has one of the `values`.

    Where the image has a mask, it hides them. It is closed with the image that it was made of.
    """

    def __init__(self, source: RasterSource, size: tuple[int, int], values: Sequence[float]) -> None:
        self.__dict__.update(source.__dict__)
        self._source, self._values, self.size = source, np.array(values, source.dtype), size

    def decode(self) -> None:
        self._source.decode()

    def blocks(self, most_bytes: int) -> Iterator[Rect]:
        return self._source.blocks(most_bytes)

    def read_masked(self, rect: Rect) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        own = clipped(rect, self._source.size)
        if own == rect:
            return self._source.read_masked(rect)
        pixels = np.empty((self.bands, rect.rows.size, rect.cols.size), self.dtype)
        pixels[:] = self._values[:, None, None]
        if own.rows.size <= 0 or own.cols.size <= 0:
            return pixels, np.ones(pixels.shape[1:], bool) if self.masked else None
        inside, hidden = self._source.read_masked(own)
        place = own.within(rect).slices
        pixels[:, *place] = inside
        if hidden is None:
            return pixels, None
        holes = np.ones(pixels.shape[1:], bool)
        holes[place] = hidden
        return pixels, holes


class GivenPixels(RasterSource):
    """Pixels that a caller has, (bands, rows, cols), of an image, or of an array of `size`, where `of` is None.

    `read_masked` returns them, whatever is asked for; those that a masked array hides count as a mask's. Raises
    InputError for pixels of another shape or type than a window's.
    """

    def __init__(
        self, pixels: NDArray[Any], window: tuple[int, int], size: tuple[int, int], of: RasterSource | None
    ) -> None:
        self._hidden = np.any(np.ma.getmaskarray(pixels), axis=0) if isinstance(pixels, np.ma.MaskedArray) else None
        self._pixels, self._of = np.ma.getdata(pixels), of
        bands, dtype = (of.bands, of.dtype) if of else (max(self._pixels.shape[:1], default=0), str(self._pixels.dtype))
        if self._pixels.shape != (bands, *window) or self._pixels.dtype != dtype or dtype not in DTYPES:
            reads = f"{dtype} of ({bands}, {window[0]}, {window[1]})"
            raise InputError(
                f"the pixels are {self._pixels.dtype} of {self._pixels.shape}, and the window reads {reads}, one of "
                f"{', '.join(DTYPES)}"
            )
        if of is not None:
            self.__dict__.update({**of.__dict__, **self.__dict__})
            return
        self.name, self.size, self.bands, self.dtype = "the array", size, bands, dtype
        self.nodata, self.nodatas, self.alpha, self.masked = None, (), None, False
        self.white, self.pages, self.notes, self.georeference = Samples(dtype).white, 1, (), Georeference()

    def value(self, stored: float) -> float:
        return self._of.value(stored) if self._of else stored

    def read_masked(self, _rect: Rect) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        return self._pixels, self._hidden


def clipped(rect: Rect, size: tuple[int, int]) -> Rect:
    rows, cols = (
        Span(span.start, min(span.stop, side)) for span, side in zip((rect.rows, rect.cols), size, strict=True)
    )
    return Rect(rows, cols)


def padded_size(plan: Plan, size: tuple[int, int]) -> tuple[int, int]:
    """Return the size of an image as a plan takes it: that of a detector has multiples of the strides."""
    unit = plan.boxes.multiple if plan.boxes else 1
    height, width = (-(-side // unit) * unit for side in size)
    return height, width


def padded(source: RasterSource, plan: Plan, options: WindowOptions) -> RasterSource:
    """Return an image as a plan takes it: that of a detector has its image padded to multiples of the strides.

    The value is that of the preprocessing's padding, of the image's type; 0 without one. Where pixels of the image may
    have no data, the padding has none either, so that windows of both are not computed.
    """
    if (size := padded_size(plan, source.size)) == source.size:
        return source
    pad = plan.preprocess.pad if plan.preprocess else None
    full = options.full_scale or source.white
    values = [pad.value * full / _BYTE if pad else 0.0] * source.bands
    if options.no_data == "auto":
        stored = source.nodatas or [None] * source.bands
        values = [value if none is None else none for value, none in zip(values, stored, strict=True)]
        if source.alpha is not None:
            values[source.alpha] = 0
    elif options.no_data != "none":
        values = [source.value(float(options.no_data))] * source.bands
    return PaddedSource(source, size, values)
