"""A validation set as arrays in files: a part that nothing but accuracy is measured on, and one to calibrate with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.images import Recipe
from serfer.pipeline.labelled.accuracy import BATCH
from serfer.pipeline.labelled.labels import LabelledImages

MOST_CALIBRATION: Final = 256
_LABELS: Final = "labels.npy"
_PIXELS: Final = "pixels.npy"
_SHARE: Final = 0.1  # of the images, to calibrate with
_LEAST_IMAGES: Final = 100  # of fewer, all are needed to measure


@dataclass(frozen=True)
class ImageFiles:
    """A folder with pixels, (N, H, W, C) uint8, and labels, (N,) int64."""

    folder: Path

    @property
    def pixels(self) -> NDArray[np.uint8]:
        mapped: NDArray[np.uint8] = np.load(self.folder / _PIXELS, mmap_mode="r")
        return mapped

    @property
    def labels(self) -> NDArray[np.int64]:
        labels: NDArray[np.int64] = np.load(self.folder / _LABELS)
        return labels

    def batches(self, most: int) -> Iterator[NDArray[np.uint8]]:
        pixels = self.pixels
        for at in range(0, len(pixels), most):
            yield np.ascontiguousarray(pixels[at : at + most])


@dataclass(frozen=True)
class ValidationFiles:
    """The images that accuracy is measured on, and those to calibrate with: None where there are too few."""

    tested: ImageFiles
    calibration: ImageFiles | None


def calibration_images(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    count = len(labels)
    if count < _LEAST_IMAGES:
        return np.zeros(0, dtype=np.int64)
    chosen = min(MOST_CALIBRATION, round(_SHARE * count))
    order = np.argsort(labels, kind="stable")
    return np.sort(order[((np.arange(chosen) + 0.5) * count / chosen).astype(np.int64)])


def write_images(
    images: LabelledImages, recipe: Recipe, folder: Path, progress: Callable[[str], None] = lambda _: None
) -> ValidationFiles:
    """Decode a validation set into files below a folder; raises ImageError that names an image that is damaged."""
    calibrating = calibration_images(images.labels)
    testing = np.setdiff1d(np.arange(len(images)), calibrating)
    tested = _write(_part(images, testing), recipe, folder / "tested", progress)
    if not calibrating.size:
        return ValidationFiles(tested, None)
    return ValidationFiles(tested, _write(_part(images, calibrating), recipe, folder / "calibration", progress))


def _part(images: LabelledImages, numbers: NDArray[np.int64]) -> LabelledImages:
    files = tuple(images.files[number] for number in numbers)
    return replace(images, files=files, indices=tuple(images.indices[number] for number in numbers))


def _write(images: LabelledImages, recipe: Recipe, folder: Path, progress: Callable[[str], None]) -> ImageFiles:
    folder.mkdir(parents=True)
    shape = recipe.shape
    dims = (len(images), shape.height, shape.width, shape.channels)
    pixels = np.lib.format.open_memmap(folder / _PIXELS, mode="w+", dtype=np.uint8, shape=dims)
    done = 0
    for batch in images.pixels(recipe, BATCH):
        pixels[done : done + len(batch)] = batch
        done += len(batch)
        progress(f"reading validation images: {done:,} of {len(images):,}")
    pixels.flush()
    np.save(folder / _LABELS, images.labels)
    return ImageFiles(folder)
