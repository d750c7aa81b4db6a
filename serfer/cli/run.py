"""`serfer run`: images through a split network of any outputs, each of which becomes a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import typer

from serfer.arrays import FORMATS, NPY, Array, encode, file_names, holds, read_npy
from serfer.cli.shared.ask_commands import RunCommand
from serfer.cli.shared.asking import STANDARD_INPUT, data_of, query_images
from serfer.cli.shared.display import columns, plain
from serfer.cli.shared.network_options import FileOptions
from serfer.cli.shared.options import (
    BY_ARGUMENT,
    kept_url,
    network_among,
    opened,
    plan_directory,
    print_json,
)
from serfer.cli.shared.report import print_difference, print_report
from serfer.cli.shared.terminal import out
from serfer.core.errors import InputError, UsageError
from serfer.core.exactness import difference
from serfer.core.units import FLOAT_BYTES
from serfer.core.wire import MAX_BATCH
from serfer.files import write_whole
from serfer.pipeline.reference import Run, original
from serfer.settings import load_settings
from serfer.storage import schemes
from serfer.wiring.options import workers_of

if TYPE_CHECKING:
    from serfer.core.exactness import Difference
    from serfer.core.plan import Plan
    from serfer.pipeline.blocking import Pipeline

_HEAD = 64 * 1024  # bytes of a .npy file before its values


@dataclass(frozen=True)
class WrittenOutput:
    """An output as it was written: its shape with the images, and its least and largest value, None of no values."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    min: float | None
    max: float | None
    file: str


@dataclass(frozen=True)
class _Files:
    """The names of what is written: an input's stem and the output's name in `folder`."""

    folder: Path
    kind: str
    overwrite: bool

    def of(self, name: str, plan: Plan) -> list[Path]:
        stem = "stdin" if name == STANDARD_INPUT else PurePath(name).stem
        return [self.folder / file for file in file_names(stem, plan.output_tensors, self.kind)]

    def check(self, paths: Sequence[Path]) -> None:
        there = next((path for path in paths if path.exists()), None)
        if there is not None and not self.overwrite:
            raise InputError(f"{there} exists: give --overwrite to replace it, or another --out")


def run(options: RunCommand, _context: typer.Context) -> None:
    images, plan = network_among(options.images, options.plan)
    _check(images, options.kind)
    file = FileOptions.read(options)
    _check_keep(
        options.out,
        options.results,
        keep=options.keep,
        other=options.kind != NPY or options.compare or options.cache_s > 0,
    )
    at = plan_directory(plan, options.model, options.stack, file, options.workers, choices=BY_ARGUMENT)
    url = _results_url(options.results, options.workers, options.stack) if options.keep else None
    workers = workers_of(options.workers, options.stack, "local")
    deadline_s = options.deadline_ms / 1000
    with opened(at, options, workers, options.cache_s, url) as pipeline:
        _check_format(pipeline.plan, options.kind)
        files = _Files(_made(options.out), options.kind, options.overwrite) if options.out else None
        whole = original(pipeline.plan, at) if options.compare else None

        def query(name: str) -> None:
            if options.keep or files is None:
                _keep(pipeline, name, files, deadline_s, workers, as_json=options.as_json)
                return
            written, delta = _run(pipeline, name, files, deadline_s, whole)
            if options.as_json:
                _print_json(pipeline, name, written, delta)
            else:
                _print(pipeline, name, written, delta, workers)

        code = query_images(images, query, (lambda name: {"image": name, "outputs": []}) if options.as_json else None)
    if code:
        raise typer.Exit(code)


def _check(images: Sequence[str], kind: str) -> None:
    """Raise UsageError for what could not be done with any plan."""
    if kind not in FORMATS:
        raise UsageError(f"--format is {', '.join(FORMATS)}, not {kind!r}")
    if images.count(STANDARD_INPUT) > 1:
        raise UsageError("standard input can be read only once")
    [(stem, count)] = Counter(PurePath(name).stem for name in images).most_common(1)
    if count > 1:
        raise UsageError(f"{count} inputs are called {stem!r}, and their outputs would have the same files: run each")


def _check_keep(directory: Path | None, results: str | None, *, keep: bool, other: bool) -> None:
    """Raise UsageError where nobody says where outputs go, and for what kept outputs have not."""
    if directory is None and not keep:
        raise UsageError("give --out, the folder for outputs, or --keep, which leaves them in the store of results")
    if results is not None and not keep:
        raise UsageError("--results says where outputs are kept: give --keep too")
    if keep and other:
        raise UsageError("--keep goes without --compare and --cache-s, and --out has npy files then")


def _results_url(results: str | None, workers: str | None, stack: str | None) -> str:
    """Return the URL of the store of results; functions in AWS cannot write to this machine's."""
    settings = load_settings()
    if "memory" in schemes(results or settings.results or ""):
        raise UsageError("--keep: what lies in memory:// ends with this command: give --results another URL")
    if results or settings.results or workers_of(workers, stack, "local") != "aws":
        return kept_url(results, settings)
    raise UsageError("--keep with functions in AWS: give --results, the URL of the store that they keep results in")


def _keep(
    pipeline: Pipeline, name: str, files: _Files | None, deadline_s: float, workers: str, *, as_json: bool
) -> None:
    """Answer one query whose outputs are kept, and print where they are."""
    from serfer.cli.result import print_result, result_object  # noqa: PLC0415 - most runs keep nothing

    if files:
        files.check(files.of(name, pipeline.plan))
    kept = pipeline.run_to_result(_input(pipeline, name), deadline_s=deadline_s)
    stem = "stdin" if name == STANDARD_INPUT else PurePath(name).stem
    paths = [str(path) for path in kept.save(files.folder, stem, overwrite=files.overwrite)] if files else []
    if as_json:
        report = pipeline.last_report.as_dict()
        del report["images"]
        print_json({"image": name, **result_object(kept.manifest), **({"files": paths} if files else {}), **report})
        return
    out.print(f"[bold]{plain(PurePath(name).name)}[/]")
    print_result(kept.manifest)
    for path in paths:
        out.print(plain(path), soft_wrap=True)
    print_report(pipeline.last_report, pipeline.plan, workers)
    out.print()


def _check_format(plan: Plan, kind: str) -> None:
    tensors = plan.output_tensors
    if not any(holds(kind, tensor) for tensor in tensors):
        outputs = ", ".join(f"{tensor.name} {list(tensor.dims)}" for tensor in tensors)
        raise UsageError(f"--format {kind} holds none of the outputs {outputs}: write npy")


def _made(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(directory)!r} cannot be a folder for outputs: {reason}") from error
    return directory


def _run(
    pipeline: Pipeline, name: str, files: _Files, deadline_s: float, whole: Run | None
) -> tuple[list[WrittenOutput], Difference | None]:
    """Answer one query, write its outputs, and compare them with the unsplit model's where that is wanted."""
    paths = files.of(name, pipeline.plan)
    files.check(paths)
    batch = _input(pipeline, name)
    answer = pipeline.run(batch, deadline_s=deadline_s)
    delta = difference(answer, whole(batch)) if whole else None
    outputs = pipeline.last.outputs
    encoded = [
        encode(values, path.suffix.removeprefix("."), output)
        for path, (output, values) in zip(paths, outputs.items(), strict=True)
    ]
    for path, data in zip(paths, encoded, strict=True):
        write_whole(path, data)
    return [
        _written(output, values, path) for path, (output, values) in zip(paths, outputs.items(), strict=True)
    ], delta


def _written(name: str, values: Array, path: Path) -> WrittenOutput:
    least, most = (float(values.min()), float(values.max())) if values.size else (None, None)
    return WrittenOutput(name, values.shape, values.dtype.name, least, most, str(path))


def _input(pipeline: Pipeline, name: str) -> Array:
    """Return what a query is run on: the array of a .npy file, or an image's pixels."""
    if PurePath(name).suffix.lower() == f".{NPY}":
        return read_npy(Path(name), _HEAD + MAX_BATCH * pipeline.plan.input.elements * FLOAT_BYTES)
    return pipeline.pixels([data_of(name)], [name])


def _print_json(pipeline: Pipeline, name: str, written: Sequence[WrittenOutput], delta: Difference | None) -> None:
    report = pipeline.last_report.as_dict()
    del report["images"]  # of classes
    line: dict[str, Any] = {"image": name, "outputs": [asdict(output) for output in written], **report}
    if delta is not None:
        line["difference"] = {"error": delta.error, "same_top": delta.same_top}
    print_json(line)


def _print(
    pipeline: Pipeline, name: str, written: Sequence[WrittenOutput], delta: Difference | None, workers: str
) -> None:
    plan = pipeline.plan
    out.print(f"[bold]{plain(PurePath(name).name)}[/]  {plain(plan.model)}, weights: {plain(plan.weights)}")
    table = columns("output", "shape", "type", "min", "max", "file")
    for output in written:
        shape = "x".join(map(str, output.shape))
        table.add_row(
            *(plain(output.name), shape, output.dtype, _number(output.min), _number(output.max), plain(output.file))
        )
    out.print(table)
    print_report(pipeline.last_report, pipeline.plan, workers)
    print_difference(delta)
    out.print()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
