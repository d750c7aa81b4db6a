"""The beginning of an image, checked against the limits before any pixel is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ImageError, ImageTooLargeError
from serfer.core.geometry import Rect
from serfer.raster.georeference import Georeference
from serfer.raster.limits import RasterLimits

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
_COMPRESSIONS = {
    *("NONE", "DEFLATE", "LZW", "PACKBITS", "ZSTD", "LZMA", "JPEG", "YCbCr JPEG", "WEBP"),
    *("LERC", "LERC_DEFLATE", "LERC_ZSTD", "CCITTRLE", "CCITTFAX3", "CCITTFAX4"),
}
_IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
_COLOURS = 256
_RGB = 3
_HEADER_SLACK = 64 * 1024  # an encoded block may be larger than its pixels by what its format adds


@dataclass(frozen=True)
class Header:
    """What an image says of itself; `size` is (height, width), `block` a block's, `bands` those of the pixels read.

    `palette` has 256 colours (256, 3) where the samples are indices of them; `scale` is what samples of fewer than 8
    bits are multiplied by; `one_strip`: all rows lie in one strip, from which GDAL decodes them one by one.
    """

    name: str
    size: tuple[int, int]
    bands: int
    dtype: str
    nodata: float | int | None
    georeference: Georeference
    notes: tuple[str, ...]
    block: tuple[int, int]
    separate: bool
    stored_bands: int
    palette: NDArray[np.uint8] | None = None
    scale: int = 1
    one_strip: bool = False

    def expanded(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """Return stored samples as the pixels that they mean: an index as its colour, few bits as eight."""
        if self.palette is not None:
            return np.ascontiguousarray(self.palette[pixels[0]].transpose(2, 0, 1))
        return pixels if self.scale == 1 else pixels * np.uint8(self.scale)


def read_header(dataset: Any, name: str, driver: str, limits: RasterLimits) -> Header:  # noqa: ANN401 - rasterio's
    """Return what a dataset says of itself; raises ImageError for what is not accepted, ImageTooLargeError."""
    dtype = _dtype(dataset, name)
    stored = _bounded_bands(dataset, name, limits)
    palette = _palette(dataset)
    structure = dataset.tags(ns="IMAGE_STRUCTURE")
    bits = int(dataset.tags(1, ns="IMAGE_STRUCTURE").get("NBITS", 8)) if driver == "PNG" and palette is None else 8
    header = Header(
        name=name,
        size=(dataset.height, dataset.width),
        bands=stored if palette is None else _RGB,
        dtype=dtype,
        nodata=_nodata(dataset, dtype) if palette is None else None,
        georeference=_georeference(dataset),
        notes=_notes(dataset),
        block=tuple(dataset.block_shapes[0]),
        separate=structure.get("INTERLEAVE") == "BAND",
        stored_bands=stored,
        palette=palette,
        scale=255 // (2**bits - 1) if bits in {1, 2, 4} else 1,
        one_strip=driver == "GTiff" and _one_strip(dataset),
    )
    if driver == "GTiff":
        _check_compression(structure.get("COMPRESSION", "NONE"), name)
        _check_tiff(header, limits)
    else:
        check_whole(header, limits)
    return header


def check_blocks(dataset: Any, header: Header, rect: Rect, limits: RasterLimits) -> None:  # noqa: ANN401 - rasterio's
    """Refuse a read for which too many blocks, or too large ones as stored, would be decoded; raises ImageError."""
    blocks = [*_blocks(header, rect)]
    count = len(blocks) * (header.stored_bands if header.separate else 1)
    if count > limits.max_read_blocks:
        raise ImageTooLargeError(
            f"{header.name}: a window of {rect.rows.size} x {rect.cols.size} pixels lies in {count:,} of its tiles or "
            f"strips, more than the {limits.max_read_blocks:,} that are read at once: store it in larger ones"
        )
    stored = [(0, 0)] if header.one_strip else blocks
    for band in range(1, 1 + (header.stored_bands if header.separate else 1)):
        for row, col in stored:
            _check_block(dataset.get_tag_item(f"BLOCK_SIZE_{col}_{row}", "TIFF", bidx=band), header, (row, col), limits)


def _check_block(stored: str | None, header: Header, place: tuple[int, int], limits: RasterLimits) -> None:
    """Refuse a block by its length in the file; one that is not there (None) is nodata, if that has a value."""
    where = f"{header.name}: its tile or strip in row {place[0]}, column {place[1]}"
    if stored is None and header.nodata is None:
        raise ImageError(f"{where} is not in the file, which names no value for nodata: it was not written to its end")
    if stored is not None and int(stored) > limits.max_block_bytes + _HEADER_SLACK:
        raise ImageTooLargeError(
            f"{where} has {int(stored):,} bytes, more than the {limits.max_block_bytes:,} that are accepted"
        )


def _blocks(header: Header, rect: Rect) -> Iterator[tuple[int, int]]:
    height, width = header.block
    for row in range(rect.rows.start // height, -(-rect.rows.stop // height)):
        for col in range(rect.cols.start // width, -(-rect.cols.stop // width)):
            yield row, col


def _one_strip(dataset: Any) -> bool:  # noqa: ANN401 - rasterio's
    if tuple(dataset.block_shapes[0]) != (1, dataset.width) or dataset.height == 1:
        return False
    first, *others = (
        dataset.get_tag_item(f"BLOCK_OFFSET_0_{row}", "TIFF", bidx=1) for row in (0, 1, dataset.height - 1)
    )
    return first is not None and others == [None, None]


def _dtype(dataset: Any, name: str) -> str:  # noqa: ANN401 - rasterio's
    dtypes = {*dataset.dtypes}
    if len(dtypes) != 1 or not dtypes <= {*DTYPES}:
        raise ImageError(f"{name} has samples of {', '.join(sorted(dtypes)) or 'no type'}, not of {', '.join(DTYPES)}")
    return str(dtypes.pop())


def _bounded_bands(dataset: Any, name: str, limits: RasterLimits) -> int:  # noqa: ANN401 - rasterio's
    if not 0 < dataset.count <= limits.max_bands:
        raise ImageTooLargeError(f"{name} has {dataset.count:,} bands: 1 to {limits.max_bands:,} are accepted")
    return int(dataset.count)


def _nodata(dataset: Any, dtype: str) -> float | int | None:  # noqa: ANN401 - rasterio's
    value = dataset.nodata
    if value is None:
        return None
    return int(value) if np.dtype(dtype).kind in "iu" and float(value).is_integer() else float(value)


def _palette(dataset: Any) -> NDArray[np.uint8] | None:  # noqa: ANN401 - rasterio's
    if dataset.count != 1 or dataset.colorinterp[0].name != "palette" or dataset.dtypes[0] != "uint8":
        return None
    colours = np.zeros((_COLOURS, _RGB), np.uint8)
    for index, colour in dataset.colormap(1).items():
        if 0 <= index < _COLOURS:
            colours[index] = colour[:_RGB]
    return colours


def _georeference(dataset: Any) -> Georeference:  # noqa: ANN401 - rasterio's
    a, b, c, d, e, f = (float(value) for value in tuple(dataset.transform)[:6])
    transform = (a, b, c, d, e, f)
    lost = []
    crs = None
    try:
        crs = dataset.crs.to_wkt() if dataset.crs else None
    except Exception:  # noqa: BLE001 - rasterio raises several classes for a malformed one
        lost.append("its coordinate reference system, which cannot be read")
    with suppress(Exception):  # same
        lost += ["its ground control points"] * bool(dataset.gcps[0])
    with suppress(Exception):  # same
        lost += ["its rational polynomial coefficients"] * bool(dataset.rpcs)
    point = dataset.tags().get("AREA_OR_POINT") == "Point"
    return Georeference(crs or None, None if transform == _IDENTITY else transform, point, tuple(lost))


def _notes(dataset: Any) -> tuple[str, ...]:  # noqa: ANN401 - rasterio's
    pages = 0
    with suppress(Exception):  # rasterio expects what a hostile file need not have
        pages = len(dataset.subdatasets)
    return (f"it has {pages} pages: the first is read",) if pages > 1 else ()


def _check_compression(compression: str, name: str) -> None:
    if compression not in _COMPRESSIONS:
        raise ImageError(f"{name} is compressed by {compression!r:.40}, not by {', '.join(sorted(_COMPRESSIONS))}")


def _check_tiff(header: Header, limits: RasterLimits) -> None:
    (height, width), (rows, cols) = header.size, header.block
    together = 1 if header.separate else header.stored_bands
    size = rows * cols * together * np.dtype(header.dtype).itemsize
    count = -(-height // rows) * -(-width // cols) * (header.stored_bands if header.separate else 1)
    shape = f"{header.name} has {width:,} x {height:,} pixels"
    if height * width > limits.max_pixels:
        raise ImageTooLargeError(f"{shape}, more than the {limits.max_pixels:,} that are accepted")
    if size > limits.max_block_bytes:
        raise ImageTooLargeError(
            f"{shape} in tiles or strips of {size:,} bytes, more than the {limits.max_block_bytes:,} accepted: "
            "store it in smaller tiles"
        )
    if count > limits.max_blocks:
        raise ImageTooLargeError(
            f"{shape} in {count:,} tiles or strips, more than the {limits.max_blocks:,} that are accepted: store it in "
            "larger ones"
        )


def check_whole(header: Header, limits: RasterLimits) -> None:
    """Refuse a PNG or JPEG that is too large to be decoded whole; raises ImageTooLargeError."""
    height, width = header.size
    size = height * width * max(header.bands, header.stored_bands) * np.dtype(header.dtype).itemsize
    if height * width > limits.max_whole_pixels or size > limits.max_read_bytes:
        raise ImageTooLargeError(
            f"{header.name} has {width:,} x {height:,} pixels of {header.bands} bands; a PNG or JPEG is decoded whole: "
            f"at most {limits.max_whole_pixels:,} pixels and {limits.max_read_bytes:,} bytes are accepted; store it "
            "as a TIFF"
        )
