"""A result as a tiled TIFF, read back before it counts: GDAL does not raise every error of writing."""

from __future__ import annotations

import errno
import resource
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import SerferError
from serfer.core.geometry import Rect, Span
from serfer.core.units import MIB
from serfer.raster.gdal import gdal, library, limit_cache, open_dataset, reason
from serfer.raster.georeference import Georeference
from serfer.raster.palette import palette
from serfer.raster.results.strips import BLOCK, Mosaic

_CLASSIC = 3_900_000_000  # bytes: offsets of a TIFF that is not BigTIFF have 32 bits
_PIXEL_INTERLEAVED = 4  # channels, at most
_CACHE = 16 * MIB  # whole blocks are written, and read back, once
_MARGIN = 4 * MIB  # what GDAL may write beside a window's values
_LEVEL = 4  # of deflate: GDAL's own, 6, takes three to four times the time for 1% fewer bytes of classes
_FLOAT_PREDICTOR = 3


@dataclass(frozen=True)
class ResultOptions:
    """How a result is written.

    Attributes:
        nodata: the value of pixels that hold none, named in a TIFF and left out of the scale of a PNG of depth.
        compression: of a TIFF's tiles; each is lossless, with a predictor (differences between neighbours).
        overwrite: replace a result that exists.
        mask: the values are classes 0 to 255 (one channel of uint8): PNG and TIFF get the palette of their colours.
        names: of the channels, for a TIFF: those of classes, for example.
        tags: texts for a TIFF's metadata.
    """

    nodata: float | None = None
    compression: Literal["deflate", "zstd", "none"] = "deflate"
    overwrite: bool = False
    mask: bool = False
    names: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)


def write_tiff(path: Path, mosaic: Mosaic, georeference: Georeference, options: ResultOptions) -> None:
    limit_cache(_CACHE)
    with gdal(str(path)) as rasterio:
        try:
            written = _write(path, mosaic, georeference, options)
            _compare(rasterio, path, mosaic, written)
        except SerferError:
            raise
        except rasterio.errors.RasterioError as error:  # an OSError without a number, or none
            raise OSError(errno.EFBIG if _at_limit(path) else errno.EIO, reason(error)) from error


def _at_limit(path: Path) -> bool:
    """Whether a file is nearly as large as this process may write one: GDAL does not say why a write failed."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return limit != resource.RLIM_INFINITY and path.exists() and path.stat().st_size + _MARGIN > limit


def _write(path: Path, mosaic: Mosaic, georeference: Georeference, options: ResultOptions) -> list[int]:
    written = []
    with open_dataset(library(), path, "w", **_profile(mosaic, georeference, options)) as dataset:
        _describe(dataset, mosaic, georeference, options)
        for window, channels in _windows(mosaic):
            values = mosaic.read(window, channels)
            if shutil.disk_usage(path.parent).free < values.nbytes + _MARGIN:
                raise OSError(errno.ENOSPC, "no space left on device")
            dataset.write(values, _bands(channels), window=_pairs(window))
            written.append(_crc(values))
    return written


def _compare(rasterio: Any, path: Path, mosaic: Mosaic, written: list[int]) -> None:  # noqa: ANN401 - untyped
    with open_dataset(rasterio, path, driver="GTiff") as dataset:
        for (window, channels), crc in zip(_windows(mosaic), written, strict=True):
            if _crc(dataset.read(_bands(channels), window=_pairs(window))) != crc:
                rows = window.rows
                raise OSError(errno.EIO, f"its rows {rows.start} to {rows.stop} are not what was written")


def _windows(mosaic: Mosaic) -> Iterator[tuple[Rect, Span]]:
    channels = mosaic.array.channels
    if channels <= _PIXEL_INTERLEAVED:
        yield from ((window, Span(0, channels)) for window in mosaic.windows(channels))
    else:
        yield from ((window, Span(number, number + 1)) for window in mosaic.windows(1) for number in range(channels))


def _profile(mosaic: Mosaic, georeference: Georeference, options: ResultOptions) -> dict[str, Any]:
    rasterio, array = library(), mosaic.array
    profile: dict[str, Any] = {"driver": "GTiff", "dtype": array.dtype, "nodata": options.nodata}
    profile |= {"height": array.rows.size, "width": array.cols.size, "count": array.channels}
    profile |= {"tiled": True, "blockxsize": BLOCK, "blockysize": BLOCK}
    profile["interleave"] = "pixel" if array.channels <= _PIXEL_INTERLEAVED else "band"
    profile["BIGTIFF"] = "YES" if array.nbytes > _CLASSIC else "NO"
    if options.compression != "none":
        profile["compress"] = options.compression
        if options.compression == "deflate":
            profile["zlevel"] = _LEVEL
        if np.dtype(array.dtype).kind == "f":  # differences of neighbours make classes larger
            profile["predictor"] = _FLOAT_PREDICTOR
    if options.mask:
        profile["photometric"] = "palette"
    if georeference.crs is not None:
        profile["crs"] = rasterio.crs.CRS.from_wkt(georeference.crs)
    if georeference.transform is not None:
        profile["transform"] = rasterio.Affine(*georeference.transform)
    return profile


def _describe(dataset: Any, mosaic: Mosaic, georeference: Georeference, options: ResultOptions) -> None:  # noqa: ANN401
    dataset.update_tags(**options.tags, AREA_OR_POINT="Point" if georeference.point else "Area")
    for band, name in enumerate(options.names[: mosaic.array.channels], start=1):
        dataset.set_band_description(band, name)
    if options.mask:
        dataset.write_colormap(1, {number: (*colour, 255) for number, colour in enumerate(palette())})


def _bands(channels: Span) -> list[int]:
    return [*range(channels.start + 1, channels.stop + 1)]


def _pairs(window: Rect) -> tuple[tuple[int, int], tuple[int, int]]:
    return (window.rows.start, window.rows.stop), (window.cols.start, window.cols.stop)


def _crc(values: NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(values).data.cast("B"))
