"""Images read by windows: a TIFF's blocks as they are needed, a PNG or JPEG from what it was decoded to."""

from __future__ import annotations

import math
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from queue import LifoQueue
from threading import Lock
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ImageError, ImageTooLargeError, InputError, UsageError
from serfer.core.geometry import Rect, Span
from serfer.core.units import MIB
from serfer.raster.gdal import SIGNATURE_BYTES, driver_of, gdal, image_errors, limit_cache, open_dataset
from serfer.raster.objects import Bucket
from serfer.raster.place import S3Place, parse_place
from serfer.raster.reading.header import TURNED, Header, RasterLimits, check_blocks, read_header
from serfer.raster.reading.whole import Scratch, decode_by_strips, decode_jpeg, jpeg_header, png_header
from serfer.system import descriptor_path

_DEFAULT = RasterLimits()
_MOST_HEADER = 16 * MIB  # of a JPEG in S3: its metadata come before its size


@dataclass(frozen=True)
class _Origin:
    """A file or an object that is open: GDAL's path to it, and what tells it from another version of itself."""

    name: str
    path: str
    driver: str
    version: Mapping[str, int | str]
    place: Path | None = None
    fd: int | None = None
    bucket: Bucket | None = None

    def options(self) -> dict[str, str]:
        return self.bucket.gdal_options() if self.bucket else {}

    def file(self, most: int = sys.maxsize) -> BinaryIO:
        if self.bucket:
            return BytesIO(self.bucket.first_bytes(min(most, int(self.version["bytes"]))))
        return Path(self.path).open("rb")

    def read_at(self, start: int, count: int) -> bytes:
        if self.bucket:
            size = int(self.version["bytes"])
            return self.bucket.bytes_at(start, min(count, size - start)) if start < size else b""
        return b"" if self.fd is None else os.pread(self.fd, count, start)

    def version_now(self) -> Mapping[str, int | str] | None:
        if self.bucket:
            head = self.bucket.head()
            return None if head is None else {"bytes": head.bytes, "etag": head.etag}
        try:
            return None if self.place is None else _file_version(self.place.stat())
        except OSError:
            return None


class RasterSource:
    """An image that is read by windows, from several threads at once; made by `open_raster`.

    Attributes:
        size: height and width in pixels.
        bands: of what `read` returns: a palette's indices have become red, green and blue.
        dtype: numpy's name of the samples' type: (u)int8, 16, 32, float32 or float64.
        nodata: the value of pixels that hold none, or None.
        nodatas: the same for each band, empty where there is none.
        alpha: the band, from 0, that says how far pixels are opaque; None for none.
        masked: pixels are said to hold no data by a mask or a palette; `read_masked` returns which.
        white: the value that counts as 255 does in a picture of 8 bits.
        pages: images in the file, of which the first is read.
        georeference: where the pixels lie; its fields are None for a plain picture.
        notes: what of the file is left out, for the caller: further pages, for example.
        identity: what a resumed job compares, of JSON's types: these, and the file's length and time of change or the
            object's ETag.
    """

    def __init__(self, origin: _Origin, limits: RasterLimits, scratch: Path | None = None) -> None:
        self.name, self._origin, self._limits, self._folder = origin.name, origin, limits, scratch
        self._scratch: Scratch | None = None
        self._decoding, self._broken = Lock(), False
        self._by_pillow = False
        self._free: LifoQueue[Any] = LifoQueue()
        self._header = header = self._jpeg() if origin.driver == "JPEG" else self._start()
        self.size, self.bands, self.dtype = header.upright_size, header.bands, header.dtype
        self.nodata, self.georeference = header.nodata, header.georeference
        self.notes = (*header.notes, *(_left_beside(origin.place) if header.georeference.transform is None else ()))
        self.nodatas, self.alpha, self.pages = header.nodatas, header.alpha, header.pages
        self.white = header.samples.white
        self.masked = header.masked or header.no_colour is not None
        self.identity: dict[str, Any] = {"size": [*self.size], "bands": header.bands, "dtype": header.dtype}
        self.identity |= {"notes": [*header.notes], "masked": self.masked, "alpha": header.alpha, **origin.version}

    def _jpeg(self) -> Header:
        with image_errors(self.name, self._origin.path, "read"), self._origin.file(_MOST_HEADER) as file:
            header, self._by_pillow = jpeg_header(file, self.name, self._limits)
        self._add_readers()
        return header

    def _start(self) -> Header:
        limit_cache(self._limits.cache_bytes)
        dataset = self._open()
        try:
            with self._gdal("read"):
                header = read_header(dataset, self.name, self._origin.driver, self._limits, self._origin.read_at)
                if self._origin.driver == "PNG":
                    header = png_header(header, self._origin.read_at, self._limits)
        except BaseException:
            dataset.close()
            raise
        self._add_readers(dataset)
        return header

    def _add_readers(self, *opened: Any) -> None:  # noqa: ANN401 - rasterio's
        for reader in (*[None] * (self._limits.readers - len(opened)), *opened):  # the last one in is the first one out
            self._free.put(reader)

    @property
    def decoded_once(self) -> bool:
        """Whether it can only be decoded from its beginning, a PNG or JPEG, into a temporary file: see `decode`."""
        return self._origin.driver in ("PNG", "JPEG")

    def decode(self) -> None:
        """Decode a PNG or JPEG, which the first `read` does otherwise; raises ImageError, UnavailableError."""
        if self.decoded_once:
            self._pixels_once()

    def _pixels_once(self) -> Scratch:
        with self._decoding:
            if self._scratch is None:
                if self._broken:
                    raise ImageError(f"{self.name} cannot be read: it is broken, as was found before")
                scratch = Scratch(self._header, self._folder)
                try:
                    self._decode_into(scratch)
                except BaseException as error:
                    scratch.close()
                    self._broken = isinstance(error, ImageError) and self._origin.bucket is None
                    raise
                self._scratch = scratch
            return self._scratch

    def _decode_into(self, scratch: Scratch) -> None:
        if self._by_pillow:
            with image_errors(self.name, self._origin.path, "read"), self._origin.file() as file:
                decode_jpeg(file, self._header, scratch)
            return
        limit_cache(self._limits.cache_bytes)
        with self._reader() as dataset, self._gdal("read"):
            decode_by_strips(dataset, self._header, scratch)
        self._close_readers()  # with what GDAL keeps of them

    def read(self, rect: Rect) -> NDArray[Any]:
        """Return the pixels of a rectangle, upright, (bands, rows, cols); raises UsageError where it is too large."""
        return self.read_masked(rect)[0]

    def blocks(self, most_bytes: int) -> Iterator[Rect]:
        """Yield whole tiles or strips of the file, of at most `most_bytes` or one, that cover the image once."""
        header, (height, width) = self._header, self.size
        rows, cols = header.block[::-1] if header.orientation in TURNED else header.block
        rows, cols = min(rows, height), min(cols, width)
        many = max(1, most_bytes // (rows * cols * self.bands * np.dtype(self.dtype).itemsize))
        beside = min(-(-width // cols), math.isqrt(many))
        down, across = rows * (many // beside), cols * beside
        for top in range(0, height, down):
            for left in range(0, width, across):
                yield Rect(Span(top, min(top + down, height)), Span(left, min(left + across, width)))

    def value(self, stored: float) -> float:
        return self._header.value(stored)

    def read_masked(self, rect: Rect) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return what `read` does, and which pixels its mask or palette hides, None where there is neither."""
        self._check(rect)
        try:
            return self._decoded(rect)
        except ImageError:
            self.check_unchanged()
            if self._origin.bucket is None:
                raise
        return self._decoded(rect)  # GDAL does not say whether an object is broken or a request failed

    def _decoded(self, upright: Rect) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        header, rect = self._header, self._header.stored(upright)
        if self.decoded_once:
            return self._upright(self._pixels_once().read(rect), None)
        window = ((rect.rows.start, rect.rows.stop), (rect.cols.start, rect.cols.stop))
        with self._reader() as dataset, self._gdal("read"):
            check_blocks(dataset, header, rect, self._limits)
            pixels = dataset.read(window=window)
            outside = dataset.read_masks(1, window=window) == 0 if header.masked else None
        return self._upright(pixels, outside)

    def _upright(
        self, pixels: NDArray[Any], outside: NDArray[np.bool_] | None
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        header = self._header
        holes = header.holes(pixels)
        if outside is not None:
            holes = outside if holes is None else holes | outside
        turned = np.ascontiguousarray(header.upright(header.expanded(pixels)))
        return turned, None if holes is None else header.upright(holes)

    def check_unchanged(self) -> None:
        if self._origin.version_now() != self._origin.version:
            raise InputError(f"{self.name} was changed while it was read: run it again on one that stays as it is")

    def close(self) -> None:
        self._close_readers()
        if self._origin.fd is not None:
            os.close(self._origin.fd)
            self._origin = replace(self._origin, fd=None)
        if self._scratch is not None:
            self._scratch.close()

    def _close_readers(self) -> None:
        while not self._free.empty():
            if (dataset := self._free.get()) is not None:
                dataset.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, rect: Rect) -> None:
        if rect.rows.size <= 0 or rect.cols.size <= 0 or not Rect.whole(*self.size).contains(rect):
            raise UsageError(f"{rect} is not a rectangle within {self.name}, {self.size[0]} x {self.size[1]} pixels")
        needed = rect.area * self.bands * np.dtype(self.dtype).itemsize
        if needed > self._limits.max_read_bytes:
            raise UsageError(
                f"{rect.rows.size} x {rect.cols.size} pixels of {self.name} are {needed:,} bytes, more than the "
                f"{self._limits.max_read_bytes:,} that are read at once: read smaller windows"
            )

    def _open(self) -> Any:  # noqa: ANN401 - rasterio's
        with self._gdal("opened") as rasterio:
            return open_dataset(rasterio, self._origin.path, driver=self._origin.driver)

    @contextmanager
    def _gdal(self, done: str) -> Iterator[Any]:
        options = self._origin.options()
        with image_errors(self._origin.name, self._origin.path, done), gdal(self._origin.path, options) as rasterio:
            yield rasterio

    @contextmanager
    def _reader(self) -> Iterator[Any]:
        """No two threads may share a dataset; after an error it is closed, and the next thread opens another one."""
        dataset = self._free.get()
        try:
            dataset = dataset or self._open()
            yield dataset
        except BaseException:
            if dataset is not None:
                dataset.close()
            dataset = None
            raise
        finally:
            self._free.put(dataset)


def open_raster(place: str | Path, limits: RasterLimits = _DEFAULT, *, scratch: Path | None = None) -> RasterSource:
    """Open a TIFF, BigTIFF, cloud-optimised GeoTIFF, PNG or JPEG for reading by windows; use it in a `with`.

    Args:
        place: a path, or `s3://BUCKET/KEY[?region=REGION][&endpoint=URL]` with credentials, region and endpoint as
            boto3 finds them.
        limits: what of the image is accepted.
        scratch: the folder in which the pixels of a PNG or JPEG find room, in a file without a name; by default that of
            temporary files.

    Raises:
        UsageError: a malformed URL.
        InputError: the file is missing, not a file, or may not be read; ImageError: it is not such an image, or broken;
            ImageTooLargeError: it exceeds the limits.
        UnavailableError: S3 does not answer, or there are no credentials; MissingExtraError: rasterio is missing.
    """
    where = parse_place(place)
    if isinstance(where, S3Place):
        return RasterSource(_object(where, limits), limits, scratch)
    with ExitStack() as on_error:
        origin = _file(where, on_error)
        source = RasterSource(origin, limits, scratch)
        on_error.pop_all()
        return source


def _file(path: Path, on_error: ExitStack) -> _Origin:
    """Open a file: GDAL reads it through its descriptor, so no name is taken for one of GDAL's own."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe would wait
        on_error.callback(os.close, fd)
        status = os.fstat(fd)
        start = os.pread(fd, SIGNATURE_BYTES, 0) if stat.S_ISREG(status.st_mode) else b""
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"{str(path)!r} cannot be read: {getattr(error, 'strerror', error)}") from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a file")
    driver = driver_of(start, str(path))
    return _Origin(str(path), descriptor_path(fd), driver, _file_version(status), path.absolute(), fd)


def _left_beside(place: Path | None) -> tuple[str, ...]:
    """Name the file beside an image that says where it lies, and is never opened (ADR 28)."""
    suffix = place.suffix if place else ""
    names = (f".{suffix[1:2]}{suffix[-1:]}w", f"{suffix}w", ".wld", f"{suffix}.aux.xml")
    found = next((name for name in names if place and suffix and place.with_suffix(name).is_file()), None)
    if place is None or found is None:
        return ()
    return (f"{place.stem}{found} beside it is not read: gdal_translate writes its georeference into a TIFF",)


def _file_version(status: os.stat_result) -> Mapping[str, int | str]:
    # ctime too: a file that was altered in place may have its mtime put back
    return {"bytes": status.st_size, "changed_ns": status.st_mtime_ns, "altered_ns": status.st_ctime_ns}


def _object(place: S3Place, limits: RasterLimits) -> _Origin:
    bucket = Bucket(place)
    head = bucket.head()
    if head is None:
        raise InputError(f"{place} does not exist")
    driver = driver_of(bucket.first_bytes(SIGNATURE_BYTES) if head.bytes else b"", str(place))
    version: Mapping[str, int | str] = {"bytes": head.bytes, "etag": head.etag}
    if driver == "JPEG" and head.bytes > limits.max_read_bytes:
        raise ImageTooLargeError(f"{place} is a JPEG of more than {limits.max_read_bytes:,} bytes: store it as a TIFF")
    return _Origin(str(place), f"/vsis3/{place.bucket}/{place.key}", driver, version, bucket=bucket)
