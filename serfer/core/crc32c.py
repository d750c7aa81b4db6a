"""CRC-32C (Castagnoli; RFC 3720, appendix B.4), the checksum of zarr's chunks: by google-crc32c; joined here."""

from functools import lru_cache
from typing import Final

import google_crc32c

_POLYNOMIAL: Final = 0x82F63B78  # bits in reverse: the highest is the constant term
_ONES: Final = 0xFFFFFFFF
_X8: Final = 1 << 23
_BLOCK: Final = 1 << 18


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """Return the CRC-32C of `data`, or of what has `crc` with `data` behind it."""
    view = memoryview(data).cast("B")
    for start in range(0, len(view), _BLOCK):  # it takes bytes alone: a part at a time is copied
        crc = google_crc32c.extend(crc, view[start : start + _BLOCK].tobytes())
    return crc


def crc32c_joined(first: int, second: int, size: int) -> int:
    """Return the CRC-32C of bytes that have `first`, with `size` bytes behind them that have `second`."""
    return _product(_power(size), first) ^ second


def crc32c_with_zeros(crc: int, size: int) -> int:
    """Return the CRC-32C of bytes that have `crc`, with `size` zeros behind them."""
    return _product(_power(size), crc ^ _ONES) ^ _ONES


def _product(first: int, second: int) -> int:
    product = 0
    for bit in range(31, -1, -1):
        if first >> bit & 1:
            product ^= second
        second = second >> 1 ^ (_POLYNOMIAL if second & 1 else 0)
    return product


@lru_cache(64)
def _power(size: int) -> int:
    power, square = 1 << 31, _X8
    while size:
        if size & 1:
            power = _product(power, square)
        square, size = _product(square, square), size >> 1
    return power
