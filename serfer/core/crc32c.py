"""CRC-32C (Castagnoli; RFC 3720, appendix B.4), the checksum of zarr's chunks: by numpy, or, without it, byte by byte.

The register after four bytes w is (register + w) x^32 mod P. Over m words that is a sum of w x^(32 (m - i)), which a
tree adds up: the first half of the words times x^(32 m / 2), plus the second half, until one word is left. Such a
product is two look-ups in tables of 65,536.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final

_POLYNOMIAL: Final = 0x82F63B78  # bits in reverse
_ONES: Final = 0xFFFFFFFF
_FEW: Final = 2048  # bytes: fewer are faster one by one
_BLOCK: Final = 1 << 20


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """Return the CRC-32C of `data`, or of what has `crc` with `data` behind it."""
    view, register = memoryview(data).cast("B"), crc ^ _ONES
    for start in range(0, len(view), _BLOCK):
        block = view[start : start + _BLOCK]
        register = _few(block, register) if len(block) < _FEW or _numpy() is None else _many(block, register)
    return register ^ _ONES


def crc32c_joined(first: int, second: int, size: int) -> int:
    """Return the CRC-32C of bytes that have `first`, with `size` bytes behind them that have `second`."""
    return _with_zeros(first, size) ^ second


def crc32c_with_zeros(crc: int, size: int) -> int:
    """Return the CRC-32C of bytes that have `crc`, with `size` zeros behind them."""
    return _with_zeros(crc ^ _ONES, size) ^ _ONES


def _with_zeros(register: int, size: int) -> int:
    """Return the register after so many zeros: it is multiplied by a power of x, word by word, whose bits count."""
    register = _few(bytes(size % 4), register)
    np = _numpy()
    if np is None:
        return _few(bytes(size // 4 * 4), register)
    word = np.array([register], "<u4")
    for level in range((size // 4).bit_length()):
        if size // 4 >> level & 1:
            word = _times(_tables(level), word)
    return int(word[0])


def _few(data: bytes | memoryview, register: int) -> int:
    table = _byte_table()
    for byte in data:
        register = table[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register


def _many(data: memoryview, register: int) -> int:
    """Return the register after a block; leading zeros, which make it a power of two of words, change nothing."""
    np = _numpy()
    levels = ((len(data) - 1) // 4).bit_length()
    padded = np.zeros(4 << levels, np.uint8)
    first = len(padded) - len(data)
    padded[first:] = np.frombuffer(data, np.uint8)
    padded[first : first + 4] ^= np.frombuffer(register.to_bytes(4, "little"), np.uint8)
    words = padded.view("<u4")
    for level in reversed(range(levels)):
        half = 1 << level
        words = _times(_tables(level), words[:half]) ^ words[half:]
    return int(_times(_tables(0), words)[0])


def _times(tables: Any, words: Any) -> Any:  # noqa: ANN401 - arrays, of a package that a client may not have
    halves = words.view("<u2").reshape(-1, 2)
    return tables[0].take(halves[:, 0], mode="wrap") ^ tables[1].take(halves[:, 1], mode="wrap")  # the fastest way


@cache
def _tables(level: int) -> Any:  # noqa: ANN401 - as above
    """Return the products of x^(32 2^level) with all low and all high halves of a word."""
    np = _numpy()
    if level:
        bits = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32))
        images = _times(_tables(level - 1), _times(_tables(level - 1), bits))
    else:
        images = np.array([_few(bytes(4), 1 << bit) for bit in range(32)], np.uint32)
    tables = np.zeros((2, 1), np.uint32)
    for image in images.reshape(2, 16, 1).swapaxes(0, 1):
        tables = np.concatenate((tables, tables ^ image), axis=1)
    return tables


@cache
def _byte_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901 - bit by bit
        table.append(value)
    return tuple(table)


@cache
def _numpy() -> Any:  # noqa: ANN401 - a package
    try:
        return import_module("numpy")
    except ImportError:
        return None
