"""Files that are decoded in the service's own process: small, bounded by their heads, and the same as elsewhere."""

import asyncio
import io
import itertools
import struct
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from serfer.api.admission import Place
from serfer.api.decoding.decoders import Decoders
from serfer.api.decoding.plain import plain_heads
from serfer.core.errors import ImageError
from serfer.core.plan import ImageLimits, Preprocess, Shape
from serfer.images import Recipe, decode_image
from tests.api.test_fuzz_decoding import exif, mutant, samples

PREPROCESS = Preprocess(10, "bilinear", "RGB", 1.0, (0.0,) * 3, (1.0,) * 3)
RECIPE = Recipe(PREPROCESS, Shape(3, 8, 8, flat=False), ImageLimits(max_pixels=1_000_000))
MIB = 1 << 20
SCANS, SEGMENTS, CHUNKS = 10, 32, 256


def plain_head(data, recipe=RECIPE):
    heads = plain_heads([data], recipe, MIB)
    return heads and heads[0]


def noise(width=40, height=33, mode="RGB"):
    values = np.random.default_rng(0).integers(0, 256, (height, width, 4), dtype=np.uint8)
    return Image.fromarray(values).convert(mode)


def encode(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


PALETTE = noise().quantize(32)
PLAIN = {
    **{
        f"JPEG {'progressive' if progressive else 'baseline'}, subsampling {subsampling}": encode(
            noise(), progressive=progressive, subsampling=subsampling
        )
        for progressive, subsampling in itertools.product((False, True), range(3))
    },
    "JPEG of grey": encode(noise(mode="L")),
    "JPEG with a profile, a comment and restarts": encode(
        noise(), icc_profile=bytes(200), comment=b"hello", restart_marker_blocks=2
    ),
    **{f"PNG of {mode}": encode(noise(mode=mode), "PNG") for mode in ("RGB", "L", "LA", "RGBA")},
    "PNG with a palette": encode(PALETTE, "PNG"),
    "PNG with a palette and one transparent colour": encode(PALETTE, "PNG", transparency=3),
    "PNG of grey, of which one is transparent": encode(noise(mode="L"), "PNG", transparency=3),
}


def segment(marker, body):
    return struct.pack(">HH", marker, len(body) + 2) + body


def with_segments(*segments, of=PLAIN["JPEG of grey"]):
    return of[:2] + b"".join(segments) + of[2:]


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def with_chunks(*chunks, of=PLAIN["PNG of RGB"]):
    return of[:33] + b"".join(chunks) + of[33:]


def with_scans(count):
    data = encode(noise(mode="L"), progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * (count - data.count(b"\xff\xda") + 1) + data[-2:]


def with_frame(old, new, of=PLAIN["JPEG baseline, subsampling 0"]):
    at = of.index(b"\xff\xc0")
    return of[:at] + of[at:].replace(old, new, 1)


NOT_PLAIN = {
    "empty": b"",
    "more bytes": PLAIN["JPEG of grey"] + bytes(MIB),
    "more pixels": encode(Image.new("RGB", (725, 724))),
    "a longer side": encode(noise(4097, 2)),
    "more pixels in a PNG": encode(Image.new("L", (513, 512)), "PNG"),
    **{kind: encode(noise(), kind) for kind in ("GIF", "WEBP", "BMP", "TIFF")},
    "EXIF, which may turn it": encode(noise(), exif=exif("<")),
    "EXIF in a PNG": encode(noise(), "PNG", exif=exif("<")),
    "XMP": with_segments(segment(0xFFE1, b"http://ns.adobe.com/xap/1.0/\0")),
    "several pictures": with_segments(segment(0xFFE2, b"MPF\0")),
    "a short JFIF": with_segments(segment(0xFFE0, b"JFIF\0")),
    "more segments": with_segments(*[segment(0xFFFE, b"")] * SEGMENTS),
    "junk between segments": with_segments(b"\xff"),
    "a segment beyond the end": PLAIN["JPEG of grey"][:30],
    "no scan": PLAIN["JPEG of grey"][: PLAIN["JPEG of grey"].index(b"\xff\xda")],
    "more scans": with_scans(SCANS + 1),
    "CMYK": encode(noise(mode="CMYK")),
    "arithmetic": with_frame(b"\xff\xc0", b"\xff\xc9"),
    "12 bits": with_frame(b"\x08", b"\x0c"),
    "no lines yet": with_frame(b"\0\x21\0\x28", b"\0\0\0\x28"),
    "odd sampling": with_frame(b"\x11", b"\x41"),
    "two frames": with_segments(with_frame(b"", b"")[PLAIN["JPEG baseline, subsampling 0"].index(b"\xff\xc0") :][:19]),
    "16 bits": encode(Image.fromarray(np.ones((9, 9), np.uint16)), "PNG"),
    "1 bit": encode(noise(mode="1"), "PNG"),
    "interlaced": with_chunks(of=PLAIN["PNG of RGB"][:28] + b"\1" + PLAIN["PNG of RGB"][29:]),
    "an animation": encode(noise(), "PNG", save_all=True, append_images=[noise().rotate(90)]),
    **{
        str(kind): with_chunks(chunk(kind, b"k\0\0" + zlib.compress(bytes(MIB))))
        for kind in (b"zTXt", b"iTXt", b"iCCP")
    },
    "a text that Pillow reads": with_chunks(chunk(b"tEXt", b"Raw profile type exif\0")),
    "more chunks": with_chunks(*[chunk(b"IDAT", b"")] * CHUNKS),
    "a long palette": with_chunks(chunk(b"PLTE", bytes(771))),
    "cut off": PLAIN["PNG of RGB"][:-20],
}


@pytest.mark.parametrize("data", PLAIN.values(), ids=PLAIN)
def test_a_plain_file_gives_the_very_pixels(data):
    head = plain_head(data)
    with Image.open(io.BytesIO(data)) as image:
        assert head == (image.mode, image.size, image.format == "JPEG")
    assert np.array_equal(decode_image(data, "x", RECIPE, head=head).pixels, decode_image(data, "x", RECIPE).pixels)


@pytest.mark.hostile
@pytest.mark.parametrize("data", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_other_files_are_for_a_decoder_process(data):
    assert plain_head(data) is None


def test_the_limits_of_images_hold_here_too():
    data = PLAIN["JPEG of grey"]
    for limits in (ImageLimits(max_bytes=len(data) - 1), ImageLimits(max_pixels=40 * 33 - 1)):
        assert plain_head(data, replace(RECIPE, limits=limits)) is None
    assert plain_heads([data], RECIPE, len(data) - 1) is None


def test_the_images_of_a_request_are_bounded_together():
    image = encode(Image.new("L", (512, 512)))
    assert len(plain_heads([image] * 2, RECIPE, MIB)) == 2
    assert plain_heads([image] * 3, RECIPE, MIB) is None
    assert plain_heads([image] * 2, RECIPE, MIB, 2 * 512 * 512 - 1) is None
    padded = encode(noise(mode="L")) + bytes(MIB // 8)
    assert plain_heads([padded], RECIPE, MIB)
    assert plain_heads([padded] * 2, RECIPE, MIB) is None
    assert plain_heads([image, b""], RECIPE, MIB) is None


@pytest.mark.hostile
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_head_is_read_in_bounded_steps(kind):
    steps, trace = [], lambda *_: steps.append(1) or trace
    parts = segment(0xFFFE, b"") if kind == "JPEG" else chunk(b"tIME", b"")
    data = (with_segments if kind == "JPEG" else with_chunks)(parts * MIB)[:MIB]
    sys.settrace(trace)
    try:
        assert plain_head(data) is None
    finally:
        sys.settrace(None)
    assert len(steps) < 20 * CHUNKS


def outcome(data, head):
    try:
        image = decode_image(data, "x", RECIPE, head=head)
    except ImageError as error:
        return type(error), str(error)
    return image.size, image.pixels.tobytes()


def plain_mutants(count):
    files = [*PLAIN.values(), *samples()["JPEG"], *samples()["PNG"]]
    mutants = (mutant(files[number % len(files)], files, f"plain {number}") for number in itertools.count())
    heads = ((data, plain_head(data)) for data in mutants)
    return itertools.islice(((data, head) for data, head in heads if head), count)


@pytest.mark.hostile
@pytest.mark.parametrize("count", [500, pytest.param(50_000, marks=pytest.mark.slow)])
def test_damaged_plain_files_give_the_same_pixels_or_error(count, capfd):
    ends, filters = set(), warnings.filters[:]
    for data, head in plain_mutants(count):
        end = outcome(data, head)
        assert warnings.filters == filters
        assert end == outcome(data, None)
        ends.add(end[0])
    assert {ImageError, (33, 40)} <= ends
    assert capfd.readouterr() == ("", "")


@pytest.mark.two_at_once
def test_threads_decode_plain_files_at_once():
    """Python's filters of warnings belong to all threads; one that changes them for itself changes them for others."""
    files, filters = [*plain_mutants(100)], warnings.filters[:]
    with ThreadPoolExecutor(4) as threads:
        ends = threads.map(lambda file: outcome(*file), files * 4)
        assert [*ends] == [outcome(*file) for file in files] * 4
    assert warnings.filters == filters


@pytest.mark.hostile
async def test_damaged_plain_files_give_what_a_decoder_process_gives():
    pool = Decoders()

    async def elsewhere(data):
        try:
            decoded = await pool.decode([data], ["x"], RECIPE, Place("fuzz"))
        except ImageError as error:
            return type(error), str(error)
        return decoded.sizes[0], decoded.pixels.tobytes()

    try:
        for data, head in plain_mutants(200):
            assert outcome(data, head) == await asyncio.wait_for(elsewhere(data), 60)
    finally:
        await pool.close()
