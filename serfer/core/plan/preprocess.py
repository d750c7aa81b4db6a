"""Preprocessing of an image, and limits of images."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serfer.core.dataclass_codec import LATER
from serfer.core.errors import PlanError
from serfer.core.plan.image_normalisation import ImageNormalisation
from serfer.core.plan.sizes import InputSizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPENCV_BILINEAR = "opencv-bilinear"
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", OPENCV_BILINEAR)
"""As Pillow computes them, with antialiasing, but for the last, which is OpenCV's INTER_LINEAR for bytes."""
CHANNELS = ("RGB", "BGR", "L")
MAX_CHANNELS = max(map(len, CHANNELS))
BAND = "*"
"""A channel that is any band of an image: a letter for each channel of a network that takes other ones than colours."""
_MAX_RESIZE = 65_536
LIMITED_SIDES = ("shorter", "longer")
SHORTER, LONGER = LIMITED_SIDES
PAD_PLACES = ("centre", "corner", "square", "height")
_BLACK, _WHITE = 0, 255
_LEAST, _MOST = 1e-9, 1e9  # float32 adds, multiplies and divides these without an overflow


@dataclass(frozen=True)
class Pad:
    """How a whole image is resized without a change of its aspect ratio, and padded to the input's size.

    `value`, 0 to 255, is what every channel of the padding has. `place` also says how sizes are rounded:

    - "centre": in the middle, sides rounded, as the LetterBox of ultralytics (YOLOv5, YOLOv8 and later) does;
    - "corner": top left, sides rounded down, as the preproc of YOLOX does;
    - "square": top left; padded to a square of the longer side first and then resized, as NudeNet does;
    - "height": left; the height is the input's and the width rounded up, as PaddleOCR's resize_norm_img does. A line
      that is too long becomes as wide as the input, and its aspect ratio changes.
    """

    place: str
    value: int

    def __post_init__(self) -> None:
        _check_choice("pad", self.place, PAD_PLACES)
        if not _BLACK <= self.value <= _WHITE:
            raise PlanError(f"the value of the preprocessing's padding should be 0 to 255, not {self.value}")


@dataclass(frozen=True)
class SideLimit:
    """How an image is scaled where a plan takes images of many sizes, before its sides become multiples.

    Its shorter `side` is enlarged to `pixels`, or its longer one reduced to them; an image of which that holds already
    keeps its size (`limit_type` "min" and "max" of PaddleOCR's text detection).
    """

    side: str
    pixels: int

    def __post_init__(self) -> None:
        _check_choice("limited side", self.side, LIMITED_SIDES)
        if not 1 <= self.pixels <= _MAX_RESIZE:
            raise PlanError(f"the {self.side} side of the preprocessing should be 1 to {_MAX_RESIZE} pixels")

    def scale(self, height: int, width: int) -> float:
        side = min(height, width) if self.side == SHORTER else max(height, width)
        holds = side >= self.pixels if self.side == SHORTER else side <= self.pixels
        return 1.0 if holds else self.pixels / side

    def __str__(self) -> str:
        return f"{'enlarged' if self.side == SHORTER else 'reduced'} until its {self.side} side has {self.pixels}"


@dataclass(frozen=True)
class Placement:
    """Where an image of `height` x `width` pixels lies in a network's input.

    A point at (y, x) of the image is at (y * scale_y + top, x * scale_x + left) of the input. The image is resized to
    `rows` x `columns` pixels of the input, of which what lies outside is cut off: `top` and `left` are negative there.
    Where it is padded at "centre" or "corner" both scales are the ratio by which the authors of these networks map
    boxes, which `rows / height` and `columns / width` differ from by their rounding to whole pixels.
    """

    scale_y: float
    scale_x: float
    top: int
    left: int
    rows: int
    columns: int
    height: int
    width: int

    def to_image(self, boxes: NDArray[Any]) -> NDArray[Any]:
        """Return boxes of the input, (K, 4) as left, top, right, bottom, in the image's pixels, clipped to the image.

        The type of a floating-point array stays, whole numbers become float64.
        """
        offsets, scales = (self.left, self.top) * 2, (self.scale_x, self.scale_y) * 2
        limits = (self.width, self.height) * 2
        mapped = boxes.copy() if boxes.dtype.kind == "f" else boxes.astype(float)
        for column in range(len(limits)):
            values = mapped[:, column]
            values -= offsets[column]
            values /= scales[column]
            values.clip(0, limits[column], out=values)
        return mapped


@dataclass(frozen=True)
class Levels:
    """What a network's input has for a pixel x of 8 bits: (x * scale - mean) / std, with a mean and std a channel.

    Raises PlanError for numbers that are out of range.
    """

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_numbers("mean", self.mean, -_MOST)
        _check_numbers("std", self.std, _LEAST)
        if not _LEAST <= abs(self.scale) <= _MOST:
            raise PlanError(f"scale of the preprocessing should be a number other than 0, not {self.scale:g}")

    def __str__(self) -> str:
        divisor = round(1 / self.scale)
        whole = "x" if divisor == 1 else f"x / {divisor}"
        value = whole if math.isclose(self.scale * divisor, 1) else f"x * {self.scale:g}"
        mean, std = (", ".join(f"{number:g}" for number in numbers) for numbers in (self.mean, self.std))
        value = f"{value} - ({mean})" if any(self.mean) else value
        return value if set(self.std) == {1.0} else f"({value}) / ({std})"


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise PlanError(f"{name} of the preprocessing should be one of {', '.join(choices)}, not {value!r:.40}")


def _check_numbers(name: str, values: tuple[float, ...], least: float) -> None:
    for index, value in enumerate(values):
        if not least <= value <= _MOST:
            raise PlanError(f"{name}[{index}] of the preprocessing should be {least:g} to {_MOST:g}, not {value:g}")


@dataclass(frozen=True)
class Preprocess:
    """The preprocessing of an image: resize its shorter side, crop the centre, then (x * scale - mean) / std.

    `mean` and `std` are per channel, in the order of `channels` ("RGB", "BGR", or "L" for grey), after scaling.
    `resize` is in pixels; None stretches the whole image to the input's size instead, or resizes it and pads it, where
    there is a `pad`. Where a plan takes images of many sizes, that input's size is the image's own (`size_for`), scaled
    by the limit of a side where there is one. With `by_image`, of a map plan alone, pixels are normalised by the whole
    image first, and mean, std and scale apply to that. Of a map plan that takes `stored` values, x are those that the
    image's file has, whatever its type; otherwise its largest value counts as 255. Raises PlanError for values that no
    description has.
    """

    resize: int | None
    interpolation: str
    channels: str
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: Pad | None = field(default=None, metadata=LATER)
    limit: SideLimit | None = field(default=None, metadata=LATER)
    by_image: ImageNormalisation | None = field(default=None, metadata=LATER)
    stored: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        if self.pad and self.resize is not None:
            raise PlanError("an image is either padded or cropped: leave resize or pad of the preprocessing out")
        if self.pad and self.pad.place == "square" and self.interpolation != OPENCV_BILINEAR:
            raise PlanError(f"pad square of the preprocessing needs the interpolation {OPENCV_BILINEAR}")
        if self.resize is not None and not 1 <= self.resize <= _MAX_RESIZE:
            raise PlanError(f"resize of the preprocessing should be 1 to {_MAX_RESIZE} pixels")
        _check_choice("interpolation", self.interpolation, INTERPOLATIONS)
        if {*self.channels} != {BAND}:
            _check_choice("channels", self.channels, CHANNELS)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != len(self.channels):
                raise PlanError(
                    f"{name} of the preprocessing has {len(values)} numbers, {self.channels} needs {len(self.channels)}"
                )
        Levels(self.scale, self.mean, self.std)  # refuses what is out of range
        if self.stored and self.by_image is not None:
            raise PlanError(
                "pixels that are normalised by the whole image are stored values anyway: leave stored_values of the "
                "preprocessing out"
            )

    @property
    def of_maps(self) -> bool:
        return self.by_image is not None or self.stored or BAND in self.channels

    @property
    def levels(self) -> Levels:
        """What becomes of the resized image's pixels."""
        return Levels(self.scale, self.mean, self.std)

    def in_words(self, into: tuple[int, int], sizes: InputSizes | None = None) -> str:
        """Say how an image becomes an input of (rows, columns), or of one of many sizes."""
        rows, columns = into
        size = f"{columns} x {rows} pixels"
        if sizes:
            scaled = f"{self.limit}, and " if self.limit else ""
            padded = f"padded with {self.pad.value} to" if self.pad else "resized to"
            return f"{scaled}{padded} {sizes}, {self.interpolation}; {self.channels}; {self.levels}"
        if self.pad:
            fit = f"padded with {self.pad.value} to {size} ({self.pad.place})"
        elif self.resize is None:
            fit = f"stretched to {size}"
        else:
            fit = f"resized to {self.resize} at its shorter side, the middle {size} of it"
        return f"{fit}, {self.interpolation}; {self.channels}; {self.levels}"

    @property
    def pixels_in_words(self) -> str:
        """Say how pixels of a map's image become values of the input."""
        order = f"{len(self.channels)} bands" if BAND in self.channels else self.channels
        levels = str(self.levels)
        if self.by_image is None:
            return f"{order}; {levels}{', of values as they are stored' if self.stored else ''}"
        return f"{order}; {self.by_image}" + ("" if levels == "x" else f", then {levels}")

    def check_sizes(self, sizes: InputSizes | None) -> None:
        """Raise PlanError where it is for images of many sizes and a plan takes one, or the other way round."""
        if sizes is None:
            if self.limit:
                raise PlanError(
                    f"the limit of the {self.limit.side} side is for a plan that takes images of many sizes: leave it "
                    "out, or make a plan of a range of sizes (--size 32..2016x32..2016,multiple=32, with --whole)"
                )
            return
        one = "an image of any size becomes one of a fixed size: give a --preprocess for many sizes, or one --size"
        if self.resize is not None or (self.pad and self.pad.place == "square"):
            raise PlanError(f"by {'the crop' if self.pad is None else 'pad square'} of the preprocessing {one}")
        if self.pad and self.pad.place == "height" and sizes.rows.varies:
            raise PlanError("pad height of the preprocessing needs one height, such as --size 48x320..2400")

    def size_for(self, height: int, width: int, sizes: InputSizes) -> tuple[int, int]:
        """Return the rows and columns of the input for an image of `height` x `width` pixels, of a plan's `sizes`.

        A stretched image has the nearest multiples, as PaddleOCR's text detection has; a padded one the next ones. An
        image that is too large is reduced until it fits; one that is too long and narrow changes its aspect ratio.
        """
        if self.pad and self.pad.place == "height":
            rows = sizes.rows.least
            return rows, sizes.columns.ceil(int(rows * (width / height)))
        scale = self.limit.scale(height, width) if self.limit else 1.0
        most = sizes.rows.most / height, sizes.columns.most / width, math.sqrt(sizes.most_pixels / (height * width))
        scale = min(scale, *most)
        high, wide = int(height * scale), int(width * scale)
        if self.pad:
            return sizes.within(sizes.rows.ceil(high), sizes.columns.ceil(wide))
        return sizes.within(sizes.rows.nearest(high), sizes.columns.nearest(wide))

    def placement(self, height: int, width: int, into: tuple[int, int]) -> Placement:
        """Return where an image of `height` x `width` pixels lies in a network's input of `into`, (rows, columns).

        An image of any size has a placement: its shorter side keeps one pixel at least.
        """
        rows, columns = into
        if self.pad:
            return _pad_placement(self.pad.place, height, width, rows, columns)
        if self.resize is None:
            return Placement(rows / height, columns / width, 0, 0, rows, columns, height, width)
        return _crop_placement(self.resize, height, width, rows, columns)


@dataclass(frozen=True)
class ImageLimits:
    """Limits of an image: bytes of the file, and pixels that it decodes to; and the settings that raise them."""

    max_bytes: int = 64 * 1024 * 1024
    max_pixels: int = 100_000_000
    bytes_setting: str = "SERFER_MAX_IMAGE_BYTES"
    pixels_setting: str = "SERFER_MAX_IMAGE_PIXELS"


def _pad_placement(place: str, height: int, width: int, rows: int, columns: int) -> Placement:
    if place == "square":
        down, across = rows / max(height, width), columns / max(height, width)
        high, wide = min(rows, math.ceil(height * down)), min(columns, math.ceil(width * across))
        return Placement(down, across, 0, 0, high, wide, height, width)
    if place == "height":
        resized = min(columns, math.ceil(rows * (width / height)))
        return Placement(rows / height, resized / width, 0, 0, rows, resized, height, width)
    ratio = min(rows / height, columns / width)
    if place == "corner":
        return Placement(ratio, ratio, 0, 0, max(1, int(height * ratio)), max(1, int(width * ratio)), height, width)
    high, wide = max(1, round(height * ratio)), max(1, round(width * ratio))
    top, left = round((rows - high) / 2 - 0.1), round((columns - wide) / 2 - 0.1)
    return Placement(ratio, ratio, top, left, high, wide, height, width)


def _crop_placement(resize: int, height: int, width: int, rows: int, columns: int) -> Placement:
    """The shorter side becomes `resize`, or more where the crop would not fit otherwise.

    Sizes and offsets are rounded as torchvision's Resize and CenterCrop do, so that networks see here what they saw in
    their training.
    """
    least = max(columns / width, rows / height)
    shorter = max(resize, round(min(height, width) * least))
    wide = max(columns, shorter * width // min(height, width))
    high = max(rows, shorter * height // min(height, width))
    top, left = round((high - rows) / 2), round((wide - columns) / 2)
    return Placement(high / height, wide / width, -top, -left, high, wide, height, width)
