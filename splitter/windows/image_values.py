"""The pixels of an image as its network takes them, where no map runs: of samples, and of a package's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.plan import Preprocess
from serfer.core.plan.image_normalisation import ImageStatistics
from serfer.core.plan.pixels import full_scale, normalise, normalise_by_image, scaled_to
from serfer.core.units import MIB
from serfer.raster import RasterSource
from serfer.raster.statistics import Values, moments, percentiles
from serfer.splitter.network.source import Array

_BLOCK_BYTES = 16 * MIB
Planes = NDArray[Any]
"""Pixels (channels, rows, cols) in the image's order of channels."""


@dataclass(frozen=True)
class ImageValues:
    """How pixels become values: by a preprocessing for the image's type, and by statistics of the whole image.

    Without a preprocessing they are taken as they are.
    """

    preprocess: Preprocess | None
    statistics: ImageStatistics | None = None

    @classmethod
    def of_file(cls, source: RasterSource, preprocess: Preprocess | None) -> ImageValues:
        """Return what is for an image file, all of which is measured if need be; raises what reading it raises."""
        dtype, full = source.dtype, source.full or full_scale(source.dtype)
        return cls._of(preprocess, dtype, full, lambda: map(source.read, source.blocks(_BLOCK_BYTES)))

    @classmethod
    def of_array(cls, planes: Planes, preprocess: Preprocess | None) -> ImageValues:
        """Return what is for an image in memory."""
        dtype = planes.dtype.name
        return cls._of(preprocess, dtype, full_scale(dtype), lambda: iter([planes]))

    @classmethod
    def _of(
        cls, preprocess: Preprocess | None, dtype: str, full: float, blocks: Callable[[], Iterator[Planes]]
    ) -> ImageValues:
        if preprocess is None:
            return cls(None)
        how = preprocess.by_image
        if how is None:
            return cls(scaled_to(preprocess, full))
        pixels = 0

        def passes() -> Iterator[Values]:
            nonlocal pixels
            pixels = 0
            for block in blocks():
                pixels += block[0].size
                ordered = _ordered(block, preprocess)
                yield [band.reshape(-1) for band in ordered] if how.per_channel else [ordered.reshape(-1)]

        groups = len(preprocess.channels) if how.per_channel else 1
        if how.percentiles is None:
            mean, std = moments(passes, groups)
            return cls(preprocess, how.by_moments(pixels, mean, std))
        found = percentiles(passes, dtype, groups, how.percentiles)
        return cls(preprocess, how.by_percentiles(pixels, found))

    def of(self, planes: Planes) -> Array:
        """Return pixels of the image as its network takes them, (1, channels, rows, cols) float32."""
        if self.preprocess is None:
            return np.ascontiguousarray(planes, np.float32)[None]
        ordered = _ordered(planes, self.preprocess)
        how = self.preprocess.by_image
        if how is None or self.statistics is None:
            return normalise(ordered.transpose(1, 2, 0)[None], self.preprocess)
        return normalise_by_image(ordered, self.statistics, how, self.preprocess.levels)[None]


def _ordered(planes: Planes, preprocess: Preprocess) -> Planes:
    return planes[::-1] if preprocess.channels == "BGR" else planes
