"""Image files to the pixels that a network takes, bounded before anything is decoded."""

from __future__ import annotations

import io
import os
import stat
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, ImagePalette, TiffImagePlugin, UnidentifiedImageError

from serfer import opencv_bilinear
from serfer.core.errors import ImageError, ImageTooLargeError, PlanError
from serfer.core.plan import CHANNELS, OPENCV_BILINEAR, ImageLimits, InputSizes, Pad, Placement, Preprocess, Shape
from serfer.libtiff import silence_libtiff
from serfer.samples import Samples

Pixels = NDArray[np.uint8]
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF")
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".webp", ".bmp", ".dib", ".tif", ".tiff")
MAX_FILES = 1_000_000
BYTES_PER_PIXEL = 20
"""The most that decoding takes at once for each pixel: measured, 16.3 for WebP with alpha that is to be turned."""
_STRIP = 1 << 20  # pixels of 16 or 32 bits that are reduced to 8 at a time
_PHOTOMETRIC, _BITS, _BANDS, _COMPRESSION, _PLANES, _KIND = 262, 258, 277, 259, 284, 339  # tags of TIFF
_KINDS = {1: "uint", 2: "int", 3: "float"}
_STORED = ("uint12", "uint16", "int8", "int16", "float32")  # samples of grey that Pillow gives as a TIFF has them
_COLOURS, _APART = 320, 2  # the tag of a palette; planes that are stored apart
_BYTE = 255
_PNG = b"\x89PNG\r\n\x1a\n"
_HEIF = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1", b"avif", b"avis")  # brands
_STEPS = {"L;2": 85, "L;4": 17}
"""What Pillow multiplies a PNG's grey of few bits by, but not the transparent one."""
_RAW = {"I;16BS": "I;16NS", "F;32BF": "F;32NF"}
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
            data = file.read(limits.max_bytes + 1)
    except FileNotFoundError:
        raise ImageError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ImageError(f"{str(path)!r} cannot be read: {getattr(error, 'strerror', error)}") from error
    return data


@dataclass(frozen=True)
class DecodedImage:
    """A network's input (H, W, C) uint8, and the `size` of the whole image it was made of, upright: rows, columns."""

    pixels: Pixels
    size: tuple[int, int]


def decode_image(
    data: bytes, name: str, recipe: Recipe, *, on_size: Callable[[int], None] = lambda _: None
) -> DecodedImage:
    """Return an image as a network's input, upright and in its channel order, and its own size.

    Where a plan takes images of many sizes, the input has one of these, which follows from the image's.

    The first image of a file counts; transparency shows white; grey is luma (ITU-R 601). `on_size` is called with the
    number of pixels before they are decoded, and may raise. Raises ImageError that names the image.
    """
    with _told(data, name, recipe.limits):
        # Nothing here holds a reference to what the next step no longer needs: images are large.
        image = _upright(data, name, recipe.limits, on_size)
        size = image.height, image.width
        image = _to_rgb(image)
        image = image.convert("L") if recipe.preprocess.channels == "L" else image
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
    with _told(data, name, limits):
        return _to_rgb(_upright(data, name, limits, lambda _: None))


def check_image(path: Path, limits: ImageLimits) -> None:
    """Raise ImageError for a file that is missing, empty, too large or no image, as far as its first bytes say."""
    data = read_image(path, limits)
    with _told(data, str(path), limits), Image.open(io.BytesIO(data), formats=FORMATS) as image:
        _check_pixels(image.size, str(path), limits)


@contextmanager
def _told(data: bytes, name: str, limits: ImageLimits) -> Iterator[None]:
    """Raise ImageError that names the image for whatever is wrong with its file."""
    if not data:
        raise ImageError(f"{name} is empty")
    if len(data) > limits.max_bytes:
        raise ImageTooLargeError(f"{name} is larger than {limits.max_bytes:,} bytes ({limits.bytes_setting})")
    silence_libtiff()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata, and of sizes that our own limit judges below
            yield
    except ImageError:
        raise
    except UnidentifiedImageError:
        if tags := _tiff_tags(data):
            raise _unread_kind(name, tags) from None
        known = f"an image of a known format ({', '.join(FORMATS)})"
        raise ImageError(f"{name} is not {known}{heif_advice(data) or ', or its beginning is broken'}") from None
    except Image.DecompressionBombError:
        most = f"{limits.max_pixels:,} are accepted ({limits.pixels_setting})"
        if limits.max_pixels > _PILLOWS_MOST_PIXELS:
            most = f"{_PILLOWS_MOST_PIXELS:,} are accepted"
        raise ImageTooLargeError(f"{name} has too many pixels: at most {most}") from None
    except MemoryError:
        raise ImageTooLargeError(f"{name} takes more memory to decode than there is: send a smaller picture") from None
    except Exception as error:  # Pillow raises many classes for malformed files: AttributeError, struct.error, ...
        raise ImageError(f"{name} cannot be decoded: {error}") from error


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


def _check_pixels(size: tuple[int, int], name: str, limits: ImageLimits) -> None:
    width, height = size
    if width * height > limits.max_pixels:
        raise ImageTooLargeError(
            f"{name} has {width} x {height} pixels, more than the {limits.max_pixels:,} that are accepted "
            f"({limits.pixels_setting})"
        )


def _upright(data: bytes, name: str, limits: ImageLimits, on_size: Callable[[int], None]) -> Image.Image:
    try:
        return _decoded(data, name, limits, on_size)
    except (UnidentifiedImageError, SyntaxError, ValueError):  # what Pillow raises of metadata, too
        if not data.startswith(_PNG):
            raise
    return _decoded(_without_metadata(data), name, limits, on_size)


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


def _decoded(data: bytes, name: str, limits: ImageLimits, on_size: Callable[[int], None]) -> Image.Image:
    """Decode a file and turn the image as its metadata say; what is returned holds nothing of the file or decoder."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        _check_pixels(image.size, name, limits)
        on_size(image.width * image.height)
        samples = Samples("uint16") if image.mode.startswith("I;16") else None
        if isinstance(image, TiffImagePlugin.TiffImageFile):
            samples = _tiff_samples(image, name)
        stored = image.tile[0].args if image.format == "PNG" and "transparency" in image.info else None
        image.load()
        if stored == "RGB;16B":
            _whiten(image, data)
        elif stored in _STEPS:
            image.info["transparency"] *= _STEPS[stored]
        try:
            ImageOps.exif_transpose(image, in_place=True)
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
        if samples is not None:
            return _reduced(image, samples, name)
        return image._new(image.im)  # noqa: SLF001 - Pillow has no public way that does not copy the pixels


def _whiten(image: Image.Image, data: bytes) -> None:
    """Make the pixels white that have a PNG's transparent colour of 16 bits, of which an image has the high bytes."""
    colour = np.array(image.info.pop("transparency"), np.uint16)
    with Image.open(io.BytesIO(data), formats=FORMATS) as low:
        low.tile = [tile._replace(args="RGB;16L") for tile in low.tile]
        low.load()
        hidden = (np.asarray(image) == colour >> 8).all(-1) & (np.asarray(low) == colour & _BYTE).all(-1)
    image.paste("white", mask=Image.fromarray(hidden))


def _tiff_samples(image: TiffImagePlugin.TiffImageFile, name: str) -> Samples | None:
    """Return what a TIFF's samples mean that Pillow gives as stored, None for others; raises ImageError by their kind.

    Pillow 13 swaps signed and float samples that libtiff has swapped already, and takes most planes for uint8.
    """
    tags = image.tag_v2
    kind, inverted, planes = _kind(tags), tags.get(_PHOTOMETRIC, 0) == 0, tags.get(_PLANES) == _APART
    for number, tile in enumerate(image.tile):
        arguments: Any = tile.args
        mode, *rest = arguments
        if tile.codec_name == "libtiff":
            mode = _RAW.get(mode, mode)
        elif planes and kind == "uint16" and image.mode == "RGB":
            mode = f"{mode};16{'B' if tags.prefix == TiffImagePlugin.MM else 'L'}"
        elif planes and (kind != "uint8" or inverted):
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
    with suppress(Exception), warnings.catch_warnings():  # whatever Pillow raises of what is broken
        warnings.simplefilter("ignore")
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
    return image.convert("RGB")


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


def _fit(image: Image.Image, preprocess: Preprocess, shape: Shape) -> Pixels:
    placement = preprocess.placement(image.height, image.width, (shape.height, shape.width))
    if preprocess.interpolation == OPENCV_BILINEAR:
        pixels = _fit_as_opencv(image, preprocess, placement, shape)
    elif preprocess.pad:
        resized = image.resize((placement.columns, placement.rows), _resampling(preprocess))
        pixels = _framed(_pixels(resized), preprocess.pad, placement, shape)
    else:
        box = None if preprocess.resize is None else _crop(placement, shape)
        pixels = _pixels(image.resize((shape.width, shape.height), _resampling(preprocess), box=box))
    return np.ascontiguousarray(pixels[..., ::-1]) if preprocess.channels == "BGR" else pixels


def _resampling(preprocess: Preprocess) -> Image.Resampling:
    return Image.Resampling[preprocess.interpolation.upper()]


def _pixels(image: Image.Image) -> Pixels:
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[..., None] if pixels.ndim == 2 else pixels  # noqa: PLR2004 - grey has no axis for channels


def _fit_as_opencv(image: Image.Image, preprocess: Preprocess, placement: Placement, shape: Shape) -> Pixels:
    pixels, pad = _pixels(image), preprocess.pad
    if pad and pad.place == "square":
        side = max(pixels.shape)
        edged = _edged(pixels, side, pad.value)
        return opencv_bilinear.resize(edged, (shape.height, shape.width), of=(side, side))
    resized = (placement.rows, placement.columns)
    if pad:
        return _framed(opencv_bilinear.resize(pixels, resized), pad, placement, shape)
    window = (slice(-placement.top, shape.height - placement.top), slice(-placement.left, shape.width - placement.left))
    return opencv_bilinear.resize(pixels, resized, window=window)


def _edged(pixels: Pixels, side: int, value: int) -> Pixels:
    """Return pixels with one row and column of padding where they are less than `side`: all that is interpolated."""
    height, width, channels = pixels.shape
    edged = np.full((height + (height < side), width + (width < side), channels), value, dtype=np.uint8)
    edged[:height, :width] = pixels
    return edged


def _framed(pixels: Pixels, pad: Pad, placement: Placement, shape: Shape) -> Pixels:
    framed = np.full((shape.height, shape.width, shape.channels), pad.value, dtype=np.uint8)
    bottom, right = placement.top + placement.rows, placement.left + placement.columns
    framed[placement.top : bottom, placement.left : right] = pixels
    return framed


def _crop(placement: Placement, shape: Shape) -> tuple[float, float, float, float]:
    """Return what a crop keeps of an image: left, top, right, bottom in its own pixels.

    Resizing only that gives the same pixels (0.2% of bytes differ, by 1), and a strip of 1 x 20,000 never becomes a
    huge image.
    """
    across, down = placement.width / placement.columns, placement.height / placement.rows
    left, top = -placement.left, -placement.top
    return left * across, top * down, (left + shape.width) * across, (top + shape.height) * down
