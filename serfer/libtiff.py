"""libtiff's own messages: it may write a line to standard error for every fault, 10,000 times the size of a file."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

from serfer.system import loaded_libraries


@cache
def silence_libtiff(user: str = "Pillow") -> None:
    """Stop each libtiff that is loaded by now from writing to standard error; once for each `user`, which loads one.

    Neither Pillow nor GDAL has a setting for that. Where libtiff is not a shared library of its own, nothing changes.
    """
    del user
    with suppress(OSError, AttributeError):
        for path in loaded_libraries("/libtiff"):
            library = ctypes.CDLL(path)
            for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
                set_handler = library[name]
                set_handler.argtypes, set_handler.restype = [ctypes.c_void_p], ctypes.c_void_p
                set_handler(None)
