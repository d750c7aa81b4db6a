"""The files that a map of an image makes: one for each output of the network, or one with all of them as its bands.

field.tif              of a network with one output
field.NAME.tif         of each output of a network with several, NAME being the output's
field.tif              of several outputs with one_file, where they have one size and type
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import UsageError
from serfer.core.frame_decoder import FrameDecoder
from serfer.core.geometry import Rect
from serfer.core.plan import Plan
from serfer.core.plan.windows import ImageWindows
from serfer.mapping.box_files import BOX_SUFFIXES
from serfer.mapping.boxes import BoxFile, head_of
from serfer.mapping.engine import MapTarget
from serfer.mapping.options import MapOptions
from serfer.mapping.output import ResultForm
from serfer.mapping.report import MapResult
from serfer.raster import RasterSource, ResultOptions, ResultParts, check_result, check_space, write_result
from serfer.raster.place import S3Place, parse_place

_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_MOST_OF_A_NAME = 64
Size = tuple[int, int]
"""Height and width of an image in pixels."""


class MapFile(Protocol):
    """A file that a map makes: where it will be, and the directory of what its windows gave until it is written."""

    @property
    def out(self) -> str: ...

    @property
    def form(self) -> ResultForm: ...

    @property
    def directory(self) -> Path: ...

    def open(self, identity: dict[str, object]) -> ResultParts: ...

    def check(self, *, overwrite: bool) -> None: ...

    def space(self, parts: ResultParts) -> str | None: ...

    def target(self, parts: ResultParts) -> MapTarget: ...

    def write(
        self, out: str, parts: ResultParts, source: RasterSource, size: Size, *, overwrite: bool
    ) -> int | None: ...

    def result(self, size: Size) -> MapResult: ...


@dataclass(frozen=True)
class ResultFile:
    """A file that a map makes: where it will be, its form, and the directory of its parts until it is written."""

    out: str
    form: ResultForm
    directory: Path
    options: ResultOptions

    def open(self, identity: dict[str, object]) -> ResultParts:
        return ResultParts.create_or_resume(self.directory, identity, self.form.array)

    def check(self, *, overwrite: bool) -> None:
        check_result(self.out, self.form.array, self._options(overwrite=overwrite))

    def space(self, parts: ResultParts) -> str | None:
        return check_space(parts, self.out)

    def target(self, parts: ResultParts) -> MapTarget:
        return RasterTarget(self.form, parts)

    def write(self, out: str, parts: ResultParts, source: RasterSource, _size: Size, *, overwrite: bool) -> None:
        georeference, options = self.form.georeference(source), self._options(overwrite=overwrite)
        write_result(out, parts, georeference=georeference, options=options)

    def result(self, _size: Size) -> MapResult:
        array = self.form.array
        return MapResult(self.out, self.form.outputs, array.rows.size, array.cols.size, array.channels, array.dtype)

    def _options(self, *, overwrite: bool) -> ResultOptions:
        return replace(self.options, overwrite=overwrite or self.options.overwrite)


@dataclass(frozen=True)
class RasterTarget:
    """Keeps what windows give as parts of a file."""

    form: ResultForm
    parts: ResultParts

    def covered(self, number: int, size: tuple[int, int]) -> Rect:
        return self.form.covered(number, size)

    def empty(self, missing: NDArray[np.bool_], read: Rect, number: int) -> NDArray[np.bool_]:
        return self.form.empty(missing, read, number)

    def keep(self, number: int, outputs: Mapping[str, NDArray[Any]], empty: NDArray[np.bool_] | None) -> None:
        self.parts.put(number, self.form.part(outputs, number, empty))

    def keep_empty(self, number: int) -> None:
        self.parts.put(number, self.form.empty_part(number))


def is_there(file: MapFile) -> bool:
    where = parse_place(file.out)
    return isinstance(where, Path) and where.is_file()


def result_paths(plan: Plan, out: str, options: MapOptions) -> list[str]:
    return [_path_with_label(out, label) for label in _labels_of_files(plan, out, options)]


def result_files(
    plan: Plan,
    windows: ImageWindows,
    out: str,
    options: MapOptions,
    decoder: Callable[[], FrameDecoder],
    *,
    no_data: bool,
) -> Sequence[MapFile]:
    """Return the files of a result `out` of an image with such windows; `decoder` is that of a plan with boxes.

    Raises UsageError for outputs that cannot be bands of one file, an impossible type, or boxes of a plan without any.
    """
    if (suffix := _suffix(out)) in BOX_SUFFIXES:
        return [_box_file(plan, windows, out, suffix, options, decoder, no_data=no_data)]
    if options.min_score is not None or options.max_iou is not None:
        raise UsageError(f"min_score and max_iou are for boxes, a result that ends in {' or '.join(BOX_SUFFIXES)}")
    numbers = range(len(plan.output_tensors))
    groups = [[*numbers]] if options.one_file else [[number] for number in numbers]
    forms = [ResultForm.of(plan, windows, group, no_data=no_data, options=options) for group in groups]
    if options.dtype is not None and not any(form.whole for form in forms):
        kinds = ", ".join(dict.fromkeys(tensor.dtype for tensor in plan.output_tensors))
        raise UsageError(f"the network's output is {kinds}: dtype is for one of whole numbers")
    return [
        ResultFile(
            _path_with_label(out, label),
            form,
            parts_directory(_path_with_label(out, label), _parts_with_label(options.parts, label)),
            form.options(plan, options),
        )
        for label, form in zip(_labels_of_files(plan, out, options), forms, strict=True)
    ]


def _box_file(
    plan: Plan,
    windows: ImageWindows,
    out: str,
    suffix: str,
    options: MapOptions,
    decoder: Callable[[], FrameDecoder],
    *,
    no_data: bool,
) -> BoxFile:
    if plan.boxes is None:
        raise UsageError(
            f"{out}: the plan's network gives maps and no boxes; of a detector make it with serfer map-plan --output "
            "boxes, and name another suffix for maps"
        )
    if options.one_file or options.dtype is not None:
        raise UsageError(f"one_file and dtype are for maps, not for boxes in {suffix}")
    finest = min(range(len(plan.output_tensors)), key=lambda number: windows.of_output(number).rows.step)
    return BoxFile(
        out,
        suffix,
        ResultForm.of(plan, windows, [finest], no_data=no_data, options=options),
        parts_directory(out, options.parts),
        head_of(plan.boxes, options),
        plan.labels,
        decoder,
        options.overwrite,
    )


def _suffix(out: str) -> str:
    where = parse_place(out)
    return PurePosixPath(where.key if isinstance(where, S3Place) else where.name).suffix.lower()


def parts_directories(plan: Plan, out: str, options: MapOptions) -> list[Path]:
    labels = _labels_of_files(plan, out, options)
    return [parts_directory(_path_with_label(out, label), _parts_with_label(options.parts, label)) for label in labels]


def parts_directory(out: str | Path, chosen: str | None = None) -> Path:
    """Return where the parts of a file are kept: beside it, in the working directory for an object of S3."""
    if chosen is not None:
        return Path(chosen)
    where = parse_place(out)
    if isinstance(where, S3Place):
        return Path(f"{where.bucket}-{where.key.replace('/', '-')}.parts")
    return where.with_name(f"{where.name}.parts")


def _labels_of_files(plan: Plan, out: str, options: MapOptions) -> list[str]:
    """Return what the files are told apart by; an empty text for the only one."""
    if len(plan.output_tensors) == 1 or options.one_file or _suffix(out) in BOX_SUFFIXES:
        return [""]
    return unique_labels([tensor.name for tensor in plan.output_tensors])


def unique_labels(outputs: Sequence[str]) -> list[str]:
    """Return names of outputs as parts of files' names: letters, digits, hyphens and underscores, all different."""
    plain = [_NOT_OF_A_NAME.sub("-", name).strip("-")[-_MOST_OF_A_NAME:] or "output" for name in outputs]
    return [name if plain.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(plain, 1)]


def _parts_with_label(chosen: str | None, label: str) -> str | None:
    return f"{chosen}.{label}" if chosen is not None and label else chosen


def _path_with_label(out: str, label: str) -> str:
    """Return the path of an output's file: its label stands before the suffix."""
    if not label:
        return out
    where = parse_place(out)
    if isinstance(where, S3Place):
        key = PurePosixPath(where.key)
        return replace(where, key=str(key.with_name(f"{key.stem}.{label}{key.suffix}"))).url
    return str(where.with_name(f"{where.stem}.{label}{where.suffix}"))
