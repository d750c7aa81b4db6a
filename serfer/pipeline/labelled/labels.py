"""Labelled images, to measure accuracy on: a folder for each class, or a list next to the images.

DIR/tabby cat/1.jpg      a folder is a class: its name as in the labels ("Tabby_cat" is the same), or its index
DIR/281/deeper/2.png

DIR/labels.csv           file,label
                         photos/1.jpg,tabby cat
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ImageError, InputError
from serfer.core.plan import Plan
from serfer.core.plan.class_names import ClassNames
from serfer.core.variants import Validation
from serfer.files import read_text
from serfer.images import SUFFIXES, DecodedImage, Recipe, decode_image, folder_files, read_image, stacked
from serfer.plan_directory import file_sha256

LIST_FILE: Final = "labels.csv"
MOST_IMAGES: Final = 50_000
"""Images of a set: as many as ImageNet's validation set has."""
MOST_BYTES: Final = 4 * 1024**3
"""Bytes of a set's decoded pixels."""
_MOST_LIST_BYTES: Final = 64 * 1024 * 1024
_HEADER: Final = ["file", "label"]
_NAMED: Final = 3  # of several wrong things, a message names so many


@dataclass(frozen=True)
class LabelledFile:
    """An image file and what its label says, a class's name or index; `where` the label stands, for messages."""

    path: Path
    label: str
    where: str


@dataclass(frozen=True)
class LabelledImages:
    """Image files and the index of each one's class, of a network with so many `classes`."""

    files: tuple[Path, ...]
    indices: tuple[int, ...]
    classes: int

    def __len__(self) -> int:
        return len(self.files)

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.array(self.indices, dtype=np.int64)

    @property
    def absent(self) -> list[int]:
        return sorted(set(range(self.classes)).difference(self.indices))

    def validation(self) -> Validation:
        """Return the set's record: a digest of what its images and labels are, whatever the files are called."""
        pairs = sorted(f"{file_sha256(path)} {index}" for path, index in zip(self.files, self.indices, strict=True))
        return Validation(hashlib.sha256("\n".join(pairs).encode()).hexdigest(), len(self.files), self.classes)

    def pixels(self, recipe: Recipe, batch: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the images as (N, H, W, C) uint8, at most `batch` at a time; raises ImageError that names one."""
        for at in range(0, len(self.files), batch):
            files = self.files[at : at + batch]
            yield stacked([_decoded(path, recipe) for path in files], [*map(str, files)])


def read_labelled(directory: Path, plan: Plan) -> LabelledImages:
    """Return a directory's labelled images, for the network of a plan.

    Raises InputError for a directory that is neither of both kinds, is empty or too large, whose labels the network
    does not know, or whose files are missing.
    """
    return resolved(directory, listed(directory), plan)


def listed(directory: Path) -> list[LabelledFile]:
    if not directory.is_dir():
        what = "is not a folder" if directory.exists() else "does not exist"
        raise InputError(f"{directory} {what}: give a folder of class folders, or one with a {LIST_FILE}")
    files = _of_list(directory) if (directory / LIST_FILE).exists() else _of_folders(directory)
    if not files:
        raise InputError(f"{directory} has no labelled images: put one folder of images into it for each class")
    if len(files) > MOST_IMAGES:
        raise InputError(f"{directory} has {len(files):,} images: at most {MOST_IMAGES:,} are read, take some away")
    return files


def resolved(directory: Path, files: Sequence[LabelledFile], plan: Plan) -> LabelledImages:
    """Return a directory's files with their classes, of the network of a plan.

    Raises InputError that names labels which the network does not know, and those that it knows.
    """
    labels, classes, elements = plan.labels, plan.output.width, plan.input.elements
    if len(files) * elements > MOST_BYTES:
        most = MOST_BYTES // elements
        raise InputError(f"{directory} has {len(files):,} images: at most {most:,} of this size fit, take some away")
    names = ClassNames(labels or [str(index) for index in range(classes)])
    found = {file.label: names.index(file.label, file.where) for file in files}
    if unknown := [label for label, index in found.items() if index is None]:
        known = f"indices from 0 to {classes - 1}"
        if labels:
            known = f"{_some(labels)}, or {known}"
        raise InputError(f"{directory} has labels that the network does not know, {_some(unknown)}: it knows {known}")
    indices = tuple(index for file in files if (index := found[file.label]) is not None)
    return LabelledImages(tuple(file.path for file in files), indices, classes)


def _of_folders(directory: Path) -> list[LabelledFile]:
    entries = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    folders = [path for path in entries if path.is_dir()]
    loose = [path.name for path in entries if path.suffix.lower() in SUFFIXES and not path.is_dir()]
    if loose:
        raise InputError(
            f"{directory} has images in no class folder, {_some(loose)}: put each into a folder named as its class, or "
            f"write a {LIST_FILE}"
        )
    files = []
    for folder in folders:
        images = folder_files(folder)
        if not images:
            raise InputError(f"{folder} holds no images: put some into it, or take it away")
        if strays := [path.name for path in images if path.suffix.lower() not in SUFFIXES]:
            raise InputError(f"{folder} has files that are not images, {_some(strays)}: take them away")
        files += [LabelledFile(path, folder.name, str(folder)) for path in images]
    return files


def _of_list(directory: Path) -> list[LabelledFile]:
    path = directory / LIST_FILE
    rows = csv.reader(read_text(path, _MOST_LIST_BYTES).splitlines())
    try:
        if [cell.strip() for cell in next(rows, [])] != _HEADER:
            raise InputError(f"{path} does not begin with the line {','.join(_HEADER)}")
        files = [_listed_file(directory, row, f"{path}, line {rows.line_num}") for row in rows if row]
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num} is not CSV: {error}") from error
    seen: set[Path] = set()
    for file in files:
        if file.path in seen:
            raise InputError(f"{file.where} names {file.path.name} again: an image has one label")
        seen.add(file.path)
    if missing := [str(file.path.relative_to(directory)) for file in files if not file.path.is_file()]:
        raise InputError(f"{path} names files that do not exist, {_some(missing)}: names are relative to its folder")
    return files


def _listed_file(directory: Path, row: Sequence[str], where: str) -> LabelledFile:
    if len(row) != len(_HEADER):
        raise InputError(f"{where} has {len(row)} values: write {','.join(_HEADER)}")
    name, label = (cell.strip() for cell in row)
    inside = PurePosixPath(name)
    outside = inside.is_absolute() or ".." in inside.parts or "\0" in name or not name
    if outside or not (directory / name).resolve().is_relative_to(directory.resolve()):
        raise InputError(f"{where} names {name!r:.80}, which is not in {directory}: keep the images beside the list")
    return LabelledFile(directory / name, label, where)


def _decoded(path: Path, recipe: Recipe) -> DecodedImage:
    try:
        return decode_image(read_image(path, recipe.limits), str(path), recipe)
    except ImageError as error:
        raise type(error)(f"{error}: replace the validation image, or take it away") from error


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name)[:80] for name in names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED:,} more" if len(names) > _NAMED else shown
