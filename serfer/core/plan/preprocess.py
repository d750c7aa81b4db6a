"""Preprocessing of an image, and limits of images."""

from __future__ import annotations

from dataclasses import dataclass

from serfer.core.errors import PlanError

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
CHANNELS = ("RGB", "BGR", "L")
_MAX_RESIZE = 65_536
_LEAST, _MOST = 1e-9, 1e9  # float32 adds, multiplies and divides these without an overflow


@dataclass(frozen=True, slots=True)
class Preprocess:
    """The preprocessing of an image: resize its shorter side, crop the centre, then (x * scale - mean) / std.

    `mean` and `std` are per channel, in the order of `channels` ("RGB", "BGR", or "L" for grey), after scaling.
    `resize` is in pixels; None stretches the whole image to the input's size instead. Raises PlanError for values that
    no description has.
    """

    resize: int | None
    interpolation: str
    channels: str
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.resize is not None and not 1 <= self.resize <= _MAX_RESIZE:
            raise PlanError(f"resize of the preprocessing should be 1 to {_MAX_RESIZE} pixels")
        for name, value, known in (
            ("interpolation", self.interpolation, INTERPOLATIONS),
            ("channels", self.channels, CHANNELS),
        ):
            if value not in known:
                raise PlanError(f"{name} of the preprocessing should be one of {', '.join(known)}, not {value!r:.40}")
        self._check_numbers("mean", self.mean, -_MOST)
        self._check_numbers("std", self.std, _LEAST)
        if not _LEAST <= abs(self.scale) <= _MOST:
            raise PlanError(f"scale of the preprocessing should be a number other than 0, not {self.scale:g}")

    def _check_numbers(self, name: str, values: tuple[float, ...], least: float) -> None:
        if len(values) != len(self.channels):
            raise PlanError(
                f"{name} of the preprocessing has {len(values)} numbers, {self.channels} needs {len(self.channels)}"
            )
        for index, value in enumerate(values):
            if not least <= value <= _MOST:
                raise PlanError(f"{name}[{index}] of the preprocessing should be {least:g} to {_MOST:g}, not {value:g}")


@dataclass(frozen=True)
class ImageLimits:
    """Limits of an image: bytes of the file, and pixels that it decodes to."""

    max_bytes: int = 64 * 1024 * 1024
    max_pixels: int = 100_000_000
