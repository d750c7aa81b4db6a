"""An image file to the pixels that a network takes, bounded before anything is decoded."""

from __future__ import annotations

import io
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from serfer.core.errors import ImageError, PlanError
from serfer.core.plan import Preprocess, Shape

Pixels = NDArray[np.uint8]
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF")
_INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_HIGH_BYTE = 257  # 65535 / 255
_PILLOWS_MOST_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or sys.maxsize)  # it refuses more as soon as it sees the header


@dataclass(frozen=True)
class ImageLimits:
    """What is accepted: bytes of the file, and pixels of what it decodes to."""

    max_bytes: int = 64 * 1024 * 1024
    max_pixels: int = 100_000_000


def read_image(path: Path, limits: ImageLimits) -> bytes:
    """Read an image file; raises ImageError for one that is missing, no file, or too large."""
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


def decode_image(data: bytes, name: str, preprocess: Preprocess, shape: Shape, limits: ImageLimits) -> Pixels:
    """Return an image as (H, W, C) uint8 of the network's input size, upright and in its channel order.

    The first frame of an animation counts; transparency shows white. Raises ImageError that names the image.
    """
    _check_channels(preprocess, shape)
    if not data:
        raise ImageError(f"{name} is empty")
    if len(data) > limits.max_bytes:
        raise ImageError(f"{name} is larger than {limits.max_bytes:,} bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata, and of sizes that our own limit judges below
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                _check_pixels(image.size, name, limits)
                upright = ImageOps.exif_transpose(image)
                return _fit(_to_rgb(upright), preprocess, shape)
    except UnidentifiedImageError:
        raise ImageError(f"{name} is no image of a known format ({', '.join(FORMATS)})") from None
    except Image.DecompressionBombError:
        most = min(limits.max_pixels, _PILLOWS_MOST_PIXELS)
        raise ImageError(f"{name} has too many pixels: at most {most:,} are accepted") from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:  # what Pillow's decoders raise
        raise ImageError(f"{name} cannot be decoded: {error}") from error


def _check_channels(preprocess: Preprocess, shape: Shape) -> None:
    if shape.channels != len(preprocess.channels):
        raise PlanError(f"the network takes {shape.channels} channels, its preprocessing gives {preprocess.channels}")


def _check_pixels(size: tuple[int, int], name: str, limits: ImageLimits) -> None:
    width, height = size
    if width * height > limits.max_pixels:
        raise ImageError(f"{name} has {width} x {height} pixels, more than the {limits.max_pixels:,} that are accepted")


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode == "I":
        values = np.asarray(image).astype(np.uint32)
        return Image.fromarray((values // _HIGH_BYTE).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def _fit(image: Image.Image, preprocess: Preprocess, shape: Shape) -> Pixels:
    """Resize and crop; the shorter side becomes `resize`, or more where the crop would not fit otherwise."""
    resample = _INTERPOLATIONS[preprocess.interpolation]
    if preprocess.resize is None:
        image = image.resize((shape.width, shape.height), resample)
    else:
        width, height = image.size
        scale = max(preprocess.resize / min(width, height), shape.width / width, shape.height / height)
        size = max(shape.width, round(width * scale)), max(shape.height, round(height * scale))
        left, top = (size[0] - shape.width) // 2, (size[1] - shape.height) // 2
        # Resizing only what the crop keeps gives the same pixels: a strip of 1 x 20,000 never becomes a huge image.
        box = tuple(
            value / total * side
            for value, total, side in (
                (left, size[0], width),
                (top, size[1], height),
                (left + shape.width, size[0], width),
                (top + shape.height, size[1], height),
            )
        )
        image = image.resize((shape.width, shape.height), resample, box=(box[0], box[1], box[2], box[3]))
    pixels = np.asarray(image, dtype=np.uint8)
    return np.ascontiguousarray(pixels[..., ::-1]) if preprocess.channels == "BGR" else pixels
