"""Damaged files of every accepted format, through decoder processes: decoded or an ImageError, within every bound.

`make weekly` sends 200,000 of them, `make slow` 40,000, `make test` a few hundred. Mutants are numbered: number N is
the same each time.
"""

import asyncio
import io
import json
import random
import struct
import tempfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from serfer.api.admission import Place
from serfer.api.decoding.decoders import DecodeLimits, Decoders
from serfer.api.decoding.fork_server import ForkServer
from serfer.api.http.problems import Problem
from serfer.api.http.uploads import check_format
from serfer.core.errors import ImageError
from serfer.core.plan import ImageLimits, Preprocess, Shape
from serfer.images import BYTES_PER_PIXEL, Recipe

PREPROCESS = Preprocess(10, "bilinear", "RGB", 1.0, (0.0,) * 3, (1.0,) * 3)
PIXELS = 1_000_000
RECIPE = Recipe(PREPROCESS, Shape(3, 8, 8, flat=False), ImageLimits(max_pixels=PIXELS))
LIMITS = DecodeLimits(processes=2, request_processor_s=2.0)
MARGIN_BYTES = 128 * 1024 * 1024  # what a decoder has beyond its pixels, its idle pages included
FEW = 200
MANY = [pytest.param(20_000, marks=pytest.mark.slow), pytest.param(200_000, marks=pytest.mark.weekly)]
LANES = 4  # requests at once, so that neither decoder waits
ODD = (0, 1, 2, 3, 4, 8, 16, 32, 64, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def exif(byte_order):
    """Write EXIF data with an orientation, a description, a resolution and a sub-directory."""
    entries = [(0x010E, 2, 4, 0x64636261), (0x0112, 3, 1, 6), (0x011A, 5, 1, 74), (0x8769, 4, 1, 82)]
    if byte_order == ">":
        entries[1] = (0x0112, 3, 1, 6 << 16)
    body = b"".join(struct.pack(byte_order + "HHII", *entry) for entry in entries)
    head = {"<": b"II*\0\x08\0\0\0", ">": b"MM\0*\0\0\0\x08"}[byte_order]
    directory = head + struct.pack(byte_order + "H", len(entries)) + body + bytes(4)
    return b"Exif\0\0" + directory.ljust(74, b"\0") + struct.pack(byte_order + "II", 72, 1) + bytes(6)


def samples():
    """Return small files by format, of every mode and compression that is worth damaging."""
    values = np.random.default_rng(0).integers(0, 256, (12, 14, 4), dtype=np.uint8)
    rgba = Image.fromarray(values)
    rgb, grey, palette = rgba.convert("RGB"), rgba.convert("L"), rgba.convert("RGB").quantize(16)
    deep = Image.fromarray(values[..., 0].astype(np.uint16) * 257)
    bits, little, big = grey.convert("1"), exif("<"), exif(">")
    compressions = ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", None)
    fax = [(rgb.convert("1"), {"compression": name}) for name in ("group3", "group4", "tiff_ccitt")]
    made = {
        "JPEG": [
            (rgb, {"exif": little}),
            (rgb, {"progressive": True, "exif": big}),
            (rgb.convert("CMYK"), {}),
            (grey, {}),
        ],
        "PNG": [(rgba, {"exif": little}), (palette, {"transparency": 3}), (deep, {"exif": big}), (bits, {})],
        "GIF": [(palette, {}), (palette, {"save_all": True, "append_images": [grey], "transparency": 1}), (grey, {})],
        "WEBP": [(rgba, {"lossless": True, "exif": little}), (rgb, {"exif": big}), (rgba, {})],
        "BMP": [(rgb, {}), (palette, {}), (grey.convert("1"), {}), (rgba, {})],
        "TIFF": [
            *[(rgb, {"compression": name}) for name in compressions],
            *[(palette, {"compression": "tiff_lzw"}), (deep, {}), (rgba, {"big_tiff": True}), *fax],
        ],
    }
    collected = {}
    for kind, variants in made.items():
        collected[kind] = []
        for image, options in variants:
            buffer = io.BytesIO()
            image.save(buffer, kind, **options)
            collected[kind].append(buffer.getvalue())
    width, height = 14, 12
    runs = (b"\x03\x05\x0b\x02" + b"\0\0") * height + b"\0\1"
    head = struct.pack("<2sIHHI", b"BM", 54 + 64 + len(runs), 0, 0, 54 + 64)
    head += struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 16, 0)
    collected["BMP"].append(head + bytes(64) + runs)
    return collected


def mutant(data, others, seed):
    """Return a file with 1 to 6 faults: bits, odd numbers, blocks cut out, doubled, moved or taken from another one."""
    chance = random.Random(seed)  # noqa: S311 - it chooses faults
    damaged = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        if not damaged:
            break
        at = chance.randrange(len(damaged) if chance.random() < 0.5 else min(len(damaged), 120))
        fault(damaged, at, chance.randrange(1, 24), others, chance)
    if chance.random() < 0.05:
        del damaged[chance.randrange(1, len(damaged) + 2) :]
    return with_checksums(damaged) if data.startswith(b"\x89PNG") and chance.random() < 0.7 else bytes(damaged)


def fault(damaged, at, size, others, chance):
    match chance.randrange(8):
        case 0:
            damaged[at] ^= 1 << chance.randrange(8)
        case 1:
            damaged[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, chance.randrange(256)))
        case 2 | 3:
            code = chance.choice(("<H", ">H", "<I", ">I"))
            number = struct.pack(code, chance.choice(ODD) & (0xFFFF if code[1] == "H" else 0xFFFFFFFF))
            damaged[at : at + len(number)] = number
        case 4:
            del damaged[at : at + size]
        case 5:
            damaged[at:at] = damaged[at : at + size]
        case 6:
            other = chance.choice(others)
            start = chance.randrange(len(other))
            damaged[at : at + size] = other[start : start + size]
        case 7:
            damaged[at : at + size] = chance.randbytes(size)


def with_checksums(damaged):
    """Make a PNG's checksums right again, or its decoder would look no further."""
    at = 8
    while at + 12 <= len(damaged):
        end = at + 8 + int.from_bytes(damaged[at : at + 4], "big")
        if end + 4 > len(damaged):
            break
        damaged[end : end + 4] = zlib.crc32(damaged[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(damaged)


async def fuzz(forks, kind, numbers):
    """Decode the mutants of a format with these numbers; return how often what came of it."""
    files, pool, ends, peak = samples()[kind], Decoders(LIMITS, forks), Counter(), 0

    async def lane(mine):
        nonlocal peak
        for number in mine:
            data = mutant(files[number % len(files)], files, f"{kind} {number}")
            try:
                check_format("x", data)
                decoded = await pool.decode([data], ["x"], RECIPE, Place("fuzz"))
                ends["decoded"] += 1
                assert decoded.pixels.shape == (1, 8, 8, 3)
            except Problem as refusal:
                ends[refusal.status] += 1
            except ImageError as refusal:
                ends[_kind(str(refusal))] += 1
            except Exception as error:
                raise AssertionError(f"{kind} mutant {number}: {type(error).__name__}: {error}") from error
            if not number % 512 and pool._idle:
                peak = max(peak, _peak_bytes(pool._idle[-1].pid))

    await asyncio.gather(*(lane(numbers[start::LANES]) for start in range(LANES)))
    for decoder in pool._idle:
        peak = max(peak, _peak_bytes(decoder.pid))
    await pool.close()
    return ends, peak


def _kind(text):
    for words in ("the decoder failed", "processor time", "memory", "not an image of a known", "pixels"):
        if words in text:
            return words
    return "cannot be decoded"


def _peak_bytes(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def check(kind, count):
    """No decoder is lost but for its bounds, none goes beyond its memory, and none writes anything."""
    with tempfile.TemporaryFile() as output:
        forks = ForkServer(output)
        try:
            ends, peak = asyncio.run(fuzz(forks, kind, range(count)))
        finally:
            forks.close()
        output.seek(0)
        written = output.read(1000)
    figures = {"format": kind, "mutants": count, "peak_mb": peak >> 20, **{str(key): ends[key] for key in ends}}
    print(json.dumps(figures))  # noqa: T201 - make weekly shows them
    assert ends.total() == count
    assert written == b""
    assert ends["the decoder failed"] == 0
    assert peak <= BYTES_PER_PIXEL * PIXELS + MARGIN_BYTES
    assert ends["decoded"] > count / 50
    assert ends["cannot be decoded"] > count / 50


@pytest.mark.hostile
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
def test_a_few_damaged_files_are_decoded_or_refused(kind):
    check(kind, FEW // 6)


@pytest.mark.hostile
@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
def test_many_damaged_files_are_decoded_or_refused(kind, count):
    check(kind, -(-count // 6))
