"""`serfer simulate`: routing policies on a load, under a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from bench.core.stamp import this_machine
from serfer.cli.shared.display import plain
from serfer.cli.shared.options import JsonOption, opened, print_json, status_line
from serfer.cli.shared.terminal import err, out
from serfer.control.policies import DEFAULT, POLICIES
from serfer.core.errors import UsageError
from serfer.settings import load_settings
from serfer.sim.generators import describe_generators

if TYPE_CHECKING:
    from serfer.control.scenario import LambdaTarget, Scenario
    from serfer.sim.simulate import DetailedRun, Outcome, PolicyRun, SimInput

LEVELS = ("rates", "queries", "tasks")
HELP = f"""Run routing policies on a load, under a virtual clock (docs/how-to/simulate.md).

LOAD is a CSV file with the columns t_seconds,rps or minute,requests, or a generator, NAME or NAME:KEY=VALUE,...:

\b
{describe_generators()}

Policies: {", ".join(POLICIES)}.
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=HELP)
def simulate(
    load: Annotated[
        str | None, typer.Argument(metavar="[LOAD]", help="A trace's CSV file, or a generator.", show_default=False)
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option(help="A TOML file with the prices and speeds of both targets; LOAD needs it.")
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help=f"May be repeated. [default: {DEFAULT}]")] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="S: break-even load is the median of rates that are not 0; M: the mean is one instance's qps; "
            "none; or a factor."
        ),
    ] = "none",
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of arrivals, times, and generators.")] = 0,
    level: Annotated[
        str,
        typer.Option(
            help="rates: dollars only; queries: latencies of the busiest and the median hour too, a time drawn for "
            "each query; tasks: Lambda's queries run task by task (--plan or --calibration)."
        ),
    ] = "queries",
    plan: Annotated[
        Path | None,
        typer.Option(help="A plan directory: Lambda's times are those that are published for it, not the scenario's."),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="A file of --calibrate: Lambda's times are those that were measured.")
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Without LOAD: measure this plan's tasks here, through the local stack."),
    ] = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="The file that --calibrate writes.")] = None,
    queries: Annotated[int, typer.Option(min=1, max=10_000, help="How many queries --calibrate runs.")] = 200,
    period_s: Annotated[float, typer.Option(help="Seconds between decisions.")] = 5.0,
    max_usd_per_hour: Annotated[float, typer.Option(min=0, help="Dollars that no hour may cost more than.")] = math.inf,
    overflow: Annotated[
        bool,
        typer.Option(
            "--overflow/--no-overflow", help="Lambda takes what instances cannot; else it is late or refused."
        ),
    ] = True,
    instance: Annotated[str | None, typer.Option(help="The instance type to start; by default the first.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Pay its spot price.")] = False,
    from_s: Annotated[float, typer.Option("--from", min=0, help="Begin at this second of the load.")] = 0.0,
    until_s: Annotated[float, typer.Option("--until", min=0, help="End at this one.")] = math.inf,
    skip_zeros_over: Annotated[
        float, typer.Option(min=0, help="Cut out times without queries of at least so many seconds.")
    ] = math.inf,
    window_s: Annotated[float, typer.Option(help="Length of what is looked at query by query.")] = 3600.0,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .svg or .pdf.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run routing policies on a load (HELP is what the command line shows)."""
    from serfer.control.scenario_files import read_scenario  # noqa: PLC0415 - the command line starts fast
    from serfer.sim.simulate import LoadSpec, RunOptions, policy_names, prepare, run_policies  # noqa: PLC0415 - same

    if calibrate is not None or out_file is not None:
        _calibrate(load, calibrate, out_file, queries, as_json=as_json)
        return
    if load is None or scenario is None:
        raise UsageError("give LOAD, a CSV trace or a generator, and --scenario FILE.toml (docs/how-to/simulate.md)")
    if level not in LEVELS:
        raise UsageError(f"--level is {', '.join(LEVELS)}, not {level!r}")
    _check_plot(plot)
    world = read_scenario(scenario)
    for warning in [*world.warnings(), *_late_decisions(world, period_s)]:
        err.print(f"[yellow]warning[/]: {plain(f'{scenario}: {warning}')}", soft_wrap=True)
    names = policy_names(policy or [DEFAULT], world)
    options = RunOptions(period_s, max_usd_per_hour, instance, spot, overflow)
    options.applied(world)
    with status_line() as progress:
        progress("reading")
        detailed = _detailed(level, world.serverless, plan, calibration, window_s)
        trace = LoadSpec(load, from_s, until_s, skip_zeros_over).read(seed)
        sim_input = prepare(trace, scenario.stem, world, scale)
        runs = [*run_policies(sim_input, names, options, seed, detailed, progress)]
    if as_json:
        for each in runs:
            print_json(each.outcome.as_dict())
    else:
        _print(sim_input, [each.outcome for each in runs], detailed)
    if plot is not None:
        _plot(sim_input, runs, plot)


def _late_decisions(world: Scenario, period_s: float) -> list[str]:
    """Return a sentence where decisions are so far apart that being late costs more than a boot.

    docs/explanation/policies.md says why.
    """
    boot_s, price_ratio = world.instance.boot_s, world.price_ratio
    if period_s * price_ratio <= boot_s:
        return []
    late = f"a start that comes so late costs up to {price_ratio:.3g} times its price on Lambda"
    return [f"--period-s {period_s:g} is long for instances that boot in {boot_s:g} s: {late}"]


def _detailed(
    level: str, target: LambdaTarget, plan: Path | None, calibration: Path | None, window_s: float
) -> DetailedRun | None:
    """Return how windows are looked at; raises UsageError where a level has not what it needs."""
    from serfer.sim.calibration import published_calibration, read_calibration  # noqa: PLC0415 - same
    from serfer.sim.service_times import scenario_times  # noqa: PLC0415 - same
    from serfer.sim.simulate import DetailedRun  # noqa: PLC0415 - same
    from serfer.sim.tasks import service_times  # noqa: PLC0415 - same

    if plan is not None and calibration is not None:
        raise UsageError("give --plan or --calibration, not both: either says how long Lambda takes")
    facts = load_settings().facts()
    known = read_calibration(calibration) if calibration else None
    if plan is not None:
        from serfer.plan_directory import load_plan  # noqa: PLC0415 - the command line starts fast

        known = published_calibration(load_plan(plan), facts)
    if level == "rates":
        return None
    if known is None:
        if level == "tasks":
            raise UsageError("--level tasks runs a plan's tasks: give --plan DIR or --calibration FILE")
        return DetailedRun(scenario_times(target, facts.functions), window_s)
    return DetailedRun(service_times(known, target), window_s, known if level == "tasks" else None)


def _calibrate(load: str | None, plan: Path | None, file: Path | None, queries: int, *, as_json: bool) -> None:
    """Measure a plan's tasks on this machine, and keep them in a file."""
    from serfer.files import check_place  # noqa: PLC0415 - the command line starts fast
    from serfer.sim.calibration import LocalRun, summary_of, write_calibration  # noqa: PLC0415 - same

    if load is not None or plan is None or file is None:
        raise UsageError("to calibrate give --calibrate DIR and --out FILE, and no LOAD")
    check_place(file)
    with opened(plan, None, "local") as pipeline, status_line() as progress:
        run = LocalRun(pipeline)
        run.take(queries, progress)
        made = run.calibration(str(this_machine()), datetime.now(UTC).date().isoformat())
    write_calibration(made, file)
    if as_json:
        print_json({"out": str(file), **asdict(summary_of(made))})
        return
    summary = summary_of(made)
    out.print(plain(f"{made.label}, {summary.queries:,} queries of {summary.tasks} tasks"))
    out.print(f"warm: p50 {summary.p50_ms:,.1f} ms, p95 {summary.p95_ms:,.1f} ms, p99 {summary.p99_ms:,.1f} ms")
    out.print(f"cold starts add {summary.cold_ms:,.0f} ms in the middle")
    err.print(f"wrote {plain(str(file))}", soft_wrap=True)


def _check_plot(plot: Path | None) -> None:
    """Refuse a place that no picture can be written to, before the work."""
    if plot is not None:
        from serfer.files import check_place  # noqa: PLC0415 - only pictures need it
        from serfer.pictures import check_suffix  # noqa: PLC0415 - same

        check_suffix(plot)
        check_place(plot)


def _plot(sim_input: SimInput, runs: Sequence[PolicyRun], plot: Path) -> None:
    from serfer.pictures.policies import draw_policies  # noqa: PLC0415 - only pictures need it

    with status_line() as progress:
        progress("drawing")
        draw_policies(sim_input, runs, plot)
    err.print(f"wrote {plain(str(plot))}", soft_wrap=True)


def _print(sim_input: SimInput, outcomes: Sequence[Outcome], detailed: DetailedRun | None) -> None:
    trace = sim_input.trace
    out.print(
        plain(
            f"{trace.name} in {sim_input.scenario_name}: {trace.seconds / 3600:,.1f} h, {trace.mean:,.2f} queries/s on "
            f"average, {trace.peak:,.2f} at most (rates times {sim_input.factor:.4g})"
        )
    )
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for one in outcomes:
        table.add_column(plain(one.policy), justify="right", no_wrap=True)
    for name, values in _rows(sim_input, outcomes):
        table.add_row(name, *values)
    out.print(table)
    for window in outcomes[0].windows:
        out.print(f"query by query: {window.name}, from {window.begin_s / 3600:,.2f} h to {window.end_s / 3600:,.2f} h")
    if detailed is not None:
        out.print(plain(f"Lambda's times: {detailed.services.source}"))


def _rows(sim_input: SimInput, outcomes: Sequence[Outcome]) -> list[tuple[str, list[str]]]:
    slo = f"within {sim_input.scenario.slo_ms:g} ms"
    rows = [
        ("queries", [f"{one.queries:,.0f}" for one in outcomes]),
        ("cost $", [f"{one.cost_usd:,.4f}" for one in outcomes]),
        ("  Lambda $", [f"{one.serverless_usd:,.4f}" for one in outcomes]),
        ("    while booting $", [f"{one.booting_usd:,.4f}" for one in outcomes]),
        ("  instances $", [f"{one.instances_usd:,.4f}" for one in outcomes]),
        ("    for the least billed time $", [f"{one.min_billing_usd:,.4f}" for one in outcomes]),
        ("optimum $", ["-" if one.optimum_usd is None else f"{one.optimum_usd:,.4f}" for one in outcomes]),
        ("ratio", ["-" if one.ratio is None else f"{one.ratio:.3f}" for one in outcomes]),
        ("launches", [f"{one.launches:,}" for one in outcomes]),
        ("instance hours", [f"{one.instance_hours:,.2f}" for one in outcomes]),
    ]
    if any(one.refused or one.late for one in outcomes):
        rows.append(("refused queries", [f"{one.refused:,.0f}" for one in outcomes]))
        rows.append(("late queries", [f"{one.late:,.0f}" for one in outcomes]))
    if not outcomes[0].windows:
        return rows
    latencies = [one.latency_ms for one in outcomes]
    return [
        *rows,
        (slo, ["-" if one.slo_met is None else f"{one.slo_met:.3%}" for one in outcomes]),
        ("p50 ms", [f"{one.p50:,.1f}" if one else "-" for one in latencies]),
        ("p95 ms", [f"{one.p95:,.1f}" if one else "-" for one in latencies]),
        ("p99 ms", [f"{one.p99:,.1f}" if one else "-" for one in latencies]),
        ("cold starts", [f"{one.cold_starts or 0:,}" for one in outcomes]),
        ("idle GB-s", [f"{one.idle_gb_s or 0:,.0f}" for one in outcomes]),
        ("batches", [f"{one.batches or 0:,}" for one in outcomes]),
        ("throttled", [f"{one.throttled or 0:,}" for one in outcomes]),
    ]
