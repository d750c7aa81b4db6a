"""The files that a map of an image makes: one for each output of the network, or one with all of them as its bands.

field.tif              of a network with one output
field.NAME.tif         of each output of a network with several, NAME being the output's
field.tif              of several outputs with --one-file, where they have one size and type
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import UsageError
from serfer.core.geometry import Rect
from serfer.core.plan import Plan
from serfer.core.plan.windows import ImageWindows
from serfer.mapping.options import MapOptions
from serfer.mapping.output import ResultForm
from serfer.raster import ResultParts
from serfer.raster.place import S3Place, parse_place

_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_MOST_OF_A_NAME = 64


@dataclass(frozen=True)
class ResultFile:
    """A file that a map makes: where it will be, its form, and the directory of its parts until it is written."""

    out: str
    form: ResultForm
    directory: Path

    @property
    def is_there(self) -> bool:
        """Whether a file stands at its place."""
        where = parse_place(self.out)
        return isinstance(where, Path) and where.is_file()


@dataclass(frozen=True)
class RasterTarget:
    """Keeps what windows give as parts of a file."""

    form: ResultForm
    parts: ResultParts

    def covered(self, number: int, size: tuple[int, int]) -> Rect:
        """Return the pixels of an image of `size` that a window reads or its part of the result covers."""
        return self.form.covered(number, size)

    def empty(self, missing: NDArray[np.bool_], read: Rect, number: int) -> NDArray[np.bool_]:
        """Return which of a window's pixels have no data, where `missing` ones of `read`, all they cover, have none."""
        return self.form.empty(missing, read, number)

    def keep(self, number: int, outputs: Mapping[str, NDArray[Any]], empty: NDArray[np.bool_] | None) -> None:
        """Keep the outputs of a window, of which `empty` pixels have no data; raises as `ResultForm.part`."""
        self.parts.put(number, self.form.part(outputs, number, empty))

    def keep_empty(self, number: int) -> None:
        """Keep that a window has no data."""
        self.parts.put(number, self.form.empty_part(number))


def result_places(plan: Plan, out: str, options: MapOptions) -> list[str]:
    """Return where the files of a result `out` will be."""
    return [_named(out, name) for name in _names(plan, options)]


def result_files(
    plan: Plan, windows: ImageWindows, out: str, options: MapOptions, *, no_data: bool
) -> tuple[ResultFile, ...]:
    """Return the files of a result `out` of an image with such windows.

    Raises UsageError for outputs that cannot be bands of one file, or an impossible type.
    """
    numbers = range(len(plan.output_tensors))
    groups = [[*numbers]] if options.one_file else [[number] for number in numbers]
    forms = [ResultForm.of(plan, windows, group, no_data=no_data, options=options) for group in groups]
    if options.dtype is not None and not any(form.whole for form in forms):
        kinds = ", ".join(dict.fromkeys(tensor.dtype for tensor in plan.output_tensors))
        raise UsageError(f"the network's output is {kinds}: --dtype is for one of whole numbers")
    return tuple(
        ResultFile(_named(out, name), form, parts_directory(_named(out, name), _parts(options.parts, name)))
        for name, form in zip(_names(plan, options), forms, strict=True)
    )


def parts_directories(plan: Plan, out: str, options: MapOptions) -> list[Path]:
    """Return where the finished windows of a result `out` are kept until its files are written."""
    return [parts_directory(_named(out, name), _parts(options.parts, name)) for name in _names(plan, options)]


def parts_directory(out: str | Path, chosen: str | None = None) -> Path:
    """Return where the parts of a file are kept: beside it, in the working directory for an object of S3."""
    if chosen is not None:
        return Path(chosen)
    where = parse_place(out)
    if isinstance(where, S3Place):
        return Path(f"{where.bucket}-{where.key.replace('/', '-')}.parts")
    return where.with_name(f"{where.name}.parts")


def _names(plan: Plan, options: MapOptions) -> list[str]:
    """Return what the files are told apart by; an empty text for the only one."""
    if len(plan.output_tensors) == 1 or options.one_file:
        return [""]
    return file_names([tensor.name for tensor in plan.output_tensors])


def file_names(outputs: Sequence[str]) -> list[str]:
    """Return names of outputs as parts of files' names: letters, digits, hyphens and underscores, all different."""
    plain = [_NOT_OF_A_NAME.sub("-", name).strip("-")[-_MOST_OF_A_NAME:] or "output" for name in outputs]
    return [name if plain.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(plain, 1)]


def _parts(chosen: str | None, name: str) -> str | None:
    return f"{chosen}.{name}" if chosen is not None and name else chosen


def _named(out: str, name: str) -> str:
    """Return the place of the file of an output: its name stands before the suffix."""
    if not name:
        return out
    where = parse_place(out)
    if isinstance(where, S3Place):
        key = PurePosixPath(where.key)
        return replace(where, key=str(key.with_name(f"{key.stem}.{name}{key.suffix}"))).url
    return str(where.with_name(f"{where.stem}.{name}{where.suffix}"))
