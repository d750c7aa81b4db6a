"""PNG and JPEG, which can only be decoded from their beginning: once, by strips, into a temporary file.

JPEG of up to `max_whole_pixels` is decoded whole by Pillow, as everywhere in SerFer: GDAL enlarges subsampled colours
in another way, which changes pixels of photographs by up to 77 at edges. Pillow needs four bytes a pixel, so that
larger ones are decoded by GDAL, by strips, and a note says so. PNG is decoded by GDAL, for Pillow reduces colours of 16
bits to 8.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from serfer.core.errors import ImageError, ImageTooLargeError, UnavailableError
from serfer.core.geometry import Rect
from serfer.core.units import MIB
from serfer.raster.durable import FULL
from serfer.raster.georeference import Georeference
from serfer.raster.reading.header import ORIENTATION, Header, RasterLimits

_STRIP_BYTES = 8 * MIB  # decoded at a time
_INTERLACED, _BEFORE_PIXELS = 28, MIB  # the byte of a PNG that says so; where its orientation is looked for
_COLOURS = (1, 3)  # bands of a JPEG that GDAL decodes as Pillow does, but for the colours' resolution


class Scratch:
    """An image's stored pixels (rows, cols, bands) in a temporary file that has no name, so that nothing can be left.

    Several threads may read at once what one has written.
    """

    def __init__(self, header: Header, folder: Path | None) -> None:
        self._row = (header.size[1], header.stored_bands)
        self._dtype = np.dtype(header.dtype)
        self._row_bytes = self._row[0] * self._row[1] * self._dtype.itemsize
        where = Path(folder or tempfile.gettempdir())
        needed = header.size[0] * self._row_bytes
        if needed > (free := shutil.disk_usage(where).free):
            raise _no_room(header.name, needed, where, free)
        with _disk_errors(header.name, needed, where):
            self._file = tempfile.TemporaryFile(dir=where, buffering=0)  # noqa: SIM115 - kept open
        self._errors = (header.name, needed, where)

    def strip_rows(self) -> int:
        return max(1, _STRIP_BYTES // self._row_bytes)

    def append(self, pixels: NDArray[Any]) -> None:
        left = np.ascontiguousarray(pixels.transpose(1, 2, 0)).data.cast("B")
        with _disk_errors(*self._errors):
            while left:
                left = left[os.write(self._file.fileno(), left) :]

    def read(self, rect: Rect) -> NDArray[Any]:
        pixels = np.empty((rect.rows.size, rect.cols.size, self._row[1]), self._dtype)
        start = rect.cols.start * self._row[1] * self._dtype.itemsize
        for row, values in zip(range(rect.rows.start, rect.rows.stop), pixels, strict=True):
            os.preadv(self._file.fileno(), [values.data.cast("B")], row * self._row_bytes + start)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def close(self) -> None:
        self._file.close()


def decode_by_strips(dataset: Any, header: Header, scratch: Scratch) -> None:  # noqa: ANN401 - rasterio's
    (height, width), rows = header.size, scratch.strip_rows()
    if dataset.count != header.stored_bands or (dataset.height, dataset.width) != header.size:
        raise ImageError(f"{header.name} has other bands or another size than its header says")
    for top in range(0, height, rows):
        scratch.append(dataset.read(window=((top, min(top + rows, height)), (0, width))))


def decode_jpeg(file: BinaryIO, header: Header, scratch: Scratch) -> None:
    (height, width), rows = header.size, scratch.strip_rows()
    with _pillow(file) as image:
        image.load()
        mode = "L" if header.bands == 1 else "RGB"
        for top in range(0, height, rows):
            strip = image.crop((0, top, width, min(top + rows, height)))
            scratch.append(np.atleast_3d(np.asarray(strip.convert(mode))).transpose(2, 0, 1))


def jpeg_header(file: BinaryIO, name: str, limits: RasterLimits) -> tuple[Header, bool]:
    """Return what a JPEG says of itself, its size as stored, and whether it is decoded whole."""
    with _pillow(file) as image:
        size, given = (image.height, image.width), len(image.getbands())
        orientation = image.getexif().get(ORIENTATION, 1)
        progressive = bool(image.info.get("progressive"))
        bands = 1 if image.mode == "L" else 3
    header = Header(
        *(name, size, bands, "uint8", None, Georeference(), (), (1, size[1])),
        separate=False,
        stored_bands=bands,
        orientation=orientation,
    )
    check_scratch(header, limits)
    whole = size[0] * size[1] <= limits.max_whole_pixels
    if not whole and (progressive or given not in _COLOURS):
        raise _decoded_whole(header, "a progressive JPEG" if progressive else f"a JPEG of {given} bands", limits)
    if not whole:
        note = "it is decoded by GDAL, which enlarges colours of lower resolution in another way than Pillow does"
        header = replace(header, notes=(note,))
    return header, whole


def png_header(header: Header, read_at: Callable[[int, int], bytes], limits: RasterLimits) -> Header:
    check_scratch(header, limits)
    if math.prod(header.size) > limits.max_whole_pixels and read_at(_INTERLACED, 1) != b"\0":
        raise _decoded_whole(header, "an interlaced PNG", limits)
    with suppress(Exception), _pillow(BytesIO(read_at(0, _BEFORE_PIXELS)), PngImageFile) as image:  # odd metadata
        return replace(header, orientation=Image.Image.getexif(image).get(ORIENTATION, 1))  # PngImageFile's decodes
    return header


def check_scratch(header: Header, limits: RasterLimits) -> None:
    height, width = header.size
    size = height * width * header.stored_bands * np.dtype(header.dtype).itemsize
    if height * width > limits.max_pixels or size > limits.max_scratch_bytes:
        raise ImageTooLargeError(
            f"{header.name} has {width:,} x {height:,} pixels of {header.bands} bands: a PNG or JPEG is decoded into a "
            f"temporary file of at most {limits.max_scratch_bytes:,} bytes; store it as a TIFF"
        )


def _decoded_whole(header: Header, kind: str, limits: RasterLimits) -> ImageTooLargeError:
    height, width = header.size
    return ImageTooLargeError(
        f"{header.name} has {width:,} x {height:,} pixels and is {kind}, which is decoded whole: at most "
        f"{limits.max_whole_pixels:,} pixels are accepted; store it as a TIFF, or otherwise in its format"
    )


@contextmanager
def _pillow(file: BinaryIO, kind: type[JpegImageFile | PngImageFile] = JpegImageFile) -> Iterator[Image.Image]:
    with warnings.catch_warnings(action="ignore"), kind(file) as image:  # Image.open has a limit of its own
        yield image


@contextmanager
def _disk_errors(name: str, needed: int, where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise _no_room(name, needed, where, shutil.disk_usage(where).free) from error
        raise UnavailableError(f"{name} cannot be decoded into {where}: {error.strerror or error}") from error


def _no_room(name: str, needed: int, where: Path, free: int) -> UnavailableError:
    return UnavailableError(
        f"{name} is decoded into a temporary file of {needed:,} bytes in {where}, whose disk has {free:,} free: make "
        "room, or name another disk (parts), or store the image as a TIFF"
    )
