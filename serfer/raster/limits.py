"""Limits of what is read from an image that no memory holds."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


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
