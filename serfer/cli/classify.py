"""`serfer classify`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import typer

from serfer.cli.shared.ask_commands import ClassifyCommand
from serfer.cli.shared.display import plain
from serfer.cli.shared.network_options import FileOptions
from serfer.cli.shared.options import (
    BY_ARGUMENT,
    demo_model,
    network_among,
    opened,
    plan_directory,
    print_json,
)
from serfer.cli.shared.report import print_report
from serfer.cli.shared.setting_options import settings_of
from serfer.cli.shared.terminal import complain, err, out
from serfer.control.throttle import Thresholds
from serfer.core.errors import ImageError, SerferError, UsageError
from serfer.core.exactness import difference
from serfer.core.plan import ImageLimits
from serfer.images import check_image, image_files
from serfer.offline.gate import OfflineGate
from serfer.offline.load_source import ServiceLoad, service_loads
from serfer.pipeline.reference import original
from serfer.pipeline.result import Result
from serfer.pipeline.trace import check_trace, write_trace
from serfer.plan_directory import is_network
from serfer.settings import Settings, load_settings
from serfer.splitter.network.zoo import ZOO
from serfer.wiring.options import workers_of

if TYPE_CHECKING:
    from serfer.core.exactness import Difference
    from serfer.core.plan import Plan
    from serfer.core.report import QueryReport
    from serfer.pipeline.blocking import Pipeline


def classify(options: ClassifyCommand, context: typer.Context) -> None:
    """Ask a network about images, and print or write what it answers."""
    images, plan = network_among(options.images, options.plan)
    model = demo_model(options.demo, options.model, plan) or options.model
    file = FileOptions.read(options)
    settings, limits = settings_of(context), Thresholds(options.yield_utilisation, options.yield_latency)
    sources = service_loads(options.yield_to, settings.yield_key.get_secret_value())
    names = names_of(images)
    if options.trace is not None:
        check_trace(options.trace)
    # a plan is made first: what is wrong with images is said before that
    made = model is not None or (plan is not None and is_network(plan))
    _check_some(names if made else [], settings)
    directory = plan_directory(plan, model, options.stack, file, options.workers, choices=f"{BY_ARGUMENT}; or --demo")
    traced: list[tuple[str, Result]] = []
    failures: list[SerferError] = []
    workers = workers_of(options.workers, options.stack, "local")
    with (
        opened(
            directory, options.store, workers, options.driver, options.object_store, options.cache_s, options.stack
        ) as pipeline,
        _yielding(pipeline, sources, limits) as turns,
    ):
        whole = original(pipeline.plan, directory) if options.compare else None
        for name in names:
            try:
                data = data_of(name)
                with turns.take():
                    pipeline.classify([data], names=[name], top_k=options.top_k, deadline_s=options.deadline_ms / 1000)
                delta = difference(pipeline.last.logits, whole(pipeline.pixels([data]))) if whole else None
            except SerferError as error:
                complain(error)
                failures.append(error)
                if options.as_json:
                    print_json({"images": [{"name": name, "predictions": []}], "error": str(error)})
                continue
            if options.as_json:
                print_json(pipeline.last_report.as_dict())
            else:
                _print_answer(pipeline.plan, pipeline.last_report, delta, workers)
            if options.trace is not None:
                traced.append((name, pipeline.last))
        if options.demo and not options.as_json:
            _print_demo(pipeline.plan)
    if options.trace is not None and traced:
        _write_trace(options.trace, traced)
    if failures:
        raise typer.Exit(failures[0].exit_code)


def _print_demo(plan: Plan) -> None:
    """Say how to see the demo's network in tiles, where the planner has left it whole."""
    if plan.tasks == 1:
        out.print(
            f"{plain(plan.model)} is whole, as serfer split advises: tiles are slower at this size "
            f"(docs/explanation/when-to-split.md). To see them: serfer split {plain(plan.model)} --grids "
            f"{','.join(ZOO[plan.model].grids)} --out tiles, then serfer classify tiles IMAGE --compare",
            soft_wrap=True,
        )


def names_of(images: Sequence[str]) -> list[str]:
    """Return the images that are meant; raises UsageError where standard input is given twice."""
    if images.count("-") > 1:
        raise UsageError("standard input can be read only once")
    return [*_named(images)]


def _named(images: Sequence[str]) -> Iterator[str]:
    """Yield the images that are meant, those of folders by their paths; a folder without images stands for itself."""
    for image in images:
        if image != "-" and Path(image).is_dir():
            try:
                yield from map(str, image_files(Path(image)))
            except ImageError:
                yield image
        else:
            yield image


def _check_some(names: Sequence[str], settings: Settings) -> None:
    """Raise the first image's ImageError where there is no image that can be read."""
    limits = ImageLimits(settings.max_image_bytes, settings.max_image_pixels)
    first: ImageError | None = None
    for name in names:
        try:
            if name == "-":
                return
            if Path(name).is_dir():
                image_files(Path(name))
            check_image(Path(name), limits)
        except ImageError as error:
            first = first or error
        else:
            return
    if first is not None:
        raise first


def data_of(name: str) -> bytes | Path:
    """Return what an image's name stands for; raises ImageError for a folder without images."""
    if name == "-":
        return standard_input()
    if Path(name).is_dir():
        image_files(Path(name))
    return Path(name)


class _Turns:
    """The turns of images: at once, or when the online load of other services leaves room."""

    def __init__(self, gate: OfflineGate | None) -> None:
        self._gate = gate

    @contextmanager
    def take(self) -> Iterator[None]:
        if self._gate is None:
            yield
            return
        if reason := self._gate.reason:
            complain(f"paused: {reason}")
        with self._gate.task():
            yield


@contextmanager
def _yielding(pipeline: Pipeline, sources: Sequence[ServiceLoad], limits: Thresholds) -> Iterator[_Turns]:
    """Yield to services, if there are any, within the block."""
    if not sources:
        yield _Turns(None)
        return

    def refused() -> int:
        load = pipeline.function_load()
        return load.throttled if load else 0

    gate = OfflineGate(sources, limits=limits, refused=refused)
    with gate.watching():
        yield _Turns(gate)


def _write_trace(path: Path, queries: Sequence[tuple[str, Result]]) -> None:
    write_trace(path, queries)
    err.print(f"wrote {plain(str(path))}: open it in chrome://tracing or at https://ui.perfetto.dev", soft_wrap=True)


def standard_input() -> bytes:
    """Return an image from standard input, of at most one byte more than is accepted."""
    return sys.stdin.buffer.read(load_settings().max_image_bytes + 1)


def _print_answer(plan: Plan, report: QueryReport, delta: Difference | None, workers: str) -> None:
    """Print one query's answer: classes, stages, dollars, and how far it is from the unsplit model's."""
    for image in report.images:
        out.print(f"[bold]{plain(PurePath(image.name).name)}[/]  {plain(plan.model)}, weights: {plain(plan.weights)}")
        shares = all(0 <= prediction.score <= 1 for prediction in image.predictions)  # else the network's own numbers
        for prediction in image.predictions:
            score = f"{prediction.score:8.2%}" if shares else f"{prediction.score:8.4g}"
            out.print(f"  {score}  {plain(prediction.label)}")
    print_report(report, plan, workers)
    if delta is not None:
        same = "same first class" if delta.same_top else "ANOTHER first class"
        out.print(f"difference from the unsplit model: {delta.error:.1e} of the logits' range, {same}")
    out.print()
