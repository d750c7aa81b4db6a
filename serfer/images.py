"""Image files to the pixels that a network takes, bounded before anything is decoded."""

from __future__ import annotations

import io
import os
import stat
import sys
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, ImagePalette, TiffImagePlugin, UnidentifiedImageError, _imaging

from serfer import opencv_bilinear
from serfer.core.errors import ImageError, ImageTooLargeError, PlanError
from serfer.core.plan import CHANNELS, OPENCV_BILINEAR, ImageLimits, InputSizes, Pad, Placement, Preprocess, Shape
from serfer.libtiff import silence_libtiff
from serfer.samples import Samples

Pixels = NDArray[np.uint8]
OnSize = Callable[[int], None]
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF")
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".webp", ".bmp", ".dib", ".tif", ".tiff")
MAX_FILES = 1_000_000
BYTES_PER_PIXEL = 20
"""The most that decoding takes at once for each pixel: measured, 16.3 for WebP with alpha that is to be turned."""
_STRIP = 1 << 20  # pixels of 16 or 32 bits that are reduced to 8 at a time
_PHOTOMETRIC, _BITS, _BANDS, _COMPRESSION, _PLANES, _KIND = 262, 258, 277, 259, 284, 339  # tags of TIFF
_KINDS = {1: "uint", 2: "int", 3: "float"}
_STORED = ("uint12", "uint16", "int8", "int16", "float32")  # samples of grey that Pillow gives as a TIFF has them
_COLOURS, _SUBSAMPLING, _APART, _WEBP = 320, 530, 2, 50_001  # tags; planes stored apart; a compression
_BYTE = 255
_PNG = b"\x89PNG\r\n\x1a\n"
_HEIF = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1", b"avif", b"avis")  # brands
_STEPS = {"L;2": 85, "L;4": 17}
"""What Pillow multiplies a PNG's grey of few bits by, but not the transparent one."""
_DECODED = (-1, 0)  # what Pillow's decoders return at the end: no more bytes, no error
_RAW = {"I;16BS": "I;16NS", "F;32BF": "F;32NF"}
_FILTERS = {filter_.name.lower(): filter_ for filter_ in Image.Resampling}
_PILLOWS_MOST_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or sys.maxsize)  # it refuses more as soon as it sees the header


@dataclass(frozen=True)
class Recipe:
    """The recipe from a file to a network's input: its preprocessing, the input's shape, and what a file may be.

    Where a plan takes images of many `sizes`, the shape is that of the largest. Raises PlanError as `check_channels`.
    """

    preprocess: Preprocess
    shape: Shape
    limits: ImageLimits
    sizes: InputSizes | None = None

    def __post_init__(self) -> None:
        check_channels(self.preprocess, self.shape)

    def input_of(self, size: tuple[int, int]) -> Shape:
        if self.sizes is None:
            return self.shape
        rows, columns = self.preprocess.size_for(*size, self.sizes)
        return replace(self.shape, height=rows, width=columns)


def image_files(folder: Path) -> list[Path]:
    """Return the images in a folder and the folders in it, by their suffixes, in the order of their paths.

    What is hidden (`.name`), is not a file (a pipe) or lies behind a linked folder is left out. Raises ImageError for
    what is not a folder, cannot be read, or holds no image.
    """
    images = [path for path in folder_files(folder) if path.suffix.lower() in SUFFIXES]
    if not images:
        raise ImageError(f"{folder} holds no images: none of its files ends in {', '.join(SUFFIXES)}")
    return images


def folder_files(folder: Path) -> list[Path]:
    """Return every file that `image_files` would look at, whatever its suffix; raises ImageError as it does."""
    files: list[Path] = []
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise ImageError(f"{folder} is not a folder: give a folder of images")
        for place, folders, names in os.walk(folder, onerror=_raise):
            folders[:] = [name for name in folders if not name.startswith(".")]
            paths = [Path(place, name) for name in names if not name.startswith(".")]
            files += [path for path in paths if path.is_file() or not path.exists()]  # a link to nothing is named later
            if len(files) > MAX_FILES:
                raise ImageError(f"{folder} holds more than {MAX_FILES:,} files: give a smaller folder")
    except FileNotFoundError as error:
        raise ImageError(f"{error.filename} does not exist: give a folder of images") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        name, reason = getattr(error, "filename", None) or folder, getattr(error, "strerror", error)
        raise ImageError(f"{str(name)!r} cannot be read: {reason}") from error
    return sorted(files)


def _raise(error: OSError) -> NoReturn:
    raise error


def read_image(path: Path, limits: ImageLimits) -> bytes:
    try:
        if path.is_dir():
            raise ImageError(f"{path} is a directory, not an image")
        with path.open("rb") as file:
            return file.read(limits.max_bytes + 1)
    except FileNotFoundError:
        raise ImageError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ImageError(f"{str(path)!r} cannot be read: {getattr(error, 'strerror', error)}") from error


class DecodedImage(NamedTuple):
    """A network's input (H, W, C) uint8, and the `size` of the whole image it was made of, upright: rows, columns."""

    pixels: Pixels
    size: tuple[int, int]


class PlainHead(NamedTuple):
    """What the head of a small JPEG or PNG says, which has no metadata that Pillow may warn of or turn it by."""

    mode: str
    size: tuple[int, int]
    jpeg: bool


def decode_image(
    data: bytes, name: str, recipe: Recipe, *, head: PlainHead | None = None, on_size: OnSize = lambda _: None
) -> DecodedImage:
    """Return an image as a network's input, upright and in its channel order, and its own size.

    Where a plan takes images of many sizes, the input has one of these, which follows from the image's. The first image
    of a file counts; transparency shows white; grey is luma (ITU-R 601). `on_size` is called with the number of pixels
    before they are decoded, and may raise. With the `head` of plain files threads may decode at once: the filters of
    warnings, which they share, do not change. Raises ImageError that names the image.
    """
    with _File(data, name, recipe.limits) as file:
        # Nothing here holds a reference to what the next step no longer needs: images are large.
        image = (head and _scanned(data, head, on_size)) or _upright(file, on_size, head).im
        mode = "L" if recipe.preprocess.channels == "L" else "RGB"
        image = image if image.mode == mode else image.convert(mode)
        size = image.size[::-1]
        return DecodedImage(_fit(image, recipe.preprocess, recipe.input_of(size)), size)


def stacked(images: Sequence[DecodedImage], names: Sequence[str]) -> Pixels:
    """Return images as one (N, H, W, C) batch; raises ImageError that names one of another size than the first."""
    first = images[0].pixels.shape
    for name, image in zip(names, images, strict=True):
        if image.pixels.shape != first:
            raise another_size(name, image.pixels.shape, first)
    return np.stack([image.pixels for image in images])


def another_size(name: str, shape: Sequence[int], first: Sequence[int]) -> ImageError:
    mine, other = (f"{rows} x {columns}" for rows, columns, *_ in (shape, first))
    return ImageError(
        f"{name} is an input of {mine} pixels, the first image one of {other}: images of several sizes are several "
        "queries; send them apart"
    )


def upright_image(data: bytes, name: str, limits: ImageLimits) -> Image.Image:
    """Return a whole image in RGB as it is meant to be seen: upright, on white; raises ImageError that names it."""
    with _File(data, name, limits) as file:
        return _upright(file, lambda _: None)


def check_image(path: Path, limits: ImageLimits) -> None:
    """Raise ImageError for a file that is missing, empty, too large or no image, as far as its first bytes say."""
    with _File(read_image(path, limits), str(path), limits) as file, warnings.catch_warnings(action="ignore"):
        file.check_pixels(Image.open(io.BytesIO(file.data), formats=FORMATS).size)


class _File(NamedTuple):
    data: bytes
    name: str
    limits: ImageLimits

    def __enter__(self) -> Self:
        data, name, limits = self
        if not data:
            raise ImageError(f"{name} is empty")
        if len(data) > limits.max_bytes:
            raise ImageTooLargeError(f"{name} is larger than {limits.max_bytes:,} bytes ({limits.bytes_setting})")
        silence_libtiff()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        data, name, limits = self
        match error:
            case UnidentifiedImageError():
                if tags := _tiff_tags(data):
                    raise _unread_kind(name, tags) from None
                why = heif_advice(data) or ", or its beginning is broken"
                raise ImageError(f"{name} is not an image of a known format ({', '.join(FORMATS)}){why}") from None
            case Image.DecompressionBombError():
                most = min(limits.max_pixels, _PILLOWS_MOST_PIXELS)
                by = f" ({limits.pixels_setting})" if most == limits.max_pixels else ""
                raise ImageTooLargeError(f"{name} has too many pixels: at most {most:,} are accepted{by}") from None
            case MemoryError():
                raise ImageTooLargeError(f"{name} takes more memory to decode than there is: send a smaller picture")
            case Exception() if not isinstance(error, ImageError):  # Pillow raises AttributeError, struct.error, ...
                raise ImageError(f"{name} cannot be decoded: {error}") from error

    def check_pixels(self, size: tuple[int, int]) -> None:
        if prod(size) > self.limits.max_pixels:
            raise ImageTooLargeError(
                f"{self.name} has {size[0]} x {size[1]} pixels, more than the {self.limits.max_pixels:,} that are "
                f"accepted ({self.limits.pixels_setting})"
            )


def heif_advice(data: bytes) -> str:
    """Return what to do about a file that is HEIC, as iPhones write it, or AVIF; an empty string for any other."""
    if data[4:8] != b"ftyp" or data[8:12] not in _HEIF:
        return ""
    return ": it is HEIC or AVIF, give a JPEG (on an iPhone: Settings, Camera, Formats, Most Compatible)"


def check_channels(preprocess: Preprocess, shape: Shape) -> None:
    """Raise PlanError where a network of input `shape` takes another number of channels than `preprocess` gives."""
    if shape.channels != len(preprocess.channels):
        given = preprocess.channels if preprocess.channels in CHANNELS else len(preprocess.channels)
        raise PlanError(f"the network takes {shape.channels} channels, its preprocessing gives {given}")


def _scanned(data: bytes, head: PlainHead, on_size: OnSize) -> _imaging.ImagingCore | None:
    """Decode a plain JPEG, whose head Pillow would read in Python; None for a PNG and for what is broken."""
    if not head.jpeg:
        return None
    on_size(prod(head.size))
    pixels, decoder = _imaging.new(head.mode, head.size), _imaging.jpeg_decoder(head.mode, head.mode, "")
    decoder.setimage(pixels, (0, 0, *head.size))
    return pixels if decoder.decode(data) == _DECODED else None


def _upright(file: _File, on_size: OnSize, head: PlainHead | None = None) -> Image.Image:
    of_metadata = (UnidentifiedImageError, SyntaxError, ValueError) if file.data.startswith(_PNG) else ()
    with warnings.catch_warnings(action="ignore") if head is None else nullcontext():  # of metadata, sizes
        with suppress(*of_metadata):
            return _to_rgb(_decoded(file, on_size))
        return _to_rgb(_decoded(file._replace(data=_without_metadata(file.data)), on_size))


def _without_metadata(png: bytes) -> bytes:
    """Return a PNG of the chunks that its pixels need, and of EXIF's, which says how they lie, where it is whole."""
    kept, at = bytearray(_PNG), len(_PNG)
    while at < len(png):
        kind, end = png[at + 4 : at + 8], at + 12 + int.from_bytes(png[at : at + 4])
        whole = zlib.crc32(memoryview(png)[at + 4 : end - 4]) == int.from_bytes(png[end - 4 : end])
        if kind[:1].isupper() or kind == b"tRNS" or (kind == b"eXIf" and whole):
            kept += memoryview(png)[at:end]
        at = end
    return bytes(kept)


def _decoded(file: _File, on_size: OnSize) -> Image.Image:
    """Decode a file and turn the image as its metadata say; what is returned holds nothing of the file or decoder."""
    with Image.open(io.BytesIO(file.data), formats=FORMATS) as image:
        file.check_pixels(image.size)
        on_size(image.width * image.height)
        samples = Samples("uint16") if image.mode.startswith("I;16") else None
        if isinstance(image, TiffImagePlugin.TiffImageFile):
            samples = _tiff_samples(image, file.name)
        stored = image.tile[0].args if image.format == "PNG" and "transparency" in image.info else None
        image.load()
        if stored == "RGB;16B":
            _whiten(image, file.data)
        elif stored in _STEPS:
            image.info["transparency"] *= _STEPS[stored]
        try:
            ImageOps.exif_transpose(image, in_place=True)
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
        # Pillow has no public way that does not copy the pixels.
        return _reduced(image, samples, file.name) if samples else image._new(image.im)  # noqa: SLF001


def _whiten(image: Image.Image, data: bytes) -> None:
    """Make the pixels white that have a PNG's transparent colour of 16 bits, of which an image has the high bytes."""
    colour = np.array(image.info.pop("transparency"), np.uint16)
    with Image.open(io.BytesIO(data), formats=FORMATS) as low:
        low.tile = [tile._replace(args="RGB;16L") for tile in low.tile]
        low.load()
        hidden = (np.asarray(image) == colour >> 8).all(-1) & (np.asarray(low) == colour & _BYTE).all(-1)
    image.paste("white", mask=Image.fromarray(hidden))


def _tiff_samples(image: TiffImagePlugin.TiffImageFile, name: str) -> Samples | None:
    """Pillow 13 swaps signed and float samples that libtiff has swapped already, and takes most planes for uint8."""
    tags = image.tag_v2
    kind, inverted, planes = _kind(tags), tags.get(_PHOTOMETRIC, 0) == 0, tags.get(_PLANES) == _APART
    webp, subsampled = tags.get(_COMPRESSION) == _WEBP, tags.get(_SUBSAMPLING) != (1, 1)
    for number, tile in enumerate(image.tile):
        arguments: Any = tile.args
        mode, *rest = arguments
        if tile.codec_name == "libtiff" and not webp:  # which Pillow's libtiff does not decode
            mode = _RAW.get(mode, mode)
        elif planes and kind == "uint16" and image.mode == "RGB":
            mode = f"{mode};16{'B' if tags.prefix == TiffImagePlugin.MM else 'L'}"
        elif webp or (image.mode == "YCbCr" and subsampled) or (planes and (kind != "uint8" or inverted)):
            raise _unread_kind(name, tags)
        image.tile[number] = tile._replace(args=(mode, *rest))
    colours = tags.get(_COLOURS, (_BYTE + 1,))
    if image.mode == "P" and max(colours) <= _BYTE:  # other readers see that they are bytes, too
        image.palette = ImagePalette.raw("RGB;L", bytes(colours))
    if image.mode in ("I", "F") and kind not in _STORED:
        raise _unread_kind(name, tags)
    if image.mode not in ("L", "I", "F", "I;16", "I;16B") or kind not in _STORED:
        return None
    return Samples("uint16", 12) if kind == "uint12" else Samples(kind, None, inverted and kind == "uint16")


def _tiff_tags(data: bytes) -> TiffImagePlugin.ImageFileDirectory_v2 | None:
    with suppress(Exception), warnings.catch_warnings(action="ignore"):  # whatever Pillow raises of what is broken
        tags = TiffImagePlugin.ImageFileDirectory_v2(data[: 16 if data[2:3] == b"+" else 8])
        file = io.BytesIO(data)
        file.seek(tags.next)
        tags.load(file)
        return tags if len(tags[_BITS]) in (1, tags.get(_BANDS, 1)) else None
    return None


def _kind(tags: TiffImagePlugin.ImageFileDirectory_v2) -> str:
    return f"{_KINDS.get(tags.get(_KIND, (1,))[0], 'complex')}{tags.get(_BITS, (1,))[0]}"


def _unread_kind(name: str, tags: TiffImagePlugin.ImageFileDirectory_v2) -> ImageError:
    words = {"photometric interpretation": _PHOTOMETRIC, "compression": _COMPRESSION, "planar configuration": _PLANES}
    said = ", ".join(f"{word} {tags.get(tag, 1)}" for word, tag in words.items())
    return ImageError(
        f"{name} cannot be decoded: it is a TIFF of {tags.get(_BANDS, 1)} x {_kind(tags)} ({said}): store it as uint8 "
        "or uint16, grey or RGB, pixel by pixel; `serfer map` reads other kinds, too"
    )


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.has_transparency_data:
        layer = image if image.mode == "RGBA" else image.convert("RGBA")
        white = Image.new("RGB", layer.size, "white")
        white.paste(layer, mask=layer)
        return white
    return image if image.mode == "RGB" else image.convert("RGB")


def _reduced(image: Image.Image, samples: Samples, name: str) -> Image.Image:
    """Reduce grey samples to bytes, in strips: numpy's copies of the whole would take four times that."""
    pixels = np.empty((image.height, image.width), dtype=np.uint8)
    rows = max(1, _STRIP // image.width)
    hidden = image.info.get("transparency")
    for top in range(0, image.height, rows):
        strip = np.asarray(image.crop((0, top, image.width, min(top + rows, image.height))))
        strip = strip.view(np.int8) if samples.dtype == "int8" else strip
        levels = pixels[top : top + rows]
        levels[:] = samples.levels(strip, name)
        if hidden is not None:
            levels[strip == hidden] = 255  # white
    return Image.fromarray(pixels)


def _fit(image: _imaging.ImagingCore, preprocess: Preprocess, shape: Shape) -> Pixels:
    placement = preprocess.placement(image.size[1], image.size[0], (shape.height, shape.width))
    if preprocess.interpolation == OPENCV_BILINEAR:
        return _fit_as_opencv(image, preprocess, placement, shape)
    if preprocess.pad:
        resized = image.resize((placement.columns, placement.rows), _FILTERS[preprocess.interpolation])
        return _framed(_pixels(resized, preprocess), preprocess.pad, placement, shape)
    box = () if preprocess.resize is None else (_crop(placement, shape),)
    return _pixels(image.resize((shape.width, shape.height), _FILTERS[preprocess.interpolation], *box), preprocess)


def _pixels(image: _imaging.ImagingCore, preprocess: Preprocess) -> Pixels:
    order = "BGR" if preprocess.channels == "BGR" else image.mode
    encoder = _imaging.raw_encoder(image.mode, order)
    columns, rows = image.size
    encoder.setimage(image, (0, 0, columns, rows))
    *_, pixels = encoder.encode(rows * columns * len(order))  # at once; Image.tobytes copies what it joins
    return np.frombuffer(pixels, np.uint8).reshape(rows, columns, len(order))


def _fit_as_opencv(image: _imaging.ImagingCore, preprocess: Preprocess, placement: Placement, shape: Shape) -> Pixels:
    pixels, pad = _pixels(image, preprocess), preprocess.pad
    if pad and pad.place == "square":
        side = max(pixels.shape)
        more = [(0, int(length < side)) for length in pixels.shape[:2]]  # a line of padding: all that is interpolated
        edged = np.pad(pixels, [*more, (0, 0)], constant_values=pad.value)
        return opencv_bilinear.resize(edged, (shape.height, shape.width), of=(side, side))
    resized = (placement.rows, placement.columns)
    if pad:
        return _framed(opencv_bilinear.resize(pixels, resized), pad, placement, shape)
    window = (slice(-placement.top, shape.height - placement.top), slice(-placement.left, shape.width - placement.left))
    return opencv_bilinear.resize(pixels, resized, window=window)


def _framed(pixels: Pixels, pad: Pad, placement: Placement, shape: Shape) -> Pixels:
    framed = np.full((shape.height, shape.width, shape.channels), pad.value, dtype=np.uint8)
    framed[placement.top :, placement.left :][: placement.rows, : placement.columns] = pixels
    return framed


def _crop(placement: Placement, shape: Shape) -> tuple[float, float, float, float]:
    """Resizing only what is kept gives the same pixels (0.2% of bytes differ, by 1), and no strip becomes huge."""
    across, down = placement.width / placement.columns, placement.height / placement.rows
    left, top = -placement.left, -placement.top
    return left * across, top * down, (left + shape.width) * across, (top + shape.height) * down
