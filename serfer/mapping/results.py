"""The files that a map of an image makes: one for each output of the network, or one with all of them as its bands.

field.tif              of a network with one output
field.NAME.tif         of each output of a network with several, NAME being the output's
field.tif              of several outputs with one_file, where they have one size and type
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from serfer.core.errors import UsageError
from serfer.core.frame_decoder import FrameDecoder
from serfer.core.plan import Plan
from serfer.mapping.box_files import BOX_SUFFIXES
from serfer.mapping.boxes import BoxFile, form_and_head, head_of
from serfer.mapping.options import MapOptions
from serfer.mapping.output import ResultForm, result_forms
from serfer.mapping.report import MapResult
from serfer.mapping.steps import MappedImage
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

    @property
    def window_form(self) -> ResultForm:
        return self.form

    def write(self, out: str, parts: ResultParts, source: RasterSource, _size: Size, *, overwrite: bool) -> None:
        georeference, options = self.form.georeference(source), self._options(overwrite=overwrite)
        write_result(out, parts, georeference=georeference, options=options)

    def result(self, _size: Size) -> MapResult:
        return self.form.result(self.out)

    def _options(self, *, overwrite: bool) -> ResultOptions:
        return replace(self.options, overwrite=overwrite or self.options.overwrite)


MapFile = ResultFile | BoxFile
"""A file that a map makes: where it will be, and the directory of what its windows gave until it is written."""


def is_there(file: MapFile) -> bool:
    where = parse_place(file.out)
    return isinstance(where, Path) and where.is_file()


def file_places(plan: Plan, out: str, options: MapOptions) -> list[tuple[str, Path]]:
    outputs = [tensor.name for tensor in plan.output_tensors]
    if len(outputs) == 1 or options.one_file or _suffix(out) in BOX_SUFFIXES:
        return [(out, parts_directory(out, options.parts))]
    return [
        (path, parts_directory(path, options.parts and f"{options.parts}.{label}"))
        for label in unique_labels(outputs)
        for path in [_path_with_label(out, label)]
    ]


def result_files(
    mapped: MappedImage, out: str, options: MapOptions, decoder: Callable[[], FrameDecoder]
) -> Sequence[MapFile]:
    """Return the files of a result `out`; raises UsageError for options that do not go together."""
    if (suffix := _suffix(out)) in BOX_SUFFIXES:
        form, head = form_and_head(mapped)
        head, labels, directory = head_of(head, options), mapped.plan.labels, parts_directory(out, options.parts)
        return [BoxFile(out, suffix, form, directory, head, labels, decoder, options.overwrite)]
    if options.min_score is not None or options.max_iou is not None:
        raise UsageError(f"min_score and max_iou are for boxes, a result that ends in {' or '.join(BOX_SUFFIXES)}")
    places = file_places(mapped.plan, out, options)
    return [
        ResultFile(path, form, directory, form.options(mapped.plan, options))
        for (path, directory), form in zip(places, result_forms(mapped), strict=True)
    ]


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
