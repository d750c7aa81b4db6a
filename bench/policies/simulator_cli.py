"""`serfer bench policies` and `serfer bench simulator`: what judges routing policies, and the simulator itself."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from serfer.cli.options import JsonOption, ModelOption, PlanOption, plan_directory, print_json, status_line
from serfer.cli.terminal import complain, err
from serfer.settings import load_settings


def policies(
    traces: Annotated[Path, typer.Option(metavar="DIR", help="A folder of CSV traces (docs/how-to/simulate.md).")],
    scenarios: Annotated[Path, typer.Option(metavar="DIR", help="A folder of scenarios: TOML files.")],
    policy: Annotated[list[str] | None, typer.Option(help="A policy's name; may be repeated. By default four.")] = None,
    load: Annotated[
        list[str] | None, typer.Option(help="A part of the names of the loads to run; may be repeated.")
    ] = None,
    scale: Annotated[list[str] | None, typer.Option(help="S, M, none or a factor; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of generators and arrivals.")] = 0,
    period_s: Annotated[float, typer.Option(help="Seconds between a policy's decisions.")] = 5.0,
    window_s: Annotated[
        float,
        typer.Option(min=0, help="Run so many seconds query by query, busiest and median ones; 0: none; 3600: hours."),
    ] = 0.0,
    skip_zeros_over: Annotated[
        float, typer.Option(help="Cut out times without queries of at least so many seconds.")
    ] = math.inf,
    overflow: Annotated[
        bool, typer.Option("--overflow/--no-overflow", help="Lambda takes what instances cannot.")
    ] = True,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print tables in Markdown.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run policies on all loads of a folder and all generators, in all scenarios, and compare with the optimum."""
    from bench.policies import policies as judging  # noqa: PLC0415 - only this command needs it
    from serfer.sim.simulate import Terms  # noqa: PLC0415 - same

    choice = judging.Choice(
        policies=policy or judging.POLICIES,
        terms=Terms(period_s=period_s, overflow=overflow),
        only=load or (),
        scales=scale or judging.SCALES,
        seed=seed,
        window_s=window_s,
        skip_zeros_over_s=skip_zeros_over,
    )
    chosen = judging.cases(traces, scenarios, choice)
    with status_line() as progress:
        found = judging.measure(chosen, progress if err.is_terminal else complain)
    if as_json:
        for one in found:
            print_json(one.as_dict())
    else:
        typer.echo(judging.markdown(found) if as_markdown else judging.table(found))


def simulator(
    scenario: Annotated[Path, typer.Option(help="A scenario's TOML file, to run the simulator and the router in.")],
    model: ModelOption = None,
    plan: PlanOption = None,
    runs: Annotated[
        int, typer.Option(min=1, max=100, help="Local runs that the calibrated simulation is held to.")
    ] = 5,
    queries: Annotated[int, typer.Option(min=1, max=10_000, help="Queries of a local run.")] = 400,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print tables in Markdown.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Hold the simulator against local runs that did not calibrate it, and time it and the router's decisions."""
    from bench.policies import simulator as checking  # noqa: PLC0415 - only this command needs it
    from serfer.control.scenario_files import read_scenario  # noqa: PLC0415 - same

    world = read_scenario(scenario)
    directory = plan_directory(plan, model or (None if plan else "alexnet"))
    with status_line() as progress:
        found = checking.measure(
            directory,
            world,
            load_settings(),
            runs=runs,
            queries=queries,
            progress=progress if err.is_terminal else complain,
        )
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo(checking.markdown(found) if as_markdown else checking.table(found))
