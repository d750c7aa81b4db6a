"""Results as .npy, of any size, and as PNG, which is encoded from memory."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image

from serfer.core.errors import UsageError
from serfer.core.geometry import Rect, Span
from serfer.raster.limits import MIB
from serfer.raster.palette import DepthScale, mask_image
from serfer.raster.results.options import ResultOptions
from serfer.raster.results.strips import BLOCK, Mosaic

MOST_PNG_BYTES = 128 * MIB
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def write_npy(path: Path, mosaic: Mosaic) -> None:
    """Write a result as an array (channels, rows, cols); raises OSError."""
    array = mosaic.array
    dtype = np.dtype(array.dtype)
    shape = (array.channels, array.rows.size, array.cols.size)
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
        for channel in range(array.channels):
            for strip in _strips(mosaic):
                file.write(mosaic.read(strip, Span(channel, channel + 1)).data.cast("B"))


def check_png(channels: int, dtype: str, size: int, options: ResultOptions) -> None:
    """Refuse a result that no PNG holds, or that is too large to be encoded from memory; raises UsageError."""
    fits = (dtype == "uint8" and channels in _MODES) or (channels == 1 and dtype in {"uint16", "float32", "float64"})
    if not fits or (options.mask and (dtype != "uint8" or channels != 1)):
        raise UsageError(
            f"a PNG holds uint8 of 1, 3 or 4 channels, or uint16 or a float of one, not {dtype} of {channels}: "
            "write a TIFF"
        )
    if size > MOST_PNG_BYTES:
        raise UsageError(
            f"a PNG of {size:,} bytes of values is more than the {MOST_PNG_BYTES:,} accepted: write a TIFF"
        )


def write_png(path: Path, mosaic: Mosaic, options: ResultOptions) -> None:
    """Write a result as PNG: classes by the palette, depth by 16 bits, uint8 as it is; raises UsageError, OSError."""
    array, info = mosaic.array, None
    if np.dtype(array.dtype).kind == "f":
        scale = _scale(mosaic, options.nodata)
        levels = np.empty((array.rows.size, array.cols.size), np.uint16)
        for strip in _strips(mosaic):
            levels[strip.slices] = scale.levels(mosaic.read(strip, Span(0, 1))[0], options.nodata)
        image, info = Image.fromarray(levels), scale.metadata()
    else:
        pixels = np.empty((array.rows.size, array.cols.size, array.channels), array.dtype)
        for strip in _strips(mosaic):
            pixels[strip.slices[0]] = mosaic.read(strip, Span(0, array.channels)).transpose(1, 2, 0)
        image = _image(pixels, mask=options.mask)
    image.save(path, "PNG", pnginfo=info)


def _image(pixels: NDArray[Any], *, mask: bool) -> Image.Image:
    flat = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    return mask_image(flat) if mask else Image.fromarray(flat)


def _scale(mosaic: Mosaic, nodata: float | None) -> DepthScale:
    scales = (DepthScale.of(mosaic.read(strip, Span(0, 1)), nodata) for strip in _strips(mosaic))
    found = [scale for scale in scales if scale]
    if not found:
        raise UsageError("none of the result's values is finite: there is nothing to show in a PNG")
    return reduce(DepthScale.joined, found)


def _strips(mosaic: Mosaic) -> list[Rect]:
    height, width = mosaic.array.rows.size, mosaic.array.cols.size
    return [Rect(Span(top, min(top + BLOCK, height)), Span(0, width)) for top in range(0, height, BLOCK)]
