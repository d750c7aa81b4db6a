"""GDAL through rasterio: with few drivers, nothing beside the file itself, and errors that name the image."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from serfer.core.errors import ImageError, ImageTooLargeError, SerferError
from serfer.extras import named_extras
from serfer.libtiff import silence_libtiff

_OPTIONS = {
    # The file alone counts: no side files of metadata, masks, overviews or positions, and nothing over the network.
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "GDAL_PAM_ENABLED": "NO",
    "GDAL_GEOREF_SOURCES": "INTERNAL",
    "PROJ_NETWORK": "OFF",
    # A cut or broken file is an error, as it is by default in some drivers only.
    "GDAL_ERROR_ON_LIBJPEG_WARNING": "YES",
    "GDAL_PNG_WHOLE_IMAGE_OPTIM": "NO",  # its fast path says nothing of missing data
    "GTIFF_IGNORE_READ_ERRORS": "NO",
    # Objects: what was overwritten since is not mixed with what was read before.
    "CPL_VSIL_CURL_NON_CACHED": "/vsis3/",
    "GDAL_HTTP_CONNECTTIMEOUT": "5",
    "GDAL_HTTP_TIMEOUT": "60",
    "GDAL_HTTP_MAX_RETRY": "4",
    "GDAL_HTTP_RETRY_DELAY": "0.5",
}
_MOST_REASON = 200
_OPENING = Lock()
# Formats by their first bytes; GDAL may use no other driver.
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_SIGNATURES = dict.fromkeys(_TIFF, "GTiff") | {b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG"}
SIGNATURE_BYTES = 4


def driver_of(start: bytes, name: str) -> str:
    if not start:
        raise ImageError(f"{name} is empty")
    for signature, driver in _SIGNATURES.items():
        if start.startswith(signature):
            return driver
    raise ImageError(f"{name} is not an image of a known format (TIFF, PNG, JPEG)")


@named_extras()
def library() -> Any:  # noqa: ANN401 - the module rasterio, untyped
    import rasterio  # noqa: PLC0415 - of an extra, and half a second to import

    return rasterio


@contextmanager
def gdal(path: str, options: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Enter GDAL's settings for this thread, with `options` of S3, in which it may fetch `path` alone."""
    rasterio = library()

    class Given(rasterio.session.Session):  # type: ignore[name-defined, misc] # untyped
        """Options of ours instead of what rasterio would look for in the environment."""

        def get_credential_options(self) -> dict[str, str]:
            return dict(options or {})

    # What a file's metadata name as their overviews, for example, is neither asked for nor allowed.
    with rasterio.Env(session=Given(), CPL_VSIL_CURL_ALLOWED_FILENAME=path, **_OPTIONS):
        silence_libtiff("GDAL")
        yield rasterio


def open_dataset(rasterio: Any, path: str | Path, mode: str = "r", **given: Any) -> Any:  # noqa: ANN401 - untyped
    """Open a dataset within `gdal`, without rasterio's warning of one that has no georeference.

    Filters of warnings are the process's, not the thread's: one thread at a time changes them.
    """
    with _OPENING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rasterio.open(path, mode, sharing=False, **given)


def limit_cache(size: int) -> None:
    """Set the bytes of GDAL's block cache, which is one for the process; by default it takes 5% of the machine."""
    library().env.set_gdal_config("GDAL_CACHEMAX", size)


@contextmanager
def image_errors(name: str, path: str, done: str) -> Iterator[None]:
    try:
        yield
    except SerferError:
        raise
    except MemoryError:
        raise ImageTooLargeError(f"{name} takes more memory to decode than there is") from None
    except Exception as error:  # malformed files raise many classes: CRSError, UnicodeDecodeError, OverflowError, ...
        raise ImageError(f"{name} cannot be {done}: {reason(error).replace(path, name)}") from error


def reason(error: BaseException) -> str:
    """Return what GDAL itself says, in one line: rasterio's own error often only refers to it."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(getattr(error, "errmsg", "") or error)
    text = " ".join(text.split()).removesuffix(".")[:_MOST_REASON] or type(error).__name__
    return f"{text}; is the file whole?" if "Read error" in text or "Read Error" in text else text
