"""A result from its parts: written under a temporary name, kept by the disk, and only then given its name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image

from serfer.core.errors import AlteredPieceError, InputError, UnavailableError, UsageError
from serfer.core.geometry import Rect, Span
from serfer.core.units import MIB
from serfer.core.zarr import ChunkedArray
from serfer.files import check_place, sync_folder
from serfer.raster.durable import TEMPORARY
from serfer.raster.georeference import Georeference
from serfer.raster.objects import Bucket
from serfer.raster.palette import DepthScale, mask_image
from serfer.raster.place import S3Place, parse_place
from serfer.raster.results.parts import ASSEMBLED, DTYPES, UPLOAD, ResultParts, disk_error
from serfer.raster.results.strips import BLOCK, Mosaic
from serfer.raster.results.tiff_result import ResultOptions, write_tiff

SUFFIXES = (".tif", ".tiff", ".png", ".npy")
_DEFAULT = ResultOptions()
_NOWHERE = Georeference()
MOST_PNG_BYTES = 128 * MIB
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def check_result(place: str | Path, array: ChunkedArray, options: ResultOptions = _DEFAULT) -> None:
    """Refuse, before long work, a result that could not be written, by its suffix, options, place or a file there."""
    where = parse_place(place)
    suffix = _suffix(where)
    dtype = array.dtype
    if dtype not in DTYPES:
        raise UsageError(f"a result holds {', '.join(DTYPES)}, not {dtype}")
    if options.mask and (dtype != "uint8" or array.channels != 1):
        raise UsageError(f"a mask is one channel of uint8, not {array.channels} of {dtype}")
    _check_nodata(dtype, options.nodata)
    if suffix == ".png":
        check_png(array.channels, dtype, array.nbytes, options)
    _check_place(where, overwrite=options.overwrite)


def write_result(
    place: str | Path, parts: ResultParts, *, georeference: Georeference = _NOWHERE, options: ResultOptions = _DEFAULT
) -> None:
    """Write a result whose parts are there as TIFF (read back), PNG or .npy; raises InputError, UnavailableError."""
    check_result(place, parts.array, options)

    def write(file: Path) -> None:
        mosaic = Mosaic(parts)
        _write(file, _suffix(parse_place(place)), mosaic, georeference, options)
        mosaic.verify()

    publish(place, parts, write, overwrite=options.overwrite)


def publish(place: str | Path, parts: ResultParts, write: Callable[[Path], None], *, overwrite: bool) -> None:
    """Have `write` make a temporary file, and give it its place; raises InputError, UnavailableError."""
    if missing := {*range(parts.count)} - parts.done():
        raise _missing(parts, missing)
    try:
        _write_result(parse_place(place), parts, write, overwrite=overwrite)
    except AlteredPieceError:
        raise _missing(parts, parts.verify()) from None


def _missing(parts: ResultParts, missing: set[int]) -> UnavailableError:
    return UnavailableError(
        f"{len(missing):,} of {parts.count:,} parts in {parts.directory} are missing, part {min(missing)} first: "
        "run the same command again, it resumes"
    )


def _write_result(where: Path | S3Place, parts: ResultParts, write: Callable[[Path], None], *, overwrite: bool) -> None:
    if isinstance(where, S3Place):
        file = parts.directory / f".{ASSEMBLED}{TEMPORARY}"
        with _temporary(file, parts):
            _finished(file, write)
            _check_place(where, overwrite=overwrite)
            Bucket(where).upload(file, parts.directory / UPLOAD)
        return
    # Named by the job, so that what a killed process left is replaced when it resumes.
    file = where.with_name(f".{where.name}.{parts.digest[:8]}{TEMPORARY}")
    with _temporary(file, parts):
        _finished(file, write)
        _publish(file, where, overwrite=overwrite)


def _write(file: Path, suffix: str, mosaic: Mosaic, georeference: Georeference, options: ResultOptions) -> None:
    if suffix == ".npy":
        write_npy(file, mosaic)
    elif suffix == ".png":
        write_png(file, mosaic, options)
    else:
        write_tiff(file, mosaic, georeference, options)


def _finished(file: Path, write: Callable[[Path], None]) -> None:
    write(file)
    with file.open("rb") as written:
        os.fsync(written.fileno())


def _publish(file: Path, place: Path, *, overwrite: bool) -> None:
    """Give a file its name; a result that appeared meanwhile is not replaced unless it may be."""
    if overwrite:
        file.replace(place)
    else:
        try:
            os.link(file, place)
        except FileExistsError:
            raise _exists(str(place)) from None
        except OSError:  # a file system without links
            _check_place(place, overwrite=False)
            file.replace(place)
    sync_folder(place.absolute().parent)


@contextmanager
def _temporary(file: Path, parts: ResultParts) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(
            file.absolute().parent, f"all {parts.count:,} parts are kept in {parts.directory}", error
        ) from error
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)


def _suffix(where: Path | S3Place) -> str:
    suffix = Path(where.key if isinstance(where, S3Place) else where.name).suffix.lower()
    if suffix == ".zarr":
        raise UsageError(f"{where}: serfer.windows gives windows to write into zarr (docs/how-to/map-elsewhere.md)")
    if suffix not in SUFFIXES:
        raise UsageError(f"a result ends in {', '.join(SUFFIXES)}, not in {suffix or 'nothing'}: {where}")
    return suffix


def _check_nodata(dtype: str, nodata: float | None) -> None:
    if nodata is None:
        return
    kind = np.dtype(dtype)
    if kind.kind != "f" and not (float(nodata).is_integer() and np.iinfo(kind).min <= nodata <= np.iinfo(kind).max):
        raise UsageError(f"no value of {dtype} is {nodata:g}, so it cannot stand for no data")


def check_free(place: str | Path, *, overwrite: bool) -> None:
    _check_place(parse_place(place), overwrite=overwrite)


def _check_place(where: Path | S3Place, *, overwrite: bool) -> None:
    if isinstance(where, S3Place):
        bucket = Bucket(where)
        bucket.check_bucket()
        if not overwrite and bucket.head() is not None:
            raise _exists(str(where))
        return
    check_place(where)
    if not overwrite and where.exists():
        raise _exists(str(where))


def _exists(name: str) -> InputError:
    return InputError(f"{name} exists: name another result, or replace it (--overwrite)")


def check_space(parts: ResultParts, place: str | Path) -> str | None:
    """Refuse parts that find no room; return a warning where only the uncompressed result may find none."""
    missing = {*range(parts.count)} - parts.done()
    needed = len(missing) * parts.array.chunk_bytes
    free = shutil.disk_usage(parts.directory).free
    if needed > free:
        raise UnavailableError(
            f"{parts.directory} needs {needed:,} bytes for {len(missing):,} of {parts.count:,} parts, and its disk has "
            f"{free:,} free: make room, or keep the parts on another disk"
        )
    result = parts.array.nbytes
    where = parse_place(place)
    folder = parts.directory if isinstance(where, S3Place) else where.absolute().parent
    if folder.stat().st_dev == parts.directory.stat().st_dev:
        left, wanted = free - needed, f"{needed:,} bytes of parts and up to {result:,} of the result"
    else:
        left, wanted = shutil.disk_usage(folder).free, f"up to {result:,} bytes of the result"
    if result <= left:
        return None
    return f"the disk of {folder} may become full: {wanted} go there, less by compression, and it has {left:,} free"


def write_npy(path: Path, mosaic: Mosaic) -> None:
    array = mosaic.array
    dtype = np.dtype(array.dtype)
    shape = (array.channels, array.rows.size, array.cols.size)
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
        for channel in range(array.channels):
            for strip in _strips(mosaic):
                file.write(mosaic.read(strip, Span(channel, channel + 1)).data.cast("B"))


def check_png(channels: int, dtype: str, size: int, options: ResultOptions) -> None:
    fits = (dtype == "uint8" and channels in _MODES) or (channels == 1 and dtype in {"uint16", "float32", "float64"})
    if not fits or (options.mask and (dtype != "uint8" or channels != 1)):
        raise UsageError(
            f"a PNG holds uint8 of 1, 3 or 4 channels, or uint16 or a float of one, not {dtype} of {channels}: "
            "write a TIFF"
        )
    if size > MOST_PNG_BYTES:
        raise UsageError(f"a PNG of {size:,} bytes of values is more than the {MOST_PNG_BYTES:,} allowed: write a TIFF")


def write_png(path: Path, mosaic: Mosaic, options: ResultOptions) -> None:
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
