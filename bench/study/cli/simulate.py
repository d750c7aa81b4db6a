"""`serfer study simulate`: routing policies on a load, under a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from serfer.cli.shared.display import plain, print_table, styled
from serfer.cli.shared.options import (
    JsonOption,
    opened,
    print_json,
    status_line,
    status_lines,
)
from serfer.cli.shared.terminal import complain, err, out
from serfer.control.scenario import DEFAULT_SCENARIO, LambdaTarget, Scenario, read_scenario
from serfer.core.errors import UsageError
from serfer.core.plan.window_plan import check_whole_images
from serfer.cost.driver_limits import DriverLimits
from serfer.cost.loads.access_logs import unix_time
from serfer.cost.service_times import scenario_times
from serfer.files import check_place
from serfer.pictures import check_suffix
from serfer.plan_directory import load_plan
from serfer.settings import load_settings
from serfer.system import processors
from serfer.wiring.pipeline_options import PipelineOptions
from serfer_bench.core.stamp import this_machine
from serfer_bench.study.cli.cluster import ClusterRequest, check_cluster_options, simulate_cluster
from serfer_bench.study.cli.comparison import print_comparison
from serfer_bench.study.loads.generators import describe_generators
from serfer_bench.study.policies import NAMES
from serfer_bench.study.policies.infless.policies import CLUSTER_POLICIES, refuse_cluster_policy
from serfer_bench.study.policies.infless.scenario import describes_cluster
from serfer_bench.study.sim.calibration import (
    Calibration,
    LocalRun,
    published_calibration,
    read_calibration,
    summary_of,
    write_calibration,
)
from serfer_bench.study.sim.lambda_memory import priced_target, with_memory
from serfer_bench.study.sim.pictures import draw_policies
from serfer_bench.study.sim.recommend import ALL, Comparison, LambdaChoice, evaluate, policies_of
from serfer_bench.study.sim.simulate import (
    DetailedRun,
    LoadSpec,
    Outcome,
    PolicyRun,
    RunOptions,
    SimInput,
    policy_names,
    prepare,
    run_policies,
)
from serfer_bench.study.sim.tasks import service_times
from serfer_bench.study.sim.time_series import TimeSeries, write_time_series

_MILLION = 1e6
LEVELS = ("rates", "queries", "tasks")
HELP = f"""Run routing policies on a load, under a virtual clock (docs/how-to/simulate.md).

LOAD is a CSV file with the columns t_seconds,rps or minute,requests, an access log (nginx, Apache, AWS's load
balancers, CloudFront, CSV with a time in each row), CloudWatch's JSON or CSV of a Sum, each also as .gz, or a
generator, NAME or NAME:KEY=VALUE,...:

\b
{describe_generators()}

Policies: {", ".join(NAMES)}, those that are plugged in, and MODULE:Class (docs/how-to/add-a-policy.md). mark and
mark-spot take settings, as in mark:sl_min=0.99,m=100 (docs/explanation/policies.md).

Of a scenario with [[servers]] and [[functions]], a cluster: {", ".join(CLUSTER_POLICIES)}. LOAD is then for functions
that have none in the scenario.
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=HELP)
def simulate(
    context: typer.Context,
    load: Annotated[
        str | None, typer.Argument(metavar="[LOAD]", help="A file of a load, or a generator.", show_default=False)
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE or NAME",
            help="Prices and speeds of both targets: a TOML file, or aws, google-cloud, azure, small-network, "
            "two-types, large-network, which come with SerFer, as does cluster, of servers. [default: aws]",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="May be repeated. [default: all] all: compare every policy on every instance type, and recommend one."
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="S: break-even load is the median of rates that are not 0; M: the mean is one instance's qps; "
            "none; or a factor."
        ),
    ] = "none",
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of arrivals, times, and generators.")] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Compare over so many seeds from --seed on: mean, least, largest.")
    ] = 1,
    slo_share: Annotated[
        float, typer.Option(min=0, max=1, help="The share of queries to be answered within the SLO, to be recommended.")
    ] = 0.99,
    memory: Annotated[
        list[int] | None,
        typer.Option(
            help="Compare Lambda with so many MB for each function of --plan, as the cost model has it; repeatable."
        ),
    ] = None,
    level: Annotated[
        str,
        typer.Option(
            help="rates: dollars only; queries: latencies of the busiest and the median hour too, a time drawn for "
            "each query; tasks: Lambda's queries run task by task (--plan or --calibration)."
        ),
    ] = "queries",
    plan: Annotated[
        Path | None,
        typer.Option(
            help="A plan directory: Lambda's price and times are those that are published for it, not the scenario's."
        ),
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
    spot_losses: Annotated[
        float, typer.Option(min=0, max=60, help="How many times an hour a spot instance is taken away, on average.")
    ] = 0.0,
    drivers: Annotated[
        int, typer.Option(min=1, max=10_000, help="Query by query: how many drivers share the load.")
    ] = 1,
    driver_slots: Annotated[
        int | None,
        typer.Option(min=1, help="Invocations of a driver at once. [default: Lambda's concurrency, as on AWS]"),
    ] = None,
    hedge: Annotated[bool, typer.Option("--hedge/--no-hedge", help="A late task gets a duplicate.")] = True,
    from_time: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Begin at this time of the load: seconds, or a date as in 2026-11-25T13:55Z where the load has dates.",
        ),
    ] = "0",
    until_time: Annotated[str | None, typer.Option("--until", metavar="TIME", help="End at this one.")] = None,
    skip_zeros_over: Annotated[
        float, typer.Option(min=0, help="Cut out times without queries of at least so many seconds.")
    ] = math.inf,
    history: Annotated[
        str | None,
        typer.Option(
            metavar="LOAD", help="Policies begin having seen this load, scaled as LOAD is: a CSV file or a generator."
        ),
    ] = None,
    window_s: Annotated[float, typer.Option(help="Length of what is looked at query by query.")] = 3600.0,
    csv_file: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            metavar="FILE",
            help="Write load, instances, Lambda's part and dollars so far over time.",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .svg or .pdf.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run routing policies on a load (HELP is what the command line shows)."""
    if calibrate is not None or out_file is not None:
        _calibrate(load, calibrate, out_file, queries, as_json=as_json)
        return
    scenario = scenario or DEFAULT_SCENARIO
    if _on_cluster(scenario, policy or ()):
        spec = _load_spec(load or "", from_time, until_time, skip_zeros_over)
        check_cluster_options(context)
        _check_places(plot, None)
        request = ClusterRequest(scenario, spec, policy or [], seed, period_s, level, window_s)
        simulate_cluster(request, plot, as_json=as_json)
        return
    if load is None:
        raise UsageError("give LOAD, a CSV trace or a generator (docs/how-to/simulate.md)")
    if level not in LEVELS:
        raise UsageError(f"--level is {', '.join(LEVELS)}, not {level!r}")
    _check_places(plot, csv_file)
    given = read_scenario(scenario)
    world = _priced(given, plan, calibration)
    for warning in [*world.warnings(), *_late_decisions(world, period_s), *_dollars(given, calibration)]:
        err.print(styled("warning:", "yellow"), plain(f"{scenario}: {warning}"), soft_wrap=True)
    policy = policy or [ALL]
    names = policy_names(policies_of(policy), world)
    seen = _load_spec(history, "0", None, math.inf).read(seed) if history else None
    options = RunOptions(period_s, max_usd_per_hour, instance, spot, overflow, spot_losses, seen)
    options.applied(world)
    spec = _load_spec(load, from_time, until_time, skip_zeros_over)
    limits = DriverLimits(drivers, driver_slots, hedge, load_settings().facts().functions.growth)
    lambdas = _lambdas(level, world.serverless, plan, calibration, window_s, memory or (), limits)
    every = ALL in policy
    if every or seeds > 1 or memory:
        comparison = Comparison(
            spec, scenario.stem, world, scale, names, every, options, lambdas, seed, seeds, slo_share
        )
        runs, sim_input = _compare(comparison, as_json=as_json, keep=bool(plot or csv_file))
    else:
        with status_line() as progress:
            progress("reading")
            sim_input = prepare(spec.read(seed, progress), scenario.stem, world, scale)
            runs = [*run_policies(sim_input, names, options, seed, lambdas[0].detailed, progress)]
        _show(sim_input, runs, lambdas[0].detailed, as_json=as_json)
    for remark in sim_input.trace.remarks:
        complain(f"{load}: {remark}")
    if not as_json:
        _print_dollars(given, world, several=bool(memory))
    _write(sim_input, runs, csv_file, plot)


def _write(sim_input: SimInput, runs: Sequence[PolicyRun], csv_file: Path | None, plot: Path | None) -> None:
    if csv_file is not None:
        begin_s = sim_input.trace.begin_s
        series = [TimeSeries(each.outcome.policy, each.run, each.scenario, begin_s) for each in runs]
        write_time_series(series, csv_file)
        err.print(f"wrote {plain(str(csv_file))}", soft_wrap=True)
    if plot is not None:
        with status_line() as progress:
            progress("drawing")
            draw_policies(sim_input, runs, plot)
        err.print(f"wrote {plain(str(plot))}", soft_wrap=True)


def _load_spec(load: str, from_time: str, until_time: str | None, skip_zeros_over: float) -> LoadSpec:
    return LoadSpec(load, _time("--from", from_time), _time("--until", until_time or "inf"), skip_zeros_over)


def _on_cluster(scenario: Path, policies: Sequence[str]) -> bool:
    if describes_cluster(scenario):
        return True
    for name in policies:
        refuse_cluster_policy(name)
    return False


def _compare(comparison: Comparison, *, as_json: bool, keep: bool) -> tuple[list[PolicyRun], SimInput]:
    with status_lines() as progress:
        evaluations = evaluate(comparison, processors(), progress)
    if as_json:
        for one in evaluations:
            print_json(one.as_dict())
    else:
        print_comparison(comparison, evaluations)
    best, seed = evaluations[0], comparison.first_seed
    sim_input, _ = comparison.inputs()[0]
    if not keep:
        return [], sim_input
    choice = next(each for each in comparison.lambdas if each.memory_mb == best.memory_mb)
    sim_input = replace(sim_input, scenario=replace(sim_input.scenario, serverless=choice.target))
    options = replace(comparison.options, kind=best.instance or comparison.options.kind)
    with status_line() as progress:
        runs = [*run_policies(sim_input, comparison.policies, options, seed, choice.detailed, progress)]
    return runs, sim_input


def _show(sim_input: SimInput, runs: Sequence[PolicyRun], detailed: DetailedRun | None, *, as_json: bool) -> None:
    if as_json:
        for each in runs:
            print_json(each.outcome.as_dict())
    else:
        _print(sim_input, [each.outcome for each in runs], detailed)


def _time(option: str, text: str) -> float:
    known = unix_time(text)
    try:
        seconds = float(text) if known is None else known
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise UsageError(f"{option} is seconds, or a date as in 2026-11-25T13:55Z, not {text[:40]!r}")
    return seconds


def _late_decisions(world: Scenario, period_s: float) -> list[str]:
    """Return a sentence where decisions are so far apart that being late costs more than a boot.

    docs/explanation/policies.md says why.
    """
    boot_s, price_ratio = world.instance.boot_s, world.price_ratio
    if period_s * price_ratio <= boot_s:
        return []
    late = f"a start that comes so late costs up to {price_ratio:.3g} times its price on Lambda"
    return [f"--period-s {period_s:g} is long for instances that boot in {boot_s:g} s: {late}"]


def _priced(world: Scenario, plan: Path | None, calibration: Path | None) -> Scenario:
    if plan is None:
        return world
    if calibration is not None:
        raise UsageError("give --plan or --calibration, not both: either says how long Lambda takes")
    whole = load_plan(plan)
    check_whole_images(whole)
    return replace(world, serverless=priced_target(world.serverless, whole, load_settings().facts()))


def _dollars(world: Scenario, calibration: Path | None) -> list[str]:
    if calibration is None:
        return []
    usd = world.serverless.usd_per_query * _MILLION
    return [f"--calibration has times alone: Lambda's dollars are its usd_per_query, ${usd:,.2f} for a million queries"]


def _print_dollars(given: Scenario, world: Scenario, *, several: bool) -> None:
    if world is given:
        return
    plans, scenarios = (f"${one.serverless.usd_per_query * _MILLION:,.2f}" for one in (world, given))
    memory = "at each memory (at its own" if several else "(for a million queries"
    out.print(f"Lambda's dollars: the plan's {memory} {plans}; the scenario's usd_per_query says {scenarios})")


def _lambdas(
    level: str,
    target: LambdaTarget,
    plan: Path | None,
    calibration: Path | None,
    window_s: float,
    memory: Sequence[int],
    limits: DriverLimits,
) -> list[LambdaChoice]:
    facts = load_settings().facts()
    if plan is None:
        if memory:
            raise UsageError("--memory is of a plan's functions: give --plan DIR")
        known = read_calibration(calibration) if calibration else None
        return [LambdaChoice(target, _detailed(level, target, known, window_s, limits))]
    whole = load_plan(plan)
    check_whole_images(whole)
    if not memory:
        return [LambdaChoice(target, _detailed(level, target, published_calibration(whole, facts), window_s, limits))]
    choices = []
    for memory_mb in dict.fromkeys(memory):
        priced = priced_target(target, whole, facts, memory_mb)
        known = published_calibration(with_memory(whole, memory_mb), facts)
        choices.append(LambdaChoice(priced, _detailed(level, priced, known, window_s, limits), memory_mb))
    return choices


def _detailed(
    level: str, target: LambdaTarget, known: Calibration | None, window_s: float, limits: DriverLimits
) -> DetailedRun | None:
    if level == "rates":
        return None
    if known is None:
        if level == "tasks":
            raise UsageError("--level tasks runs a plan's tasks: give --plan DIR or --calibration FILE")
        times = scenario_times(target, load_settings().facts().functions)
        return DetailedRun(times, window_s, limits=limits)
    return DetailedRun(service_times(known, target), window_s, known if level == "tasks" else None, limits)


def _calibrate(load: str | None, plan: Path | None, file: Path | None, queries: int, *, as_json: bool) -> None:
    if load is not None or plan is None or file is None:
        raise UsageError("to calibrate give --calibrate DIR and --out FILE, and no LOAD")
    check_place(file)
    with opened(plan, PipelineOptions(), "local") as pipeline, status_line() as progress:
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


def _check_places(plot: Path | None, csv_file: Path | None) -> None:
    if plot is not None:
        check_suffix(plot)
        check_place(plot)
    if csv_file is not None:
        check_place(csv_file)


def _print(sim_input: SimInput, outcomes: Sequence[Outcome], detailed: DetailedRun | None) -> None:
    trace = sim_input.trace
    out.print(
        plain(
            f"{trace.name} in {sim_input.scenario_name}: {trace.seconds / 3600:,.1f} h, {trace.mean:,.2f} queries/s on "
            f"average, {trace.peak:,.2f} at most (rates times {sim_input.factor:.4g})"
        )
    )
    rows = [(name, *values) for name, values in _rows(sim_input, outcomes)]
    print_table(["", *(outcome.policy for outcome in outcomes)], rows)
    for note in dict.fromkeys(f"{one.policy}: {note}" for one in outcomes for note in one.notes):
        out.print(plain(note))
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
    if any(one.pings_usd for one in outcomes):
        rows.insert(4, ("    for pings $", [f"{one.pings_usd:,.4f}" for one in outcomes]))
    if any(one.refused or one.late for one in outcomes):
        rows.append(("refused queries", [f"{one.refused:,.0f}" for one in outcomes]))
        rows.append(("late queries", [f"{one.late:,.0f}" for one in outcomes]))
    if not outcomes[0].windows:
        return rows
    latencies = [one.latency_ms for one in outcomes]
    return [
        *rows,
        ("window $, query by query", ["-" if one.window_usd is None else f"{one.window_usd:,.4f}" for one in outcomes]),
        ("  times that of rates", ["-" if one.window_ratio is None else f"{one.window_ratio:.3f}" for one in outcomes]),
        (slo, ["-" if one.slo_met is None else f"{one.slo_met:.3%}" for one in outcomes]),
        ("p50 ms", [f"{one.p50:,.1f}" if one else "-" for one in latencies]),
        ("p95 ms", [f"{one.p95:,.1f}" if one else "-" for one in latencies]),
        ("p99 ms", [f"{one.p99:,.1f}" if one else "-" for one in latencies]),
        ("cold starts", [f"{one.cold_starts or 0:,}" for one in outcomes]),
        ("idle GB-s", [f"{one.idle_gb_s or 0:,.0f}" for one in outcomes]),
        ("batches", [f"{one.batches or 0:,}" for one in outcomes]),
        ("throttled", [f"{one.throttled or 0:,}" for one in outcomes]),
        *_what_drivers_did(outcomes),
    ]


def _what_drivers_did(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, list[str]]]:
    if any(one.retries for one in outcomes):
        yield "retries", [f"{one.retries or 0:,}" for one in outcomes]
    if any(one.queued for one in outcomes):
        yield "waited for a slot", [f"{one.queued or 0:,}" for one in outcomes]
    if any(one.hedges for one in outcomes):
        yield "duplicates", [f"{one.hedges or 0:,}" for one in outcomes]
        yield "  duplicates $", [f"{one.hedges_usd or 0:,.4f}" for one in outcomes]
