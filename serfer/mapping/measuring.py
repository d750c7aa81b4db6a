"""What a map measures of a whole image before its first window, where the plan normalises by it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError
from serfer.core.geometry import Rect
from serfer.core.plan.image_normalisation import ImageNormalisation, ImageStatistics
from serfer.core.units import MIB
from serfer.mapping.no_data import Gaps
from serfer.raster import RasterSource
from serfer.raster.statistics import Values, moments, percentiles

_BLOCK_BYTES = 4 * MIB
_READERS = 2  # of blocks that are decoded while others are counted


def measure(
    source: RasterSource, gaps: Gaps, how: ImageNormalisation, progress: Callable[[int], None]
) -> ImageStatistics:
    """Return the statistics of an image's pixels that hold data, of the bands that the network takes.

    `progress` is called with the pixels that were read, again from 0 where there are several passes. Raises InputError
    for values that are not finite, and what `RasterSource.read` raises.
    """
    bands = gaps.bands
    groups = len(bands) if how.per_channel else 1
    counted = 0

    def passes() -> Iterator[Values]:
        nonlocal counted
        counted, done = 0, 0
        for rect, (pixels, missing) in _read_ahead(source, gaps):
            kept = [pixels[band][~missing] if missing.any() else pixels[band].ravel() for band in bands]
            _check_finite(source, bands, kept)
            counted += kept[0].size  # pixels, whatever the number of bands
            done += rect.area
            progress(done)
            yield kept if how.per_channel else [np.concatenate(kept)]

    if how.percentiles is None:
        mean, std = moments(passes, groups)
        return how.by_moments(counted, *_known(counted, mean, std))
    found = percentiles(passes, source.dtype, groups, how.percentiles)
    return how.by_percentiles(counted, *_known(counted, found))


def _known(counted: int, *found: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return what was found, 0 for an image without data, of which no window is computed."""
    return [values if counted else np.zeros_like(values) for values in found]


def _read_ahead(source: RasterSource, gaps: Gaps) -> Iterator[tuple[Rect, tuple[NDArray[Any], NDArray[np.bool_]]]]:
    """Yield each block of an image with its pixels and which of them are missing, the next ones being decoded."""

    def read(rect: Rect) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        pixels, masked = source.read_masked(rect) if gaps.mask else (source.read(rect), None)
        return pixels, gaps.missing(pixels, masked)[0]

    with ThreadPoolExecutor(_READERS, thread_name_prefix="serfer-measure") as threads:
        waiting: deque[tuple[Rect, Future[tuple[NDArray[Any], NDArray[np.bool_]]]]] = deque()
        try:
            for rect in source.blocks(_BLOCK_BYTES):
                waiting.append((rect, threads.submit(read, rect)))
                if len(waiting) > _READERS:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def _check_finite(source: RasterSource, bands: tuple[int, ...], kept: Values) -> None:
    if np.dtype(source.dtype).kind != "f":
        return
    for band, values in zip(bands, kept, strict=True):
        if not np.isfinite(values).all():
            raise InputError(
                f"{source.name} has values in band {band + 1} that are NaN or infinite and do not count as without "
                "data, so that it cannot be normalised by all of its pixels: name the value with --no-data, such as "
                "--no-data nan, or mask these pixels"
            )
