"""`serfer bench instance`: an instance under bursts and steady loads, with batching and without."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bench.core.stamp import make_stamp
from serfer.cli.options import JsonOption, ModelOption, PlanOption, plan_directory, status_line
from serfer.core.errors import QueryError


def instance(
    model: ModelOption = None,
    plan: PlanOption = None,
    queries: Annotated[
        list[int] | None,
        typer.Option("--burst", min=1, max=100_000, help="Queries of a burst; may be repeated. By default 8 to 1,000."),
    ] = None,
    rps: Annotated[
        list[float] | None,
        typer.Option(help="Queries a second of a Poisson load, in place of bursts; may be repeated."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long a Poisson load lasts.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each load comes; instances take turns.")] = 3,
    deadline_ms: Annotated[int, typer.Option("--deadline-ms", min=1, max=600_000, help="Of each query.")] = 600_000,
    device: Annotated[str, typer.Option(help="As for serfer instance, like the next three.")] = "auto",
    precision: Annotated[str, typer.Option()] = "fp32",
    max_batch: Annotated[int | None, typer.Option()] = None,
    threads: Annotated[int | None, typer.Option()] = None,
    window_ms: Annotated[
        float | None, typer.Option(help="Measure an instance that waits so long for full batches, too.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="An instance that serves already, of this plan, in their place.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--out", help="A directory to write result.json and rows.csv to.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send bursts, or steady loads, of single images to an instance over HTTP, with batching and without."""
    from bench.core.rows import report  # noqa: PLC0415 - same
    from bench.serving.instance import BURSTS, Workload, measure, systems  # noqa: PLC0415 - only this command needs it

    where = plan_directory(plan, model or (None if plan else "alexnet"))
    common = ["--device", device, "--precision", precision, *([] if threads is None else ["--threads", str(threads)])]
    options = {name: [*common, *more] for name, more in systems(max_batch, window_ms).items()}
    workload = Workload(queries or (() if rps else BURSTS), rps or (), seconds, rounds, deadline_ms, precision)
    with status_line() as progress:
        found = measure(where, options, workload, url=url.rstrip("/") if url else None, progress=progress)
    report(found, make_stamp(sys.argv[1:], datetime.now(UTC)), directory, as_json=as_json)
    if failed := sum(row.failed for row in found):
        raise QueryError(f"{failed:,} of {sum(row.queries for row in found):,} queries had no right answer")
