"""Images that are padded to a size that a network takes, as they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Rect, Span
from serfer.core.plan import Plan
from serfer.core.plan.pixels import full_scale
from serfer.mapping.options import MapOptions
from serfer.raster import RasterSource

_BYTE = 255.0


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
        """Yield rectangles that cover the image's own pixels once."""
        return self._source.blocks(most_bytes)

    def read_masked(self, rect: Rect) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return what the image's own `read_masked` does, and the value where the rectangle is beyond its ends."""
        own = Rect(*(_within(span, size) for span, size in zip((rect.rows, rect.cols), self._source.size, strict=True)))
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


def _within(span: Span, size: int) -> Span:
    return Span(span.start, min(span.stop, size))


def padded(source: RasterSource, plan: Plan, options: MapOptions) -> RasterSource:
    """Return an image as a plan takes it: that of a detector has its image padded to multiples of the strides.

    The value is that of the preprocessing's padding, of the image's type; 0 without one. Where pixels of the image may
    have no data, the padding has none either, so that windows of both are not computed.
    """
    if plan.boxes is None:
        return source
    height, width = (-(-side // plan.boxes.multiple) * plan.boxes.multiple for side in source.size)
    if (height, width) == source.size:
        return source
    pad = plan.preprocess.pad if plan.preprocess else None
    full = options.full_scale or source.full or full_scale(source.dtype)
    values = [pad.value * full / _BYTE if pad else 0.0] * source.bands
    if options.no_data == "auto":
        stored = source.nodatas or [None] * source.bands
        values = [value if none is None else none for value, none in zip(values, stored, strict=True)]
        if source.alpha is not None:
            values[source.alpha] = 0
    elif options.no_data != "none":
        values = [source.value(float(options.no_data))] * source.bands
    return PaddedSource(source, (height, width), values)
