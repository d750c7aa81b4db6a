"""The beginning of an image, checked against the limits before any pixel is decoded."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ImageError, ImageTooLargeError
from serfer.core.geometry import Rect, Span
from serfer.core.units import MIB
from serfer.raster.georeference import Georeference
from serfer.samples import BYTES, Samples

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
_COMPRESSIONS = {
    *("NONE", "DEFLATE", "LZW", "PACKBITS", "ZSTD", "LZMA", "JPEG", "YCbCr JPEG", "WEBP"),
    *("LERC", "LERC_DEFLATE", "LERC_ZSTD", "CCITTRLE", "CCITTFAX3", "CCITTFAX4"),
}
_IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
_TURNS = (0, 1, 3, 2, 0, 1, 3, 2)
ORIENTATIONS = {
    number + 1: (number >= 4, bool(_TURNS[number] & 2), bool(_TURNS[number] & 1))  # noqa: PLR2004 - from the fifth on
    for number in range(8)
}
"""By EXIF's number, whether rows and columns are exchanged, and which of the two are turned round then."""
TURNED, _UPRIGHT = (5, 6, 7, 8), (False, False, False)
_COLOURS = 256
_RGB = 3
_HEADER_SLACK = 64 * 1024  # an encoded block may be larger than its pixels by what its format adds
ReadAt = Callable[[int, int], bytes]
"""Returns bytes of a file, from a position on, as many as are asked for or are there."""

ORIENTATION = 274
_KIND, _WIDTH, _LENGTH, _STRIP_ROWS, _TILE_WIDTH, _TILE_LENGTH = 254, 256, 257, 278, 322, 323
_MASK = 4
_NUMBERS = {3: "H", 4: "I", 16: "Q"}
_MOST_TAGS = 512
_MOST_DIRECTORIES = 64


@dataclass(frozen=True)
class RasterLimits:
    """Limits of an image, each checked before what it bounds is decoded.

    At most `readers` threads decode at once. Each holds one block, as stored and decoded, and the offsets of all blocks
    (16 bytes each); `cache_bytes` is GDAL's block cache, one for the whole process. So reading takes at most
    cache_bytes + readers x (2 x max_block_bytes + 16 x max_blocks) and the arrays that `read` returns; for an image
    with blocks of 512 x 512 pixels of three bytes that is about 75 MiB; what was fetched from S3 takes 16 MiB more.
    """

    max_bands: int = 1024
    max_pixels: int = 10**12
    max_whole_pixels: int = 100_000_000
    """Pixels of a PNG or JPEG that has to be decoded whole: an interlaced, a progressive one."""
    max_scratch_bytes: int = 16 * 1024 * MIB
    """What a PNG or JPEG decodes to, in a temporary file."""
    max_blocks: int = 4_000_000
    """Tiles or strips of a TIFF."""
    max_block_bytes: int = 128 * MIB
    """One tile or strip of a TIFF, as it is stored and decoded, with all bands where they are interleaved by pixel."""
    max_read_blocks: int = 65_536
    """Tiles or strips that one `read` decodes."""
    max_read_bytes: int = 512 * MIB
    """What one `read` returns, and the bytes of a JPEG in S3 that is decoded whole."""
    cache_bytes: int = 64 * MIB
    readers: int = 4


@dataclass(frozen=True)
class Header:
    """What an image says of itself; `size` is (height, width), `block` a block's, `bands` those of the pixels read.

    `palette` has 256 colours (256, 3) where the samples are indices of them, and `no_colour` says which of these hold
    no data; `scale` is what samples of fewer than 8 bits are multiplied by; `one_strip`: all rows lie in one strip,
    from which GDAL decodes them one by one. `nodatas` are each band's, of pixels as they are read;
    `alpha` is the band that says how far pixels are opaque, from 0; `masked`: there is a mask beside the bands.
    `orientation` is how stored rows and columns lie, as EXIF counts, `orientation_stored` what the file says even where
    that is not applied. `pages`: images in the file.
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
    no_colour: NDArray[np.bool_] | None = None
    scale: int = 1
    one_strip: bool = False
    samples: Samples = BYTES
    nodatas: tuple[float | int | None, ...] = ()
    alpha: int | None = None
    masked: bool = False
    orientation: int = 1
    orientation_stored: int = 1
    pages: int = 1

    @property
    def upright_size(self) -> tuple[int, int]:
        return self.size[::-1] if self.orientation in TURNED else self.size

    def stored(self, rect: Rect) -> Rect:
        transposed, down, across = ORIENTATIONS.get(self.orientation, _UPRIGHT)
        height, width = self.upright_size
        rows, cols = _flipped(rect.rows, height, flip=down), _flipped(rect.cols, width, flip=across)
        return Rect(cols, rows) if transposed else Rect(rows, cols)

    def upright(self, pixels: NDArray[Any]) -> NDArray[Any]:
        transposed, down, across = ORIENTATIONS.get(self.orientation, _UPRIGHT)
        turned = pixels.swapaxes(-1, -2) if transposed else pixels
        return turned[..., :: -1 if down else 1, :: -1 if across else 1]

    def value(self, stored: float) -> float:
        return self.samples.white - stored if self.samples.inverted else stored * self.scale

    def expanded(self, pixels: NDArray[Any]) -> NDArray[Any]:
        if self.palette is not None:
            return np.ascontiguousarray(self.palette[pixels[0]].transpose(2, 0, 1))
        if self.samples.inverted:
            turned: NDArray[Any] = np.asarray(self.samples.white, self.dtype) - pixels
            return turned
        return pixels if self.scale == 1 else pixels * np.uint8(self.scale)

    def holes(self, pixels: NDArray[Any]) -> NDArray[np.bool_] | None:
        return None if self.no_colour is None else self.no_colour[pixels[0]]


def _flipped(span: Span, size: int, *, flip: bool) -> Span:
    return Span(size - span.stop, size - span.start) if flip else span


def read_header(dataset: Any, name: str, driver: str, limits: RasterLimits, read_at: ReadAt) -> Header:  # noqa: ANN401
    """Return what a dataset says of itself, or its file by `read_at`; raises ImageError, ImageTooLargeError."""
    dtype = _dtype(dataset, name)
    if not 0 < (stored := int(dataset.count)) <= limits.max_bands:
        raise ImageTooLargeError(f"{name} has {stored:,} bands: 1 to {limits.max_bands:,} are accepted")
    palette = _palette(dataset)
    structure = dataset.tags(ns="IMAGE_STRUCTURE")
    given = _bits(dataset, dtype) if palette is None else None
    bits = given if driver == "PNG" and given else 8
    inverted = structure.get("MINISWHITE") == "YES" and palette is None and np.dtype(dtype).kind == "u"
    alphas = [band for band, colour in enumerate(dataset.colorinterp) if colour.name == "alpha" and stored > 1]
    header = Header(
        name=name,
        size=(dataset.height, dataset.width),
        bands=stored if palette is None else _RGB,
        dtype=dtype,
        nodata=_nodata(dataset, dtype) if palette is None else None,
        georeference=_georeference(dataset),
        notes=(),
        block=tuple(dataset.block_shapes[0]),
        separate=structure.get("INTERLEAVE") == "BAND",
        stored_bands=stored,
        palette=palette,
        no_colour=None if palette is None else _no_colour(dataset),
        samples=Samples(dtype, None if driver == "PNG" else given, inverted),
        alpha=alphas[0] if alphas else None,
        masked={flag.name for flag in dataset.mask_flag_enums[0]} == {"per_dataset"},  # neither a band nor a value
        pages=_pages(dataset),
        scale=255 // (2**bits - 1) if bits in {1, 2, 4} else 1,
        one_strip=driver == "GTiff" and _one_strip(dataset),
    )
    if driver == "GTiff":
        _check_compression(structure, name)
        _check_tiff(header, limits)
        header = _with_directory(dataset, header, limits, read_at)
    if palette is None and header.nodata is not None:
        nodatas = tuple(None if value is None else header.value(value) for value in dataset.nodatavals)
        header = replace(header, nodata=header.value(header.nodata), nodatas=nodatas)
    return replace(header, notes=_notes(dataset, header))


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
    offsets = [dataset.get_tag_item(f"BLOCK_OFFSET_0_{row}", "TIFF", bidx=1) for row in (0, 1, dataset.height - 1)]
    return offsets[0] is not None and offsets[1:] == [None, None]


def _dtype(dataset: Any, name: str) -> str:  # noqa: ANN401 - rasterio's
    dtypes = {*dataset.dtypes}
    if len(dtypes) != 1 or not dtypes <= {*DTYPES}:
        raise ImageError(f"{name} has samples of {', '.join(sorted(dtypes)) or 'no type'}, not of {', '.join(DTYPES)}")
    return str(dtypes.pop())


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


def _pages(dataset: Any) -> int:  # noqa: ANN401 - rasterio's
    with suppress(Exception):  # rasterio expects what a hostile file need not have
        return max(1, len(dataset.subdatasets))
    return 1


def _notes(dataset: Any, header: Header) -> tuple[str, ...]:  # noqa: ANN401 - rasterio's
    notes = [f"it has {header.pages} pages: the first is read"] if header.pages > 1 else []
    stored = header.orientation_stored
    if stored != header.orientation:
        notes.append(f"its orientation {stored} is not applied, for its georeference is that of the rows as stored")
    elif stored != 1:
        notes.append(f"it is read upright, by its orientation {stored}")
    if header.samples.inverted:
        notes.append("its least value is white (MINISWHITE): values are inverted, so that the largest is")
    if header.samples.bits is not None:
        full = f"{header.samples.white:,.0f} counts as full, not the type's largest"
        notes.append(f"its samples have fewer bits than their type: {full}")
    scales, offsets = dataset.scales, dataset.offsets
    if any(factor != 1 for factor in scales) or any(offsets):
        factors = dict.fromkeys(zip(scales, offsets, strict=True))
        said = ", ".join(f"{scale:g} x + {offset:g}" for scale, offset in factors)
        notes.append(f"scale and offset of its bands ({said:.80}) are not applied: values are the stored ones")
    return tuple(notes)


def _bits(dataset: Any, dtype: str) -> int | None:  # noqa: ANN401 - rasterio's
    said = str(dataset.tags(1, ns="IMAGE_STRUCTURE").get("NBITS", ""))
    kind = np.dtype(dtype)
    fewer = said.isdecimal() and kind.kind == "u" and 0 < int(said) < 8 * kind.itemsize
    return int(said) if fewer else None


def _no_colour(dataset: Any) -> NDArray[np.bool_] | None:  # noqa: ANN401 - rasterio's
    none = np.zeros(_COLOURS, bool)
    for index, colour in dataset.colormap(1).items():
        if 0 <= index < _COLOURS:
            none[index] = len(colour) > _RGB and colour[_RGB] == 0
    value = dataset.nodata
    if value is not None and float(value).is_integer() and 0 <= value < _COLOURS:
        none[int(value)] = True
    return none if none.any() else None


def _with_directory(dataset: Any, header: Header, limits: RasterLimits, read_at: ReadAt) -> Header:  # noqa: ANN401
    """Return a TIFF's header with its orientation; raises ImageTooLargeError for a mask in tiles that are too large."""
    offset = str(dataset.get_tag_item("IFD_OFFSET", "TIFF", bidx=1) or "")
    if not offset.isdecimal():
        return header
    listed = directories(read_at, int(offset), header.name)
    stored = next(listed).numbers.get(ORIENTATION, 1)
    stored = stored if stored in ORIENTATIONS else 1
    georeference = header.georeference
    placed = georeference.transform or georeference.crs or georeference.not_kept
    if header.masked:
        mask = next((directory for directory in listed if directory.is_mask), None)
        rows, cols = mask.block if mask else header.size
        if rows * cols > limits.max_block_bytes:
            raise ImageTooLargeError(
                f"{header.name} has a mask in tiles or strips of {rows:,} x {cols:,} pixels, more than the "
                f"{limits.max_block_bytes:,} accepted: store it in smaller tiles"
            )
    return replace(header, orientation=1 if placed else stored, orientation_stored=stored)


def _check_compression(structure: Mapping[str, str], name: str) -> None:
    if structure.get("SOURCE_COLOR_SPACE") == "CIELAB":
        raise ImageError(f"{name} has CIELab colours, which GDAL converts to others (grey to brown): store it as RGB")
    if (compression := structure.get("COMPRESSION", "NONE")) not in _COMPRESSIONS:
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


@dataclass(frozen=True)
class Directory:
    """A directory's tags of one number each, and where the next directory is, 0 after the last."""

    numbers: dict[int, int]
    next: int

    @property
    def is_mask(self) -> bool:
        return self.numbers.get(_KIND) == _MASK

    @property
    def block(self) -> tuple[int, int]:
        rows = self.numbers.get(_TILE_LENGTH) or min(
            self.numbers.get(_STRIP_ROWS, 2**32), self.numbers.get(_LENGTH, 2**32)
        )
        return rows, self.numbers.get(_TILE_WIDTH) or self.numbers.get(_WIDTH, 2**32)


def directories(read_at: ReadAt, first: int, name: str) -> Iterator[Directory]:
    """Yield a TIFF's directories from the one at `first` on, 64 at most; raises ImageError for a broken one."""
    start = read_at(0, 4)
    order, big = "<" if start.startswith(b"II") else ">", start[2:4] in (b"+\0", b"\0+")
    seen: set[int] = set()
    while first and first not in seen and len(seen) < _MOST_DIRECTORIES:
        seen.add(first)
        try:
            found = _directory(read_at, first, order, big=big)
        except struct.error:
            raise ImageError(f"{name} cannot be read: a directory of it is cut off; is the file whole?") from None
        yield found
        first = found.next


def _directory(read_at: ReadAt, first: int, order: str, *, big: bool) -> Directory:
    head, entry, pointer = ("Q", "HHQ8s", "Q") if big else ("H", "HHI4s", "I")
    at, each = struct.calcsize(f"{order}{head}"), struct.calcsize(f"{order}{entry}")
    data = read_at(first, at + each * _MOST_TAGS + struct.calcsize(pointer))
    [count] = struct.unpack_from(f"{order}{head}", data)
    if count > _MOST_TAGS:
        raise struct.error
    numbers = {}
    for number in range(count):
        tag, kind, values, stored = struct.unpack_from(f"{order}{entry}", data, at + each * number)
        if values == 1 and kind in _NUMBERS and struct.calcsize(_NUMBERS[kind]) <= len(stored):
            [numbers[tag]] = struct.unpack_from(f"{order}{_NUMBERS[kind]}", stored)
    [following] = struct.unpack_from(f"{order}{pointer}", data, at + each * count)
    return Directory(numbers, following)
