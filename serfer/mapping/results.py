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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import UsageError
from serfer.core.frame_decoder import FrameDecoder
from serfer.core.plan import Plan
from serfer.core.plan.windows import ImageWindows
from serfer.mapping.box_files import BOX_SUFFIXES
from serfer.mapping.boxes import BoxFile, head_of
from serfer.mapping.options import MapOptions
from serfer.mapping.output import FormTarget, ResultForm
from serfer.mapping.report import MapResult
from serfer.raster import RasterSource, ResultOptions, ResultParts, check_result, check_space, write_result
from serfer.raster.place import S3Place, parse_place

_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_MOST_OF_A_NAME = 64
Size = tuple[int, int]
"""Height and width of an image in pixels."""


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

    def target(self, parts: ResultParts) -> RasterTarget:
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
class RasterTarget(FormTarget):
    """Keeps what windows give as parts of a file."""

    parts: ResultParts

    def keep(self, number: int, outputs: Mapping[str, NDArray[Any]], empty: NDArray[np.bool_] | None) -> None:
        self.parts.put(number, self.form.part(outputs, number, empty))

    def keep_empty(self, number: int) -> None:
        self.parts.put(number, self.form.empty_part(number))


MapFile = ResultFile | BoxFile
"""A file that a map makes: where it will be, and the directory of what its windows gave until it is written."""


def is_there(file: MapFile) -> bool:
    where = parse_place(file.out)
    return isinstance(where, Path) and where.is_file()


def file_places(plan: Plan, out: str, options: MapOptions) -> list[tuple[str, Path]]:
    """Return the path of each file of a result `out`, and the directory of its parts."""
    outputs = [tensor.name for tensor in plan.output_tensors]
    if len(outputs) == 1 or options.one_file or _suffix(out) in BOX_SUFFIXES:
        return [(out, parts_directory(out, options.parts))]
    return [
        (path, parts_directory(path, options.parts and f"{options.parts}.{label}"))
        for label in unique_labels(outputs)
        for path in [_path_with_label(out, label)]
    ]


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
        ResultFile(path, form, directory, form.options(plan, options))
        for (path, directory), form in zip(file_places(plan, out, options), forms, strict=True)
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


def parts_directory(out: str | Path, chosen: str | None = None) -> Path:
    """Return where the parts of a file are kept: beside it, in the working directory for an object of S3."""
    if chosen is not None:
        return Path(chosen)
    where = parse_place(out)
    if isinstance(where, S3Place):
        return Path(f"{where.bucket}-{where.key.replace('/', '-')}.parts")
    return where.with_name(f"{where.name}.parts")


def unique_labels(outputs: Sequence[str]) -> list[str]:
    """Return names of outputs as parts of files' names: letters, digits, hyphens and underscores, all different."""
    plain = [_NOT_OF_A_NAME.sub("-", name).strip("-")[-_MOST_OF_A_NAME:] or "output" for name in outputs]
    return [name if plain.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(plain, 1)]


def _path_with_label(out: str, label: str) -> str:
    where = parse_place(out)
    if isinstance(where, S3Place):
        key = PurePosixPath(where.key)
        return replace(where, key=str(key.with_name(f"{key.stem}.{label}{key.suffix}"))).url
    return str(where.with_name(f"{where.stem}.{label}{where.suffix}"))
