"""Descriptions that a network's file lacks: the preprocessing of its images and the names of its outputs.

docs/how-to/preprocess.md describes the file that `read_preprocess` reads, examples/preprocess.toml is an example.
"""

from __future__ import annotations

import tomllib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from serfer.core.dataclass_codec import structure
from serfer.core.errors import InputError, PlanError, UsageError
from serfer.core.plan import ACTIVATIONS, CHANNELS, OPENCV_BILINEAR, Pad, Preprocess, SideLimit
from serfer.core.plan.image_normalisation import EPS, ImageNormalisation
from serfer.core.plan.preprocess import BAND, LONGER, SHORTER
from serfer.core.variants.application import NAME
from serfer.splitter.network.detection_heads import BoxOptions, is_boxes

NO_SCORES = ACTIVATIONS[-1]
CROPS = ("centre", "none")
_MAX_PREPROCESS_BYTES = 64 * 1024
_MAX_LABELS_BYTES = 1024 * 1024
_MOST_ROWS = 65_536
_LIMITS = {"shorter_side": SHORTER, "longer_side": LONGER}
_OF_MAPS = ("percentiles", "zero_mean_unit_variance", "per_channel", "eps", "clip")
_STORED = "stored_values"
_KEYS = (
    *("resize", "crop", "pad", "pad_value", *_LIMITS, "interpolation", "channels", "scale", "mean", "std"),
    *(*_OF_MAPS, _STORED),
)
_MOST_CHANNELS = 4096
_ASSUMED = {3: "RGB", 1: "L"}
"""The order of an image's channels, by how many the network takes, where nothing says it."""
_TOO_SMALL = ("int8", "bool")
"""Types of inputs that do not hold an image's 0 to 255."""
_GREY = 114  # what YOLO networks are padded with


REDUCTIONS = ("argmax", "softmax", "sigmoid")
ARGMAX, SOFTMAX, SIGMOID = REDUCTIONS


@dataclass(frozen=True)
class Reduction:
    """What is done to the first output (N, C, H, W): it is resized to `size`, rows and columns, and then reduced.

    `kind` is one of REDUCTIONS: the class of each position, or scores over channels, or of each value; None for
    neither. Of a network of several outputs, `output` names another one than the first map. Raises UsageError.
    """

    kind: str | None = None
    size: tuple[int, int] | None = None
    output: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in (None, *REDUCTIONS):
            raise UsageError(f"--reduce is {', '.join(REDUCTIONS[:-1])} or {REDUCTIONS[-1]}, not {self.kind!r:.40}")
        if self.size is not None and not (
            len(self.size) == 2  # noqa: PLR2004 - rows, columns
            and all(type(size) is int and 1 <= size <= _MOST_ROWS for size in self.size)
        ):
            raise UsageError(f"resize_output is (rows, columns), each 1 to {_MOST_ROWS:,}, not {self.size!r:.40}")

    def __str__(self) -> str:
        resized = f"resize_output={self.size[0]}x{self.size[1]}" if self.size else ""
        named = f"{self.output}={self.kind}" if self.output else self.kind
        return ", ".join(filter(None, [f"reduce={named}" if self.kind else "", resized]))

    @classmethod
    def of(cls, kind: str | None, size: tuple[int, int] | None) -> Self | None:
        """Return the reduction that was asked for, `KIND` or `OUTPUT=KIND`, None for none."""
        output, _, kind = kind.rpartition("=") if kind else ("", "", kind)
        return None if kind is None and size is None else cls(kind, size, output or None)


@dataclass(frozen=True)
class Description:
    """How an image becomes the input, the names of the outputs, and what turns these into scores, where given.

    `reduction` is what makes an output small, `boxes` says that the outputs are a detector's. `name` is the network's,
    in place of its file's or class's. Raises UsageError for one that no model of a service can have.
    """

    preprocess: Preprocess | None = None
    labels: tuple[str, ...] = ()
    activation: str | None = None
    reduction: Reduction | None = None
    boxes: BoxOptions | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None and not NAME.fullmatch(self.name):
            raise UsageError(
                f"--name {self.name!r:.80} is not a name: write 1 to 64 letters, digits, dots, hyphens or underscores, "
                "a letter or digit first"
            )

    @property
    def output(self) -> str | None:
        return str(self.boxes) if self.boxes else self.activation

    @classmethod
    def of(
        cls,
        preprocess: Preprocess | Path | str | None,
        labels: Sequence[str] | Path | str,
        activation: str | None,
        reduction: Reduction | None = None,
        *,
        name: str | None = None,
        resized: bool = True,
    ) -> Self:
        """Read what was given as a path; raises InputError for an unusable file, UsageError for another value.

        Images of a map are not `resized`: the file need not say how.
        """
        if isinstance(preprocess, Path | str):
            preprocess = read_preprocess(Path(preprocess), resized=resized)
        if preprocess is not None and not isinstance(preprocess, Preprocess):
            raise UsageError(
                f"preprocess must be a serfer.Preprocess or the path of a TOML file, not {type(preprocess).__name__}"
            )
        if preprocess is not None and preprocess.of_maps and resized:
            raise UsageError("a preprocessing by the whole image, or of other bands than colours, is for map plans")
        boxes = BoxOptions.of(activation) if activation is not None and is_boxes(activation) else None
        activation = NO_SCORES if boxes else activation
        if activation is not None and activation not in ACTIVATIONS:
            raise UsageError(f"the output is boxes, softmax, sigmoid or none, not {activation!r}")
        if boxes and reduction:
            raise UsageError(f"{reduction} is for a map: with --output boxes there is none")
        names = read_labels(Path(labels)) if isinstance(labels, Path | str) else labels
        return cls(preprocess, tuple(names), activation, reduction, boxes, name)


def assumed_preprocess(channels: int, numbers: str) -> Preprocess | None:
    """Return how an image becomes an input of so many channels where nothing says it; None where no image has such.

    It is stretched; its values are divided by 255, or left as they are where the input's type, `numbers`, is whole
    numbers.
    """
    order = _ASSUMED.get(channels)
    if order is None or numbers in _TOO_SMALL:
        return None
    scale, count = 1 / 255 if numbers.startswith("float") else 1.0, len(order)
    return Preprocess(None, "bilinear", order, scale, mean=(0.0,) * count, std=(1.0,) * count)


def read_preprocess(path: Path, *, resized: bool = True) -> Preprocess:
    """Read the TOML description of a network's input; raises InputError that names file and key.

    It need not say how images are resized where they are not.
    """
    try:
        table = tomllib.loads(_read_text(path, _MAX_PREPROCESS_BYTES))
    except (ValueError, RecursionError) as error:  # also raised for numbers of thousands of digits, and deep nesting
        raise InputError(f"{path} is not TOML: {error}") from error
    unknown = sorted(set(table) - set(_KEYS))
    if unknown:
        raise InputError(f"{path} has an unknown key {unknown[0][:40]!r}: the keys are {', '.join(_KEYS)}")
    if resized and (of_maps := [key for key in (*_OF_MAPS, _STORED) if key in table]):
        raise InputError(
            f"{path}: {of_maps[0]} is for map plans (serfer map-plan), whose images are measured as a whole"
        )
    try:
        return _preprocess(table if resized or {"resize", "pad"} & set(table) else {"crop": "none", **table})
    except PlanError as error:
        raise InputError(f"{path}: {error}") from error


def _preprocess(table: dict[str, Any]) -> Preprocess:
    channels, by_image = _channels(table), _by_image(table)
    # An unknown order is refused as such, not for its length.
    known = channels if channels in CHANNELS or BAND in channels else "RGB"
    pad, limit = _pad(table), _limit(table)
    stored = structure(bool, table.get(_STORED, False), _STORED)
    return Preprocess(
        resize=None if pad or limit else _resize(table),
        interpolation=structure(
            str, table.get("interpolation", OPENCV_BILINEAR if pad or limit else "bilinear"), "interpolation"
        ),
        channels=channels,
        scale=structure(float, table.get("scale", 1 if by_image or stored else 1 / 255), "scale"),
        mean=structure(tuple[float, ...], table.get("mean", [0.0] * len(known)), "mean"),
        std=structure(tuple[float, ...], table.get("std", [1.0] * len(known)), "std"),
        pad=pad,
        limit=limit,
        by_image=by_image,
        stored=stored,
    )


def _channels(table: dict[str, Any]) -> str:
    channels = table.get("channels", "RGB")
    if type(channels) is int and 1 <= channels <= _MOST_CHANNELS and not {"resize", "pad", *_LIMITS} & {*table}:
        return BAND * channels
    return structure(str, channels, "channels")


def _by_image(table: dict[str, Any]) -> ImageNormalisation | None:
    percentiles, unit = None, structure(bool, table.get("zero_mean_unit_variance", False), "zero_mean_unit_variance")
    if "percentiles" in table:
        percentiles = structure(tuple[float, float], table["percentiles"], "percentiles")
    if percentiles is not None and unit:
        raise PlanError("percentiles and zero_mean_unit_variance are two ways to normalise: give one of them")
    if percentiles is None and not unit:
        for key in _OF_MAPS[2:]:
            if key in table:
                raise PlanError(f"{key} is for percentiles or zero_mean_unit_variance: give one of them, too")
        return None
    return ImageNormalisation(
        percentiles,
        structure(bool, table.get("per_channel", True), "per_channel"),
        structure(float, table.get("eps", EPS), "eps"),
        structure(bool, table.get("clip", False), "clip"),
    )


def _pad(table: dict[str, Any]) -> Pad | None:
    if "pad" not in table:
        if "pad_value" in table:
            raise PlanError("pad_value is of images that are padded: give pad, too, or leave pad_value out")
        return None
    for other in ("resize", "crop"):
        if other in table:
            raise PlanError(f"an image is either padded or cropped: leave {other} or pad out")
    return Pad(structure(str, table["pad"], "pad"), structure(int, table.get("pad_value", _GREY), "pad_value"))


def _limit(table: dict[str, Any]) -> SideLimit | None:
    given = [key for key in _LIMITS if key in table]
    if not given:
        return None
    if len(given) > 1 or "resize" in table or table.get("crop", CROPS[1]) != CROPS[1]:
        raise PlanError(
            "by shorter_side or longer_side the whole image is resized: give one of them, without resize and crop"
        )
    return SideLimit(_LIMITS[given[0]], structure(int, table[given[0]], given[0]))


def _resize(table: dict[str, Any]) -> int | None:
    crop = table.get("crop", CROPS[0])
    if crop not in CROPS:
        raise PlanError('crop should be "centre" or "none": its size is always that of the network\'s input')
    if crop == "centre":
        if "resize" not in table:
            raise PlanError(
                'resize is missing: give the shorter side in pixels, crop = "none" to stretch the image, '
                'or pad = "centre" to pad it'
            )
        return structure(int, table["resize"], "resize")
    if "resize" in table:
        raise PlanError('crop = "none" stretches the whole image to the network\'s input: leave resize out')
    return None


def read_labels(path: Path) -> tuple[str, ...]:
    """Read the names of a network's outputs, one a line in UTF-8; raises InputError that names the file and the line.

    Names may repeat, as two of ImageNet's do. Empty lines at the end do not count.
    """
    names = [line.strip() for line in _read_text(path, _MAX_LABELS_BYTES).rstrip().split("\n")]
    for number, name in enumerate(names, 1):
        if any(unicodedata.category(char) == "Cc" for char in name):
            raise InputError(f"{path}, line {number} has a tab or another control character: write one name a line")
        if not name and len(names) > 1:
            raise InputError(f"{path}, line {number} is empty: write one name a line, in the order of the outputs")
    if names == [""]:
        raise InputError(f"{path} is empty: write one name a line, in the order of the outputs")
    return tuple(names)


def _read_text(path: Path, most: int) -> str:
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a file")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"{str(path)!r} cannot be read: {getattr(error, 'strerror', error)}") from error
    if len(data) > most:
        raise InputError(f"{path} is larger than {most:,} bytes: is it the right file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8 (byte {error.start}): save it as UTF-8") from error
