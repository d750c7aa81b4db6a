import hashlib
import io
import math
import os
import struct
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from serfer import images, opencv_bilinear
from serfer.api.http.problems import Problem
from serfer.api.http.uploads import check_format
from serfer.core.errors import ImageError, ImageTooLargeError, PlanError
from serfer.core.plan import ImageLimits, Pad, Preprocess, Shape
from serfer.core.plan.pixels import normalise
from serfer.images import Recipe, decode_image, image_files, read_image

LIMITS = ImageLimits()
SHAPE = Shape(3, 24, 32, flat=False)
EXIF_ORIENTATION = 0x0112


def recipe(channels="RGB", **changes):
    zeros, ones = (0,) * len(channels), (1,) * len(channels)
    return replace(Preprocess(None, "nearest", channels, 1 / 255, zeros, ones), **changes)


def decode(data, preprocess=None, shape=SHAPE, limits=LIMITS):
    return decode_image(data, "picture", Recipe(preprocess or recipe(), shape, limits)).pixels


def encode(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def quadrants(width=32, height=24):
    """Red, green / blue, white: any turn or flip shows."""
    values = np.zeros((height, width, 3), dtype=np.uint8)
    values[: height // 2, : width // 2] = 255, 0, 0
    values[: height // 2, width // 2 :] = 0, 255, 0
    values[height // 2 :, : width // 2] = 0, 0, 255
    values[height // 2 :, width // 2 :] = 255, 255, 255
    return Image.fromarray(values)


def smooth(width, height):
    rows, cols = np.mgrid[:height, :width]
    planes = [np.sin(rows / 7 + phase) * np.cos(cols / 9 - phase) for phase in range(3)]
    return Image.fromarray(((np.stack(planes, axis=-1) + 1) * 127.5).astype(np.uint8))


def noise(width, height):
    """No two pixels alike, so a shift by a fraction of one shows; none near black or white, where filters clip."""
    return Image.fromarray(np.random.default_rng(0).integers(80, 176, (height, width, 3), dtype=np.uint8))


def png(width, height, depth, colour, data, *chunks):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    extra = b"".join(chunk(kind, body) for kind, body in chunks)
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def scanlines(values):
    return b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)


JPEG_TURNED = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"


class TestFormats:
    @pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF"])
    def test_lossless_formats_give_the_very_pixels(self, kind):
        assert np.array_equal(decode(encode(quadrants(), kind)), np.asarray(quadrants()))

    @pytest.mark.parametrize(("kind", "options"), [("JPEG", {"quality": 95, "subsampling": 0}), ("WEBP", {})])
    def test_lossy_formats_give_about_the_pixels(self, kind, options):
        got = decode(encode(smooth(32, 24), kind, **options)).astype(int)
        assert np.abs(got - np.asarray(smooth(32, 24))).mean() < 6

    @pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
    def test_of_an_animation_the_first_frame_counts(self, kind):
        first, second = Image.new("RGB", (32, 24), "red"), Image.new("RGB", (32, 24), "blue")
        data = encode(first, kind, save_all=True, append_images=[second])
        with Image.open(io.BytesIO(data)) as written:
            assert written.n_frames == 2
        assert np.abs(decode(data).astype(int) - (255, 0, 0)).max() <= 3

    @pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr"])
    def test_every_mode_becomes_rgb(self, mode):
        kind = "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"
        grey = Image.new("RGB", (32, 24), "white").convert(mode)
        assert np.abs(decode(encode(grey, kind)).astype(int) - 255).max() <= 2
        data = encode(Image.new("CMYK", (32, 24), (0, 255, 255, 0)), "JPEG", quality=95)
        assert np.abs(decode(data).astype(int) - (255, 0, 0)).max() <= 6


class TestDepthAndAlpha:
    RAMP = np.linspace(0, 65535, 24 * 32).astype(np.uint16).reshape(24, 32)

    def check(self, data):
        assert np.abs(decode(data).astype(float) - (self.RAMP / 257)[..., None]).max() <= 1

    @pytest.mark.parametrize(("kind", "dtype"), [("PNG", "<u2"), ("TIFF", "<u2"), ("TIFF", ">u2")])
    def test_16_bit_grey_is_scaled_not_clipped(self, kind, dtype):
        self.check(encode(Image.fromarray(self.RAMP.astype(dtype)), kind))

    def test_16_bit_rgb_png_is_scaled_not_clipped(self):
        values = np.repeat(self.RAMP[..., None], 3, axis=2).reshape(24, -1)
        self.check(png(32, 24, 16, 2, scanlines(values)))

    def test_16_bit_grey_png_with_alpha_is_scaled_and_on_white(self):
        values = np.stack([self.RAMP, np.full_like(self.RAMP, 65535)], axis=-1)
        self.check(png(32, 24, 16, 4, scanlines(values.reshape(24, -1))))
        values[..., 1] = 0
        assert decode(png(32, 24, 16, 4, scanlines(values.reshape(24, -1)))).min() == 255

    def test_transparency_shows_white(self):
        image = Image.new("RGBA", (32, 24), (255, 0, 0, 255))
        image.paste((0, 0, 0, 0), (0, 0, 16, 24))
        image.paste((0, 0, 255, 128), (16, 0, 32, 12))
        pixels = decode(encode(image, "PNG"))
        assert pixels[5, 5].tolist() == [255, 255, 255]
        assert np.abs(pixels[5, 20].astype(int) - (127, 127, 255)).max() <= 1
        assert pixels[20, 20].tolist() == [255, 0, 0]
        assert decode(encode(Image.new("LA", (32, 24), (0, 0)), "PNG")).min() == 255
        assert decode(encode(Image.new("RGB", (32, 24), (9, 8, 7)), "PNG", transparency=(9, 8, 7))).min() == 255

    @pytest.mark.parametrize("kind", ["PNG", "GIF"])
    def test_a_palettes_transparent_entry_shows_white(self, kind):
        image = Image.new("P", (32, 24), 1)
        image.putpalette([255, 0, 0, 0, 255, 0] + [0] * 762)
        image.paste(0, (0, 0, 16, 24))
        pixels = decode(encode(image, kind, transparency=0))
        assert pixels[5, 5].tolist() == [255, 255, 255]
        assert pixels[5, 20].tolist() == [0, 255, 0]
        image.putpalette([255, 0, 0, 0, 0, 0] + [0] * 762)
        if kind == "PNG":
            pixels = decode(encode(image, kind, transparency=bytes([0, 128])))
            assert np.abs(pixels[5, 20].astype(int) - 127).max() <= 1


class TestUpright:
    TURNS = (
        *((value, None) for value in (0, 1, 9, 65535)),  # of which 1 alone exists
        (2, Image.Transpose.FLIP_LEFT_RIGHT),
        (3, Image.Transpose.ROTATE_180),
        (4, Image.Transpose.FLIP_TOP_BOTTOM),
        (5, Image.Transpose.TRANSPOSE),
        (6, Image.Transpose.ROTATE_90),
        (7, Image.Transpose.TRANSVERSE),
        (8, Image.Transpose.ROTATE_270),
    )

    @pytest.mark.parametrize(("orientation", "turn"), TURNS)
    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
    def test_exif_orientation_is_applied(self, kind, orientation, turn):
        upright, exif = quadrants(), Image.Exif()
        exif[EXIF_ORIENTATION] = orientation
        stored = upright if turn is None else upright.transpose(turn)
        options = {"lossless": True} if kind == "WEBP" else {"quality": 95} if kind == "JPEG" else {}
        got = decode(encode(stored, kind, exif=exif, **options)).astype(int)
        assert np.abs(got - np.asarray(upright)).mean() < 8

    @pytest.mark.parametrize("exif", [b"garbage", b"II*\0\xff\xff\0\0", b"MM\0*\0\0\0\x08\0\x09"])
    def test_broken_metadata_does_not_make_a_picture_unreadable(self, exif):
        got = decode(encode(quadrants(), "JPEG", quality=95, exif=b"Exif\0\0" + exif)).astype(int)
        assert np.abs(got - np.asarray(quadrants())).mean() < 8


class TestFit:
    @pytest.mark.parametrize("size", [(80, 60), (60, 80), (37, 51), (301, 97), (33, 34), (451, 300)])
    @pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
    def test_equals_torchvisions_resize_and_center_crop(self, size, interpolation):
        """Its arithmetic is written out here: importing torchvision takes seconds."""
        image, short, (rows, cols) = noise(*size), 40, (34, 35)
        way = recipe(resize=short, interpolation=interpolation)
        got = decode(encode(image, "PNG"), way, Shape(3, rows, cols, flat=False))
        long = int(short * max(size) / min(size))
        whole = image.resize(
            (short, long) if size[0] < size[1] else (long, short), getattr(Image.Resampling, interpolation.upper())
        )
        left, top = int(round((whole.width - cols) / 2.0)), int(round((whole.height - rows) / 2.0))  # noqa: RUF046 - as there
        cropped = whole.crop((left, top, left + cols, top + rows))
        assert np.abs(got.astype(int) - np.asarray(cropped)).max() <= 2

    @pytest.mark.exact
    def test_without_resize_the_whole_image_is_stretched(self):
        assert np.array_equal(decode(encode(quadrants(64, 96), "PNG")), np.asarray(quadrants()))

    def test_pixels_are_contiguous_in_the_networks_order_and_of_its_size(self):
        pixels = decode(encode(quadrants(640, 480), "PNG"), recipe(resize=24), Shape(3, 11, 13, flat=False))
        assert (pixels.shape, pixels.dtype, pixels.flags.c_contiguous) == ((11, 13, 3), np.uint8, True)
        blue_first = decode(encode(quadrants(), "PNG"), recipe(channels="BGR"))
        assert blue_first.flags.c_contiguous
        assert np.array_equal(blue_first[..., ::-1], np.asarray(quadrants()))
        enlarged = decode(encode(quadrants(), "PNG"), recipe(resize=10, interpolation="bilinear"))
        assert np.abs(enlarged.astype(int) - np.asarray(quadrants())).max() <= 2, "a crop is within the resized image"

    @pytest.mark.parametrize("size", [(1, 1), (1, 20_000), (20_000, 1), (2, 3)])
    def test_tiny_and_thin_images_have_an_answer(self, size):
        data = encode(Image.new("RGB", size, (10, 200, 30)), "PNG")
        for resize in (None, 36):
            pixels = decode(data, recipe(resize=resize, interpolation="bicubic"))
            assert np.abs(pixels.astype(int) - (10, 200, 30)).max() <= 1
        for place in ("centre", "corner", "square", "height"):
            assert decode(data, recipe(pad=Pad(place, 114), interpolation="opencv-bilinear")).shape == (24, 32, 3)

    def test_a_network_of_other_channels_is_refused_by_name(self):
        with pytest.raises(PlanError, match="takes 1 channels"):
            decode(encode(quadrants(), "PNG"), shape=Shape(1, 24, 32, flat=False))
        with pytest.raises(PlanError, match="takes 3 channels, its preprocessing gives L"):
            decode(encode(quadrants(), "PNG"), recipe("L"))


def letterboxed(pixels, shape):
    """LetterBox of ultralytics 8 with the defaults of its predictors, cv2 apart."""
    height, width = pixels.shape[:2]
    ratio = min(shape[0] / height, shape[1] / width)
    columns, rows = int(round(width * ratio)), int(round(height * ratio))  # noqa: RUF046 - as there
    across, down = (shape[1] - columns) / 2, (shape[0] - rows) / 2
    top, bottom = int(round(down - 0.1)), int(round(down + 0.1))  # noqa: RUF046 - as there
    left, right = int(round(across - 0.1)), int(round(across + 0.1))  # noqa: RUF046 - as there
    resized = opencv_bilinear.resize(pixels, (rows, columns))
    return np.pad(resized, [(top, bottom), (left, right), (0, 0)], constant_values=114)


def yolox(pixels, shape):
    """The preproc of YOLOX, up to its transposition."""
    padded = np.ones((*shape, 3), dtype=np.uint8) * 114
    ratio = min(shape[0] / pixels.shape[0], shape[1] / pixels.shape[1])
    rows, columns = int(pixels.shape[0] * ratio), int(pixels.shape[1] * ratio)
    padded[:rows, :columns] = opencv_bilinear.resize(pixels, (rows, columns))
    return padded


def nudenet(pixels, shape):
    """The _read_image of NudeNet 3.4.2, up to cv2.dnn.blobFromImage's scale."""
    side = max(pixels.shape[:2])
    padded = np.zeros((side, side, 3), dtype=np.uint8)
    padded[: pixels.shape[0], : pixels.shape[1]] = pixels
    return opencv_bilinear.resize(padded, shape)


def paddle(pixels, shape):
    """The resize_norm_img of rapidocr-onnxruntime 1.4.4 for lines of at most the input's width, but for its scale."""
    width = min(shape[1], math.ceil(shape[0] * (pixels.shape[1] / float(pixels.shape[0]))))
    padded = np.full((*shape, 3), 127, dtype=np.uint8)
    padded[:, :width] = opencv_bilinear.resize(pixels, (shape[0], width))
    return padded


class TestPad:
    @pytest.mark.parametrize(
        ("place", "value", "reference"),
        [("centre", 114, letterboxed), ("corner", 114, yolox), ("square", 0, nudenet), ("height", 127, paddle)],
    )
    @pytest.mark.parametrize("size", [(80, 60), (61, 97), (120, 9), (64, 48), (32, 24), (416, 415), (7, 9)])
    @pytest.mark.parametrize("shape", [(24, 32), (64, 64), (48, 320)])
    def test_equals_what_the_packages_do(self, place, value, reference, size, shape):
        image = noise(*size)
        way = recipe(pad=Pad(place, value), interpolation="opencv-bilinear")
        got = decode(encode(image, "PNG"), way, Shape(3, *shape, flat=False))
        assert np.array_equal(got, reference(np.asarray(image), shape))

    @pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "opencv-bilinear"])
    @pytest.mark.parametrize("place", ["centre", "corner", "height"])
    def test_a_white_image_is_all_there(self, place, interpolation):
        data = encode(Image.new("RGB", (90, 30), "white"), "PNG")
        way = recipe(pad=Pad(place, 7), interpolation=interpolation)
        got = decode(data, way, Shape(3, 60, 60, flat=False))
        assert set(np.unique(got)) == ({255} if place == "height" else {7, 255})
        assert (got == 255).mean() == (1.0 if place == "height" else 1 / 3)

    def test_a_crop_is_resized_as_opencv_does(self):
        image = noise(97, 61)
        got = decode(encode(image, "PNG"), recipe(resize=40, interpolation="opencv-bilinear"))
        whole = opencv_bilinear.resize(np.asarray(image), (40, 63))
        assert np.array_equal(got, whole[8:32, 16:48])

    def test_channels_come_in_the_networks_order(self):
        def padded(channels):
            way = recipe(channels, pad=Pad("centre", 9), interpolation="opencv-bilinear")
            image = noise(40, 50).convert("L" if channels == "L" else "RGB")
            return decode(encode(image, "PNG"), way, Shape(len(channels), 24, 32, flat=False))

        rgb, bgr, grey = map(padded, ("RGB", "BGR", "L"))
        assert np.array_equal(rgb[..., ::-1], bgr)
        assert grey.shape == (24, 32, 1)


class TestGrey:
    GREY = Shape(1, 24, 32, flat=False)

    def decode(self, image, kind="PNG", **changes):
        return decode(encode(image, kind), recipe("L", **changes), self.GREY)

    def test_grey_stays_the_very_grey(self):
        ramp = np.arange(24 * 32, dtype=np.uint16).reshape(24, 32).astype(np.uint8)
        got = self.decode(Image.fromarray(ramp))
        assert (got.shape, got.dtype, got.flags.c_contiguous) == ((24, 32, 1), np.uint8, True)
        assert np.array_equal(got[..., 0], ramp)
        ramp = TestDepthAndAlpha.RAMP
        assert np.abs(self.decode(Image.fromarray(ramp))[..., 0].astype(float) - ramp / 257).max() <= 1
        luma = self.decode(quadrants())[..., 0]
        assert [luma[2, 2], luma[2, 30], luma[20, 2], luma[20, 30]] == pytest.approx([76, 150, 29, 255], abs=1)
        assert self.decode(Image.new("LA", (32, 24), (0, 0))).min() == 255

    @pytest.mark.parametrize("resize", [None, 24, 30])
    def test_grey_is_resized_and_cropped_as_colour_is(self, resize):
        grey = smooth(80, 50).convert("L")
        got = self.decode(grey, resize=resize, interpolation="bicubic")
        colour = decode(encode(grey, "PNG"), recipe(resize=resize, interpolation="bicubic"))
        assert np.array_equal(got, colour[..., :1])


WITHIN = """
import resource, sys
from serfer.core.errors import ImageError
from serfer.core.plan import ImageLimits, Preprocess, Shape
from serfer.images import Recipe, decode_image
recipe, shape = Preprocess(None, "nearest", "RGB", 1, (0,) * 3, (1,) * 3), Shape(3, 8, 8, flat=False)
data = sys.stdin.buffer.read()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]),) * 2)
try:
    print(decode_image(data, "picture", Recipe(recipe, shape, ImageLimits())).pixels.shape)
except ImageError as error:
    print(error)
"""


def decoded_within(memory, data):
    """Return what a process says that may have so many bytes besides its libraries."""
    command = [sys.executable, "-c", WITHIN, str(memory)]
    run = subprocess.run(command, input=data, capture_output=True, check=False)
    assert not run.returncode, run.stderr.decode()
    return run.stdout


class TestRefused:
    def refused(self, data, words, limits=LIMITS):
        with pytest.raises(ImageError, match=words) as caught:
            decode(data, limits=limits)
        assert str(caught.value).startswith("picture ")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
    @pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
    def test_a_truncated_image(self, kind, share):
        data = encode(noise(60, 80), kind)
        self.refused(data[: int(len(data) * share)], "cannot be decoded|not an image")

    @pytest.mark.parametrize(
        "data",
        [
            b"hello, I am a text\n" * 20,
            b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
            b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n",
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n10 10 lineto\n%%EOF\n",
            b"\0" * 1000,
            b"\xff\xd8\xff",
            b"\x89PNG\r\n\x1a\n",
            encode(quadrants(), "ICO"),
        ],
        ids=["text", "svg", "pdf", "eps", "zeros", "jpeg-start", "png-start", "ico"],
    )
    def test_unknown_image_formats_are_refused(self, data):
        self.refused(data, "not an image of a known format|cannot be decoded")

    @pytest.mark.parametrize("kind", ["heic", "AVIF"])
    def test_heic_and_avif_are_refused_with_what_to_give(self, kind):
        data = encode(quadrants(), kind) if kind == "AVIF" else b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
        self.refused(data, "HEIC or AVIF, give a JPEG")
        with pytest.raises(Problem, match="HEIC or AVIF, give a JPEG"):
            check_format("picture", data)

    def test_nothing_and_more_than_the_limits(self):
        self.refused(b"", "is empty")
        data, large = encode(quadrants(), "BMP"), png(20_000, 20_000, 8, 0, b"")
        decode(data, limits=ImageLimits(max_bytes=len(data), max_pixels=32 * 24))
        self.refused(data, "larger than", ImageLimits(max_bytes=len(data) - 1))
        self.refused(data, r"32 x 24 pixels", ImageLimits(max_pixels=32 * 24 - 1))
        self.refused(large, "at most 178,956,970 are", ImageLimits(max_pixels=500_000_000))  # Pillow's own limit

        def refuse(pixels):
            raise ImageTooLargeError(str(pixels))

        with pytest.raises(ImageTooLargeError, match="768"):  # before anything is decoded
            decode_image(encode(quadrants(), "PNG")[:60], "picture", Recipe(recipe(), SHAPE, LIMITS), on_size=refuse)

    @pytest.mark.parametrize("size", [(20_000, 20_000), (10_000, 10_001), (2**31 - 1, 2**31 - 1)])
    def test_huge_dimensions_are_refused_before_anything_is_decoded(self, size):
        started = time.perf_counter()
        words = f"{size[0]} x {size[1]} pixels, more than|too many pixels: at most 100,000,000"
        self.refused(png(*size, 8, 0, b""), words)
        assert time.perf_counter() - started < 1

    @pytest.mark.hostile
    def test_a_bomb_takes_no_memory(self):
        """A process that may have 300 MB besides its libraries refuses 400 million real pixels in 50 kB."""
        bomb = png(20_000, 20_000, 1, 0, bytes(20_000 * 2501))
        assert len(bomb) < 60_000
        assert decoded_within(300_000_000, bomb).startswith(b"picture has too many pixels")


def exif(*entries):
    """Write EXIF data of (tag, type, count, value) entries, little-endian."""
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + body + bytes(4)


def noisy_tiff(strips=20, rows=400, compression=2):
    """Write a TIFF of one column whose strips all point at the same random bytes: each row is a fault to libtiff."""
    data = np.random.default_rng(0).bytes(400)
    starts, sizes = 8 + len(data), 8 + len(data) + 4 * strips
    entries = [
        *((256, 4, 1, 1), (257, 4, 1, strips * rows), (258, 4, 1, 1), (259, 4, 1, compression), (262, 4, 1, 0)),
        *((273, 4, strips, starts), (277, 4, 1, 1), (278, 4, 1, rows), (279, 4, strips, sizes)),
    ]
    directory = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    offsets = struct.pack("<I", 8) * strips + struct.pack("<I", len(data)) * strips
    head = b"II*\0" + struct.pack("<I", 8 + len(data) + len(offsets))
    return head + data + offsets + struct.pack("<H", len(entries)) + directory + bytes(4)


class TestMalformedFiles:
    ORIENTATION, DESCRIPTION, WIDTH, XMP = 0x0112, 0x010E, 0x0100, 0x02BC
    SHORT, RATIONAL, ASCII = 3, 5, 2

    @pytest.mark.parametrize(
        "entry",
        [(DESCRIPTION, RATIONAL, 1, 8), (WIDTH, ASCII, 4, 0x61626364), (XMP, ASCII, 1, 8)],
        ids=["AttributeError", "struct.error", "TypeError"],
    )
    def test_odd_metadata_leave_a_jpegs_pixels_and_its_orientation(self, entry):
        data = encode(quadrants(24, 32), "JPEG", exif=exif(entry, (self.ORIENTATION, self.SHORT, 1, 6)))
        clean = encode(quadrants(24, 32), "JPEG", exif=exif((self.ORIENTATION, self.SHORT, 1, 6)))
        assert np.array_equal(decode(data), decode(clean))

    @pytest.mark.hostile
    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            *(
                (kind, None)
                for kind in (b"tEXt", b"pHYs", b"iTXt", b"eXIf", b"tIME", b"gAMA", b"cHRM", b"sRGB", b"fcTL")
            ),
            *((kind, b"k\0\0" + zlib.compress(bytes(80_000_000), 9)) for kind in (b"iCCP", b"zTXt")),
        ],
    )
    def test_metadata_of_a_png_that_cannot_be_read_leave_its_pixels(self, kind, body):
        data = png(
            32, 24, 8, 2, b"".join(b"\0" + row.tobytes() for row in np.asarray(quadrants())), (kind, body or b"")
        )
        if body is None:  # a wrong checksum
            at = data.index(kind) + len(kind)
            data = data[:at] + b"\1\2\3\4" + data[at + 4 :]
        assert np.array_equal(decode(data), np.asarray(quadrants()))
        before = encode(quadrants(24, 32), "PNG", exif=exif((self.ORIENTATION, self.SHORT, 1, 6))[6:])
        turned = before[:33] + data[33 : data.index(b"IDAT") - 4] + before[33:]
        if kind != b"eXIf":
            assert np.array_equal(decode(turned), decode(before))

    def test_chunk_that_pixels_need_is_held_to_its_checksum(self):
        data = bytearray(png(32, 24, 8, 0, bytes(33 * 24), (b"tRNS", b"\0\7")))
        data[data.index(b"tRNS") + 6] ^= 1
        with pytest.raises(ImageError, match="or its beginning is broken"):
            decode(bytes(data))

    def test_memory_that_is_not_there_is_an_image_error(self, monkeypatch):
        def allocate(*_, **__):
            raise MemoryError

        monkeypatch.setattr(images.ImageOps, "exif_transpose", allocate)
        with pytest.raises(ImageTooLargeError, match="picture takes more memory to decode than there is"):
            decode(encode(quadrants(), "PNG"))

    @pytest.mark.parametrize("compression", [2, 3, 4, 32773, 5])
    def test_libtiff_writes_nothing_to_standard_error(self, compression, capfd):
        with suppress(ImageError):
            decode(noisy_tiff(compression=compression))
        assert capfd.readouterr() == ("", "")

    def test_decoding_takes_no_more_than_its_documented_bytes_a_pixel(self):
        """The worst measured: WebP with alpha and EXIF orientation, of which the decoder keeps three copies."""
        large = encode(
            Image.new("RGBA", (2000, 2000), (1, 2, 3, 100)), "WEBP", lossless=True, method=0, exif=JPEG_TURNED
        )
        assert decoded_within(images.BYTES_PER_PIXEL * 2000 * 2000 + 2**24, large) == b"(8, 8, 3)\n"


class TestFiles:
    def test_a_file_is_read_and_unreadable_ones_are_named(self, tmp_path):
        (tmp_path / "a.png").write_bytes(b"xyz")
        assert read_image(tmp_path / "a.png", LIMITS) == b"xyz"
        for path, words in [
            (tmp_path / "none.jpg", "none.jpg does not exist"),
            (tmp_path, "is a directory, not an image"),
            (tmp_path / ("x" * 300), "cannot be read: File name too long"),
            (tmp_path / "nul\0.jpg", "cannot be read"),
        ]:
            with pytest.raises(ImageError, match=words):
                read_image(path, LIMITS)

    def test_a_file_over_the_limit_is_not_read_to_its_end(self, tmp_path):
        path = tmp_path / "huge.jpg"
        with path.open("wb") as file:
            file.truncate(10 * 1024**4)
        data = read_image(path, ImageLimits(max_bytes=1000))
        assert len(data) == 1001
        with pytest.raises(ImageError, match="larger than 1,000 bytes"):
            decode(data, limits=ImageLimits(max_bytes=1000))


class TestFolders:
    @pytest.fixture
    def folder(self, tmp_path):
        images = ("b/2.JPG", "b/10.png", "a.webp", "c/d/e.tif")
        for name in (*images, ".hidden.png", ".git/x.png", "notes.txt", "b/.DS_Store"):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        return tmp_path

    def names(self, folder):
        return [path.relative_to(folder).as_posix() for path in image_files(folder)]

    def test_images_come_by_suffix_from_all_folders_in_order(self, folder, tmp_path_factory):
        assert self.names(folder) == ["a.webp", "b/10.png", "b/2.JPG", "c/d/e.tif"]
        link = tmp_path_factory.mktemp("links") / ".link"
        link.symlink_to(folder)
        assert len(image_files(link)) == 4, "a hidden or linked folder may be given itself"

    @pytest.mark.killed
    def test_pipes_and_linked_folders_are_left_out_and_a_dead_link_is_not(self, folder):
        os.mkfifo(folder / "pipe.png")
        (folder / "round").symlink_to(folder)
        (folder / "dead.png").symlink_to(folder / "nothing")
        assert self.names(folder) == ["a.webp", "b/10.png", "b/2.JPG", "c/d/e.tif", "dead.png"]
        with pytest.raises(ImageError, match=r"dead.png does not exist"):
            read_image(folder / "dead.png", LIMITS)

    def test_unusable_folders_are_named(self, folder, tmp_path, monkeypatch):
        (folder / "empty").mkdir()
        for path, words in [
            (tmp_path / "none", "none does not exist: give a folder"),
            (folder / "a.webp", r"a\.webp is not a folder"),
            (folder / "a.webp" / "x", "cannot be read: Not a directory"),
            (folder / "empty", r"empty holds no images.*\.jpg"),
            (tmp_path / "nul\0", "cannot be read"),
        ]:
            with pytest.raises(ImageError, match=words) as caught:
                image_files(path)
            assert "\n" not in str(caught.value)
        with monkeypatch.context() as patch:
            patch.setattr(images, "MAX_FILES", 3)
            with pytest.raises(ImageError, match="more than 3 files"):
                image_files(folder)

        def refuse(path):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(images.os, "scandir", refuse)
        with pytest.raises(ImageError, match="cannot be read: Permission denied"):
            image_files(folder)


@pytest.mark.parametrize(("channels", "count"), [("RGB", 3), ("L", 1)])
def test_pixels_become_numbers_in_the_networks_layout(channels, count):
    mean, std = (0.5, 0.25, 1.0)[:count], (0.5, 2.0, 0.1)[:count]
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, count), dtype=np.uint8)
    values = normalise(pixels, recipe(channels=channels, mean=mean, std=std))
    assert (values.shape, values.dtype, values.flags.c_contiguous) == ((2, count, 5, 7), np.float32, True)
    expected = (pixels[1, 2, 3, -1] / 255 - mean[-1]) / std[-1]
    assert values[1, -1, 2, 3] == pytest.approx(expected, rel=1e-5)


JPEG = encode(smooth(40, 30), "JPEG", exif=JPEG_TURNED)
SAMPLES = {
    "jpeg": JPEG,
    "progressive": encode(smooth(40, 30), "JPEG", progressive=True),
    "png": encode(smooth(40, 30), "PNG"),
    "palette": encode(smooth(40, 30).quantize(16), "PNG", transparency=3),
    "gif": encode(smooth(40, 30), "GIF"),
    "tiff": encode(smooth(40, 30), "TIFF", compression="tiff_lzw"),
    "webp": encode(smooth(40, 30), "WEBP"),
    "bmp": encode(smooth(40, 30), "BMP"),
}


def pixels_or_refusal(data):
    try:
        pixels = decode(data, recipe(resize=34, interpolation="bilinear"), limits=ImageLimits(max_pixels=1_000_000))
    except ImageError:
        return
    assert pixels.shape == (24, 32, 3)
    assert pixels.dtype == np.uint8


@given(st.binary(max_size=400))
@settings(max_examples=150)
def test_any_bytes_give_pixels_or_an_image_error(data):
    pixels_or_refusal(data)


@given(
    st.sampled_from(sorted(SAMPLES)),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
    st.integers(0, 10_000),
    st.integers(0, 200),
    st.binary(max_size=30),
)
@example("jpeg", [], 0, 0, b"")
@settings(max_examples=600)
def test_any_damage_to_an_image_gives_pixels_or_an_image_error(kind, changes, place, cut, inserted):
    data = bytearray(SAMPLES[kind])
    for position, value in changes:
        # Half of all damage goes to the first bytes, where the headers are.
        data[position % (len(data) if position % 2 else min(len(data), 200))] = value
    place %= len(data)
    data[place : place + cut] = inserted
    pixels_or_refusal(bytes(data))


# (height, width), resized to, and the SHA-256 of what cv2.resize of opencv-python-headless 5.0.0.93 makes of pattern().
BY_OPENCV = [
    ((1, 1), (7, 5), "156e53f31ce2e1d6"),
    ((480, 640), (240, 320), "2b71fe3a4e4299a3"),
    ((480, 641), (240, 320), "300c83548eaf584a"),
    ((61, 97), (40, 64), "0c50167c444fe9cc"),
    ((97, 61), (416, 262), "95b1d8f22008f65f"),
    ((333, 500), (213, 320), "3f8f87e5d3e4cd64"),
    ((9, 13), (9, 41), "9f2586161aee7526"),
    ((64, 48), (1, 1), "f0ca98b8904352af"),
    ((40, 40), (80, 80), "ae4861ef45ed923a"),
    ((30, 1200), (16, 640), "13dbcdf2be91c0a9"),
    ((255, 256), (254, 257), "5c7e90109efb9c4d"),
]
SIDES = st.integers(1, 60)


def pattern(height, width):
    row, col, channel = np.ogrid[:height, :width, :3]
    return ((row * row * 31 + col * col * 17 + row * col * 7 + channel * 101) % 256).astype(np.uint8)


@pytest.mark.exact
@pytest.mark.parametrize(("size", "resized", "digest"), BY_OPENCV)
def test_equals_opencv_bit_for_bit(size, resized, digest):
    assert hashlib.sha256(opencv_bilinear.resize(pattern(*size), resized).tobytes()).hexdigest()[:16] == digest


@pytest.mark.exact
@given(size=st.tuples(SIDES, SIDES), resized=st.tuples(SIDES, SIDES), data=st.data())
def test_a_window_is_that_of_the_whole(size, resized, data):
    top, left = (data.draw(st.integers(0, side - 1)) for side in resized)
    bottom, right = (data.draw(st.integers(start + 1, side)) for start, side in zip((top, left), resized, strict=True))
    window = (slice(top, bottom), slice(left, right))
    assert np.array_equal(
        opencv_bilinear.resize(pattern(*size), resized, window=window),
        opencv_bilinear.resize(pattern(*size), resized)[window],
    )


@pytest.mark.exact
@given(size=st.tuples(SIDES, SIDES), resized=st.tuples(SIDES, SIDES), more=st.tuples(SIDES, SIDES))
def test_the_last_row_and_column_are_repeated(size, resized, more):
    of = (size[0] + more[0], size[1] + more[1])
    whole = np.pad(pattern(*size), [(0, more[0]), (0, more[1]), (0, 0)], mode="edge")
    assert np.array_equal(
        opencv_bilinear.resize(pattern(*size), resized, of=of), opencv_bilinear.resize(whole, resized)
    )
