"""Shared by the commands that ask a network about images: the images, a query of each, and what is printed of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from serfer.cli.shared.display import byte_size, plain, print_table, styled
from serfer.cli.shared.options import print_json
from serfer.cli.shared.terminal import complain, out
from serfer.control.throttle import Thresholds
from serfer.core.errors import ImageError, InputError, SerferError, UsageError
from serfer.images import check_image, image_files
from serfer.offline.gate import OfflineGate
from serfer.settings import Settings, load_settings

if TYPE_CHECKING:
    from serfer.core.exactness import Difference
    from serfer.core.plan import Plan
    from serfer.core.report import QueryReport
    from serfer.offline.load_source import ServiceLoad
    from serfer.pipeline.blocking import Pipeline

STANDARD_INPUT = "-"
_QUERIES = 1_000_000


def query_images(
    names: Sequence[str], query: Callable[[str], None], failed: Callable[[str], Mapping[str, Any]] | None
) -> int:
    """Query each image, go on where one fails, and return the exit code of the first failure, 0 for none.

    With --json, `failed` returns what is printed of such an image beside its error.
    """
    failures: list[SerferError] = []
    for name in names:
        try:
            query(name)
        except SerferError as error:
            complain(error if name in str(error) else f"{name}: {error}")
            failures.append(error)
            if failed is not None:
                print_json({**failed(name), "error": str(error)})
    return failures[0].exit_code if failures else 0


def names_of(images: Sequence[str]) -> list[str]:
    """Return the images that are meant, those of folders by their paths; a folder without images stands for itself.

    Raises UsageError where standard input is given twice.
    """
    if images.count(STANDARD_INPUT) > 1:
        raise UsageError("standard input can be read only once")
    names: list[str] = []
    for image in images:
        try:
            names += map(str, image_files(Path(image))) if image != STANDARD_INPUT and Path(image).is_dir() else [image]
        except ImageError:
            names.append(image)
    return names


def check_some(names: Sequence[str], settings: Settings) -> None:
    """Raise the first image's ImageError where there is no image that can be read."""
    limits = settings.image_limits()
    first: ImageError | None = None
    for name in names:
        try:
            if name == STANDARD_INPUT:
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
    if name == STANDARD_INPUT:  # at most one byte more than is accepted
        return sys.stdin.buffer.read(load_settings().max_image_bytes + 1)
    if Path(name).is_dir():
        image_files(Path(name))
    return Path(name)


def made_folder(folder: Path, what: str) -> Path:
    """Make a folder for outputs, say, where it is not there; raises InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(folder)!r} cannot be a folder for {what}: {reason}") from error
    return folder


@contextmanager
def yielding(
    pipeline: Pipeline, sources: Sequence[ServiceLoad], limits: Thresholds
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    if not sources:
        yield nullcontext
        return

    def refused() -> int:
        load = pipeline.function_load()
        return load.throttled if load else 0

    gate = OfflineGate(sources, limits=limits, refused=refused)

    def turn() -> AbstractContextManager[None]:
        if reason := gate.reason:
            complain(f"paused: {reason}")
        return gate.task()

    with gate.watching():
        yield turn


def print_head(name: str, plan: Plan, said: str = "") -> None:
    out.print(styled(PurePath(name).name), f" {plain(plan.model)}, weights: {plain(plan.weights)}{said}")


def print_report(pipeline: Pipeline, workers: str, delta: Difference | None = None) -> None:
    """Print the last query's stages and dollars, and its difference from the unsplit model."""
    report = pipeline.last_report
    if report.target == "cache":
        out.print(f"{report.latency_ms:.1f} ms, from the cache: nothing ran")
    elif report.target == "gpu":
        out.print(f"{report.latency_ms:.1f} ms, on an instance of the pool: ${report.cost_usd:.8f} of what it costs")
    else:
        _print_stages(report)
        out.print(_dollars(report, pipeline.plan, workers))
    if delta is not None:
        same = "same first class" if delta.same_top else "ANOTHER first class"
        out.print(f"difference from the unsplit model: {delta.error:.1e} of the outputs' range, {same}")
    out.print()


def _print_stages(report: QueryReport) -> None:
    heads = ["stage", "grid", "tasks", "ms", "start", "bytes in", "bytes out"]
    rows = []
    for stage in report.stages:
        start, moved = f"{stage.cold} cold" if stage.cold else "warm", (stage.bytes_in, stage.bytes_out)
        rows.append([stage.name, stage.grid, str(stage.tasks), f"{stage.ms:.1f}", start, *map(byte_size, moved)])
        if stage.gang is not None:
            rows[-1] += [f"stage-{stage.gang}", byte_size(stage.bytes_exchanged), f"{stage.wait_ms:.1f} ms"]
    gangs = any(stage.gang is not None for stage in report.stages)
    print_table([*heads, "gang", "exchanged", "waited"] if gangs else heads, rows)
    store = report.store
    out.print(
        f"{report.latency_ms:.0f} ms; store: {byte_size(store.bytes_put)} written, {byte_size(store.bytes_get)} read, "
        f"{store.exists} polls; {report.retries} retries"
        + (f", {report.restarts} restarts" if report.restarts else "")
        + (f", {report.disbanded} gangs disbanded" if report.disbanded else "")
        + (f", environments warmed: {report.warm_ups}" if report.warm_ups else "")
    )
    if report.plan_reason:
        out.print(f"plan {report.plan[:12]}: {plain(report.plan_reason)}")
    if gangs:
        out.print(f"gangs: members waited {report.wait_gb_s:.4f} GB-seconds for one another")


def _dollars(report: QueryReport, plan: Plan, workers: str) -> str:
    """Return what a query costs: of this machine, predicted, as its times at Lambda's prices would be no price."""
    predicted = "nothing is predicted: the plan has no explanation.json"
    if (usd := plan.predicted_usd) is not None:
        predicted = f"${usd * _QUERIES:.2f} for a million queries of one image on Lambda, warm, as predicted"
    cold, tasks = sum(stage.cold for stage in report.stages), sum(stage.tasks for stage in report.stages)
    starts = f", {cold} of {tasks} tasks cold" if cold else ""
    if workers != "aws":
        return f"{predicted}; the times above are this machine's{starts}"
    return f"${report.cost_usd:.8f} on Lambda at us-east-1 prices{starts}; {predicted}"
