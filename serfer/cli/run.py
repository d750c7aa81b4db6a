"""`serfer run`: images through a split network of any outputs, each of which becomes a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import typer

from serfer.arrays import NPY, Array, encode, file_names, holds, read_npy
from serfer.cli.shared.ask_commands import RunCommand
from serfer.cli.shared.asking import (
    STANDARD_INPUT,
    data_of,
    made_folder,
    names_of,
    print_head,
    print_report,
    query_images,
)
from serfer.cli.shared.display import plain, print_table
from serfer.cli.shared.options import BY_ARGUMENT, kept_url, network_among, opened, plan_directory, print_json
from serfer.cli.shared.schema import settings_of
from serfer.cli.shared.terminal import out
from serfer.core.errors import InputError, UsageError
from serfer.core.exactness import difference
from serfer.core.units import FLOAT_BYTES
from serfer.core.wire import MAX_BATCH
from serfer.files import write_whole
from serfer.pipeline.reference import Run, original
from serfer.settings import load_settings
from serfer.storage import schemes
from serfer.wiring.options import default_workers, workers_of

if TYPE_CHECKING:
    from serfer.core.plan import OutputTensor, Plan
    from serfer.pipeline.blocking import Pipeline

_HEAD = 64 * 1024  # bytes of a .npy file before its values


def run(options: RunCommand, context: typer.Context) -> None:
    images, plan = network_among(options.images, options.plan, options.network)
    images = names_of(images)
    _check(images, options)
    options.check_workers()
    at = plan_directory(plan, options.model, options.stack, options, options.workers, choices=BY_ARGUMENT)
    default = default_workers([at], options.engine, settings_of(context))
    workers = workers_of(options.workers, options.stack, default)
    url = _results_url(options.results, workers) if options.keep else None
    with opened(at, options, workers, options.cache_s, url) as pipeline:
        _check_format(pipeline.plan, options.format)
        folder = made_folder(options.out, "outputs") if options.out else None
        whole = original(pipeline.plan, at) if options.compare else None
        queries = _Queries(options, pipeline, workers, folder, whole)
        failed = (lambda name: {"image": name, "outputs": []}) if options.as_json else None
        code = query_images(images, queries.keep if options.keep else queries.write, failed)
    if code:
        raise typer.Exit(code)


def _check(images: Sequence[str], options: RunCommand) -> None:
    [(stem, count)] = Counter(PurePath(name).stem for name in images).most_common(1)
    if count > 1:
        raise UsageError(f"{count} inputs are called {stem!r}, and their outputs would have the same files: run each")
    if options.out is None and not options.keep:
        raise UsageError("give --out, the folder for outputs, or --keep, which leaves them in the store of results")
    if options.results is not None and not options.keep:
        raise UsageError("--results says where outputs are kept: give --keep too")
    if options.keep and (options.format != NPY or options.compare or options.cache_s > 0):
        raise UsageError("--keep goes without --compare and cache_s, and --out has npy files then")


def _results_url(results: str | None, workers: str) -> str:
    settings = load_settings()
    if "memory" in schemes(results or settings.results or ""):
        raise UsageError("--keep: what lies in memory:// ends with this command: give --results another URL")
    if results or settings.results or workers != "aws":
        return kept_url(results, settings)
    raise UsageError("--keep with functions in AWS: give --results, the URL of the store that they keep results in")


def _check_format(plan: Plan, kind: str) -> None:
    tensors = plan.output_tensors
    if not any(holds(kind, tensor) for tensor in tensors):
        outputs = ", ".join(f"{tensor.name} {list(tensor.dims)}" for tensor in tensors)
        raise UsageError(f"--format {kind} holds none of the outputs {outputs}: write npy")


@dataclass(frozen=True)
class _Queries:
    options: RunCommand
    pipeline: Pipeline
    workers: str
    folder: Path | None
    whole: Run | None

    def write(self, name: str) -> None:
        tensors = self.pipeline.plan.output_tensors
        paths, batch = self._paths(name, tensors), self._input(name)
        answer = self.pipeline.run(batch, deadline_s=self.options.deadline_ms / 1000)
        delta = difference(answer, self.whole(batch)) if self.whole else None
        placed = [*zip(paths, tensors, self.pipeline.last.outputs.values(), strict=True)]
        encoded = [encode(values, path.suffix.removeprefix("."), tensor.name) for path, tensor, values in placed]
        for path, data in zip(paths, encoded, strict=True):
            write_whole(path, data)
        written = [_written(tensor.name, values, path) for path, tensor, values in placed]
        if self.options.as_json:
            compared = {"difference": asdict(delta)} if delta else {}
            print_json({"image": name, "outputs": written, **self._report(), **compared})
            return
        print_head(name, self.pipeline.plan)
        rows = []
        for output in written:
            ends = ("" if output[key] is None else f"{output[key]:.6g}" for key in ("min", "max"))
            rows.append((output["name"], "x".join(map(str, output["shape"])), output["dtype"], *ends, output["file"]))
        print_table(["output", "shape", "type", "min", "max", "file"], rows)
        print_report(self.pipeline, self.workers, delta)

    def keep(self, name: str) -> None:
        from serfer.cli.result import print_result, result_object  # noqa: PLC0415 - most runs keep nothing

        self._paths(name, self.pipeline.plan.output_tensors)  # by which results are kept
        kept = self.pipeline.run_to_result(self._input(name), deadline_s=self.options.deadline_ms / 1000)
        paths: list[str] = []
        if self.folder:
            paths = [str(path) for path in kept.save(self.folder, _stem(name), overwrite=self.options.overwrite)]
        if self.options.as_json:
            files = {"files": paths} if self.folder else {}
            print_json({"image": name, **result_object(kept.manifest), **files, **self._report()})
            return
        print_head(name, self.pipeline.plan)
        print_result(kept.manifest)
        for path in paths:
            out.print(plain(path), soft_wrap=True)
        print_report(self.pipeline, self.workers)

    def _paths(self, name: str, tensors: Sequence[OutputTensor]) -> list[Path]:
        if self.folder is None:
            return []
        files = file_names(_stem(name), tensors, self.options.format)
        paths = [self.folder / file for file in files]
        there = next((path for path in paths if path.exists()), None)
        if there is not None and not self.options.overwrite:
            raise InputError(f"{there} exists: give --overwrite to replace it, or another --out")
        return paths

    def _input(self, name: str) -> Array:
        if PurePath(name).suffix.lower() == f".{NPY}":
            return read_npy(Path(name), _HEAD + MAX_BATCH * self.pipeline.plan.input.elements * FLOAT_BYTES)
        return self.pipeline.pixels([data_of(name)], [name])

    def _report(self) -> dict[str, Any]:
        report = self.pipeline.last_report.as_dict()
        del report["images"]  # of classes
        return report


def _stem(name: str) -> str:
    return "stdin" if name == STANDARD_INPUT else PurePath(name).stem


def _written(name: str, values: Array, path: Path) -> dict[str, Any]:
    least, most = (float(values.min()), float(values.max())) if values.size else (None, None)
    about = {"name": name, "shape": [*values.shape], "dtype": values.dtype.name}
    return {**about, "min": least, "max": most, "file": str(path)}
