"""Calibration images, labelled with the network's classes: a replaced head is fitted to them, and losses are measured.

FOLDER/tabby cat/1.jpg      a folder is a class: its name as in the labels ("Tabby_cat" is the same), or its index
FOLDER/281/deeper/2.png
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError, PlanError, UsageError
from serfer.core.plan import ImageLimits, Preprocess, Shape
from serfer.core.plan.class_names import ClassNames
from serfer.core.plan.pixels import normalise
from serfer.images import SUFFIXES, Recipe, decode_image, folder_files, read_image

Progress = Callable[[str], None]
LEAST_CLASSES = 2
LEAST_OF_A_CLASS = 2  # one to fit to and one to measure on
LEAST_IMAGES = 20  # of fewer, a held-out fifth is less than four: one wrong answer would be a loss of a third and more
MOST_BYTES = 2 * 1024**3
_NAMED = 3  # of several wrong things, a message names so many
_EVERY = 50  # images between two signs of progress


@dataclass(frozen=True)
class Calibration:
    """Images as the network takes them, (N, C, H, W) float32, and the index of each one's class, (N,) int64."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def check(self, shape: Shape, classes: int) -> None:
        expected = (len(self.images), shape.channels, shape.height, shape.width)
        if self.images.dtype != np.float32 or self.images.shape != expected or not expected[0]:
            raise InputError(
                f"the calibration images are {self.images.dtype} with shape {self.images.shape}: give (N, "
                f"{shape.channels}, {shape.height}, {shape.width}) float32, as the network takes them"
            )
        if self.labels.dtype != np.int64 or self.labels.shape != expected[:1]:
            raise InputError(
                f"the calibration labels are {self.labels.dtype} with shape {self.labels.shape}: give one int64 for "
                f"each of the {expected[0]:,} images"
            )
        if not (self.labels.min() >= 0 and self.labels.max() < classes):
            raise InputError(f"the calibration labels must lie between 0 and {classes - 1}, one for each output")
        if not all(np.isfinite(images).all() for images, _ in self.batches(_EVERY)):
            raise InputError("the calibration images hold values that are not finite numbers")

    def split(self, share: float = 0.2, seed: int = 0) -> tuple[Calibration, Calibration]:
        """Return the part to fit to and the part held out of it, `share` of the images and at least one.

        Each class gives its share, up to rounding; which images it gives depends on `seed` alone. Raises UsageError for
        a share that is not between 0 and 1, InputError where one image cannot be in both parts.
        """
        count = len(self.labels)
        if not 0 < share < 1:
            raise UsageError(f"the share that is held out must lie between 0 and 1, not {share}")
        if count < 2:  # noqa: PLR2004 - two parts
            raise InputError(f"{count} calibration images cannot be split into two parts: give more")
        random = np.random.default_rng(seed)
        _, classes = np.unique(self.labels, return_inverse=True)
        order = np.lexsort((random.random(count), random.permutation(classes.max() + 1)[classes]))
        held = min(max(1, round(share * count)), count - 1)
        # Evenly spaced over images in the order of their classes, so every class gives its share.
        out = np.zeros(count, dtype=bool)
        out[order[((np.arange(held) + 0.5) * count / held).astype(np.int64)]] = True
        return self._part(~out), self._part(out)

    def _part(self, chosen: NDArray[np.bool_]) -> Calibration:
        return Calibration(self.images[chosen], self.labels[chosen])

    def batches(self, size: int) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        """Yield (images, labels) of `size` images at a time, in order; the last batch may be smaller."""
        if size < 1:
            raise UsageError(f"a batch has at least 1 image, not {size}")
        for start in range(0, len(self.labels), size):
            yield self.images[start : start + size], self.labels[start : start + size]


def read_calibration(
    folder: Path,
    preprocess: Preprocess | None,
    shape: Shape,
    labels: Sequence[str],
    limits: ImageLimits,
    progress: Progress = lambda _: None,
) -> Calibration:
    """Read the images of a folder of class folders, in the order of classes and paths, as a network of input `shape`.

    `labels` are the network's, in order; for a network without names, the numbers from 0 as text. Raises InputError for
    a folder that is not as it should be, PlanError without a fitting `preprocess`, ImageError for a broken image.
    """
    if preprocess is None:
        raise PlanError("calibration images need a preprocess description: give --preprocess FILE.toml")
    if not labels:
        raise InputError("calibration images need the names of the network's outputs: give --labels FILE")
    recipe = Recipe(preprocess, shape, limits)
    files_of = _images_of_classes(_class_folders(folder, labels))
    _check_enough(folder, files_of, labels)
    files = [(path, index) for index in sorted(files_of) for path in files_of[index]]
    _check_memory(folder, len(files), shape)
    images = np.empty((len(files), shape.channels, shape.height, shape.width), dtype=np.float32)
    for number, (path, _) in enumerate(files):
        if number % _EVERY == 0:
            progress(f"reading calibration images: {number:,} of {len(files):,}")
        pixels = decode_image(read_image(path, limits), str(path), recipe).pixels
        images[number] = normalise(pixels[None], preprocess)[0]
    return Calibration(images, np.array([index for _, index in files], dtype=np.int64))


def _class_folders(folder: Path, labels: Sequence[str]) -> dict[Path, int]:
    entries = _entries(folder)
    folders = [path for path in entries if path.is_dir()]
    loose = [path for path in entries if path.suffix.lower() in SUFFIXES and not path.is_dir()]
    if not entries:
        raise InputError(f"{folder} is empty: put one folder of images into it for each class")
    if not folders or loose:
        what = f"{_some(loose)} in no class folder" if loose else "no class folders"
        raise InputError(f"{folder} has {what}: put each image into a folder named as its class")
    names = ClassNames(labels)
    known = {path: names.index(path.name, str(path)) for path in folders}
    others = [path for path, index in known.items() if index is None]
    if others:
        raise InputError(
            f"{folder} has {len(others):,} folders of other classes than the network's ({_some(others)}): name each as "
            f"one of its {len(labels):,} labels, such as {labels[0]!r}, or as an index from 0 to {len(labels) - 1}"
        )
    return {path: index for path, index in known.items() if index is not None}


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        raise InputError(f"{folder} does not exist: give a folder of class folders") from None
    except NotADirectoryError:
        raise InputError(f"{folder} is not a folder: give a folder of class folders") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"{str(folder)!r} cannot be read: {getattr(error, 'strerror', error)}") from error


def _images_of_classes(folders: dict[Path, int]) -> dict[int, list[Path]]:
    files_of: dict[int, list[Path]] = defaultdict(list)
    strays: list[Path] = []
    for folder, index in folders.items():
        files = folder_files(folder)
        if not files:
            raise InputError(f"{folder} holds no images: put some into it, or take it away")
        strays += [path for path in files if path.suffix.lower() not in SUFFIXES]
        files_of[index] += files
    if strays:
        raise InputError(f"{_some(strays)}: {len(strays):,} files in class folders are not images, take them away")
    return files_of


def _check_enough(folder: Path, files_of: dict[int, list[Path]], labels: Sequence[str]) -> None:
    if len(files_of) < LEAST_CLASSES:
        raise InputError(f"{folder} has images of one class only: give at least {LEAST_CLASSES} classes")
    few = [index for index, files in files_of.items() if len(files) < LEAST_OF_A_CLASS]
    if few:
        raise InputError(
            f"{folder} has {len(few):,} classes of fewer than {LEAST_OF_A_CLASS} images, such as {labels[few[0]]!r}: "
            "one is fitted to and one measured on, so give more or take the folder away"
        )
    count = sum(map(len, files_of.values()))
    if count < LEAST_IMAGES:
        raise InputError(f"{folder} has {count} images: give at least {LEAST_IMAGES}, fewer measure nothing")


def _check_memory(folder: Path, count: int, shape: Shape) -> None:
    most = MOST_BYTES // (shape.elements * np.dtype(np.float32).itemsize)
    if count > most:
        raise InputError(f"{folder} has {count:,} images: at most {most:,} of {shape} fit into memory, take some away")


def _some(paths: Sequence[Path]) -> str:
    names = ", ".join(path.name for path in paths[:_NAMED])
    return f"{names} and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else names
