"""`serfer bench route`: a burst that lasts, at a driver that moves it to instances."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bench.core.stamp import make_stamp
from serfer.cli.options import JsonOption, ModelOption, PlanOption, plan_directory, status_line
from serfer.cli.terminal import complain, err
from serfer.core.errors import QueryError
from serfer.settings import load_settings


def route(
    scenario: Annotated[Path, typer.Option(metavar="FILE.toml", help="Prices and speeds that routing reckons with.")],
    model: ModelOption = None,
    plan: PlanOption = None,
    policy: Annotated[str, typer.Option("--route", help="As for serfer serve, like the next three.")] = "auto",
    instances: Annotated[str, typer.Option(metavar="SPEC")] = "local",
    workers: Annotated[str, typer.Option()] = "local",
    max_usd_per_hour: Annotated[float | None, typer.Option("--max-usd-per-hour")] = None,
    rps: Annotated[float, typer.Option(min=0.01, help="Queries a second of the burst, as a Poisson process.")] = 10.0,
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="How long it lasts.")] = 180.0,
    after_s: Annotated[float, typer.Option(min=0, help="How long to watch the instances go after it.")] = 120.0,
    kill_s: Annotated[
        float | None, typer.Option(min=0, help="Kill an instance then, or as soon as there is one (local ones).")
    ] = None,
    warm: Annotated[int, typer.Option(min=0, max=1000, help="Queries at once before it, to warm functions up.")] = 4,
    step_s: Annotated[float, typer.Option(min=1, help="Seconds of a row.")] = 5.0,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it too; .png, .svg, ... as the suffix says.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--out", help="A directory to write result.json and rows.csv to.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send a burst that lasts to a driver with a pool, and show second by second where its queries ran."""
    from bench.core.rows import report  # noqa: PLC0415 - same
    from bench.serving.route import Experiment, draw, measure  # noqa: PLC0415 - only this command needs it

    where = plan_directory(plan, model or (None if plan else "alexnet"))
    options = ["--route", policy, "--instances", instances, "--scenario", str(scenario), "--workers", workers]
    options += [] if max_usd_per_hour is None else ["--max-usd-per-hour", str(max_usd_per_hour)]
    experiment = Experiment(rps, seconds, after_s, step_s, kill_s, warm, options)
    with status_line() as progress:
        found = measure(where, experiment, load_settings(), progress if err.is_terminal else complain)
    stamp = make_stamp(sys.argv[1:], datetime.now(UTC))
    report(found, stamp, directory, as_json=as_json)
    if picture is not None:
        draw(f"{rps:g} queries a second for {seconds:g} s, --route {policy}", found, step_s, stamp.lines, picture)
    if failed := sum(row.failed + row.wrong for row in found):
        raise QueryError(f"{failed:,} of {sum(row.queries for row in found):,} queries had no right answer")
