"""PNG and JPEG, which can only be decoded from their beginning: whole, once, into memory.

JPEG is decoded by Pillow, as everywhere in SerFer: GDAL repeats samples of subsampled colours where Pillow
interpolates, which changes pixels of photographs by up to 50. PNG is decoded by GDAL, for Pillow reduces colours of 16
bits to 8.
"""

from __future__ import annotations

import warnings
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from serfer.core.errors import ImageTooLargeError
from serfer.raster.georeference import Georeference
from serfer.raster.limits import RasterLimits
from serfer.raster.reading.header import Header, check_whole

_ROWS = 256  # decoded at a time


def decode_png(dataset: Any, header: Header) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:  # noqa: ANN401 - same
    """Return the pixels (bands, rows, cols) of a PNG, and which of them its palette says to hold no data."""
    height, width = header.size
    pixels = np.empty((header.bands, height, width), header.dtype)
    holes = None if header.no_colour is None else np.empty((height, width), bool)
    for top in range(0, height, _ROWS):
        stop = min(top + _ROWS, height)
        stored = dataset.read(window=((top, stop), (0, width)))
        pixels[:, top:stop] = header.expanded(stored)
        if holes is not None:
            holes[top:stop] = header.holes(stored)
    return pixels, holes


def decode_jpeg(file: BinaryIO, name: str, limits: RasterLimits) -> tuple[Header, NDArray[np.uint8]]:
    """Return the header and the pixels (bands, rows, cols) of a JPEG, upright: one band of grey, or three of RGB."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata, and of sizes that our own limit judges
        try:
            with Image.open(file, formats=["JPEG"]) as image:
                check_whole(_jpeg_header(name, (image.height, image.width), len(image.getbands())), limits)
                ImageOps.exif_transpose(image, in_place=True)
                decoded = np.asarray(image if image.mode == "L" else image.convert("RGB"))
        except Image.DecompressionBombError:
            raise ImageTooLargeError(f"{name} has too many pixels for a JPEG: store it as a TIFF") from None
    pixels = np.ascontiguousarray(np.atleast_3d(decoded).transpose(2, 0, 1))
    return _jpeg_header(name, (pixels.shape[1], pixels.shape[2]), pixels.shape[0]), pixels


def _jpeg_header(name: str, size: tuple[int, int], bands: int) -> Header:
    return Header(name, size, bands, "uint8", None, Georeference(), (), size, separate=False, stored_bands=bands)
