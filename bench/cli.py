"""The commands of `serfer bench`. They parse, call and print; what they call is imported when they run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.core.stamp import make_stamp
from bench.policies.simulator_cli import policies, simulator
from bench.serving.instance_cli import instance
from bench.serving.route_cli import route
from serfer.cli import display
from serfer.cli.options import (
    JsonOption,
    ModelOption,
    PlanOption,
    ProfilesOption,
    opened,
    plan_directory,
    print_json,
    status_line,
)
from serfer.cli.terminal import complain, out
from serfer.core.errors import QueryError, SerferError, UsageError
from serfer.core.structure import unstructure
from serfer.settings import load_settings

if TYPE_CHECKING:
    from bench.core.rows import Row
    from bench.load.results import Result

bench_app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Measure, on this machine, side by side in one run.",
)
bench_app.command()(instance)
bench_app.command()(policies)
bench_app.command()(route)
bench_app.command()(simulator)


@bench_app.command()
def overhead(
    model: ModelOption = None,
    plan: PlanOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of measurements.")] = 7,
    queries: Annotated[int, typer.Option(min=1, help="Queries in each measurement.")] = 20,
    at_most: Annotated[float | None, typer.Option(help="Exit with 1 if the ratio is higher than this.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Processor time of the warm pipeline (driver, Lambda service, Redis, workers) against the unsplit forward pass."""
    from bench.pipeline.overhead import measure  # noqa: PLC0415 - only this command needs it
    from serfer.pipeline.reference import unsplit  # noqa: PLC0415 - same

    directory = plan_directory(plan, model or (None if plan else "alexnet"))
    with opened(directory, None, "local") as pipeline, status_line() as progress:
        result = measure(pipeline, unsplit(pipeline.plan, directory), rounds, queries, progress)
    if as_json:
        print_json(asdict(result))
    else:
        display.print_overhead(out, result)
    if at_most is not None and result.ratio > at_most:
        raise SerferError(f"the pipeline takes {result.ratio:.2f} times the unsplit pass, more than {at_most:g}")


@bench_app.command()
def service(
    model: ModelOption = None,
    plan: PlanOption = None,
    pairs: Annotated[int, typer.Option(min=1, help="Single queries, in turn through the pipeline and over HTTP.")] = 40,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of bursts.")] = 3,
    queries: Annotated[int, typer.Option(min=1, help="Queries in each burst.")] = 192,
    overload_s: Annotated[float, typer.Option(min=0, help="Seconds at twice the capacity; 0: none.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Price HTTP against the pipeline, and the balancer against one driver; overload it (docs/reference/api.md)."""
    from bench.serving.service import SampleSizes, measure, text  # noqa: PLC0415 - only this command needs it

    directory = plan_directory(plan, model or (None if plan else "alexnet"))
    with status_line() as progress:
        found = measure(directory, load_settings(), SampleSizes(pairs, rounds, queries, overload_s), progress)
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo(text(found))


@bench_app.command()
def flood(
    model: ModelOption = None,
    plan: PlanOption = None,
    connections: Annotated[int, typer.Option(min=1, max=4000, help="Clients that never wait.")] = 500,
    seconds: Annotated[float, typer.Option(min=1, help="How long.")] = 20.0,
    deadline_ms: Annotated[float, typer.Option(min=1, help="Of every query.")] = 5000.0,
    as_json: JsonOption = False,
) -> None:
    """Flood the service with clients that never wait; exit with 1 if it misses a criterion (docs/reference/api.md)."""
    from bench.serving.flood import lines, measure  # noqa: PLC0415 - only this command needs it

    directory = plan_directory(plan, model or (None if plan else "alexnet"))
    with status_line() as progress:
        found = measure(
            *(directory, load_settings()),
            connections=connections,
            seconds=seconds,
            deadline_ms=deadline_ms,
            progress=progress,
        )
    if as_json:
        print_json({**asdict(found), "faults": found.faults()})
    else:
        typer.echo("\n".join(lines(found)))
    if faults := found.faults():
        raise SerferError("; ".join(faults))


@bench_app.command()
def orchestration(
    plan: Annotated[str, typer.Option(help="A fixed plan (bench/core/plans.py).")] = "alexnet",
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of queries.")] = 15,
    workers: Annotated[int, typer.Option(min=1, help="Single-threaded workers, and threads.")] = 2,
    at_most: Annotated[float | None, typer.Option(help="Exit with 1 if the ratio is higher than this.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Elapsed time of a query through the pipeline against the same tiles on threads of one process."""
    from bench.pipeline.orchestration import measure, text  # noqa: PLC0415 - only this command needs it

    with status_line() as progress:
        found = measure(plan, load_settings(), rounds, workers, progress)
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo(text(found))
    if at_most is not None and found.ratio > at_most:
        raise SerferError(f"the pipeline takes {found.ratio:.2f} times the threads' time, more than {at_most:g}")


@bench_app.command()
def scaling(
    plan: Annotated[str, typer.Option(help="A fixed plan (bench/core/plans.py).")] = "vgg16-448",
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of queries.")] = 9,
    workers: Annotated[int, typer.Option(min=2, help="Single-threaded workers.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """Elapsed time of a query over several single-threaded workers against one, orchestration included."""
    from bench.pipeline.orchestration import measure_scaling, scaling_text  # noqa: PLC0415 - only this command needs it

    with status_line() as progress:
        found = measure_scaling(plan, load_settings(), rounds, workers, progress)
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo(scaling_text(found))


@bench_app.command()
def driver(
    plan: Annotated[str, typer.Option(help="A fixed plan (bench/core/plans.py).")] = "alexnet",
    queries: Annotated[int, typer.Option(min=1, help="Queries of the burst.")] = 1000,
    as_json: JsonOption = False,
) -> None:
    """What the driver costs by itself: a burst over functions that do nothing, against the bare client and boto3."""
    from bench.core.plans import bench_plan  # noqa: PLC0415 - same
    from bench.pipeline.driver_overhead import measure, text  # noqa: PLC0415 - only this command needs it

    with status_line() as progress:
        found = measure(bench_plan(plan, load_settings(), progress), queries, progress)
    if as_json:
        print_json({**asdict(found), "rate": found.rate, "against_boto3": found.against_boto3})
    else:
        typer.echo(text(found))
    if found.lost:
        raise SerferError(f"{found.lost} of {found.queries} queries were lost")


@bench_app.command()
def inflation(
    model: Annotated[str, typer.Option(help="A model of the zoo.")] = "alexnet",
    size: Annotated[int, typer.Option(min=1, help="The image's height and width.")] = 224,
    grid: Annotated[str, typer.Option(help="The grid of every group.")] = "2x2",
    groups: Annotated[int, typer.Option(min=1, help="How many tiled stages, placed by search.")] = 3,
    at_most: Annotated[float | None, typer.Option(help="Exit with 1 if the ratio is higher than this.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Count what halos cost: multiply-accumulates over all tiles against the unsplit network."""
    from bench.planner.inflation import measure  # noqa: PLC0415 - only this command needs it

    with status_line() as progress:
        found = measure(model, size, grid, groups, load_settings().facts(), progress)
    if as_json:
        print_json({**asdict(found), "ratio": found.ratio})
    else:
        display.print_inflation(out, found)
    if at_most is not None and found.ratio > at_most:
        raise SerferError(f"the tiles compute {found.ratio:.3f} times the network's work, more than {at_most:g}")


@bench_app.command()
def networks(
    only: Annotated[list[str] | None, typer.Option(help="A network of the list alone; may be given again.")] = None,
    write: Annotated[Path | None, typer.Option(help="A document whose tables to write again.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Split public architectures on 2x2 tiles and say what became of each (docs/reference/networks.md); needs timm."""
    from bench.planner.networks import chosen, measure, networks_table  # noqa: PLC0415 - only this command needs it
    from bench.planner.networks import write as write_tables  # noqa: PLC0415 - same

    if write and only:
        raise UsageError("--write writes the whole table: leave --only out")
    wanted = chosen(only or [])
    rows = []
    with status_line() as progress:
        for number, network in enumerate(wanted, start=1):
            progress(f"{network.name} ({number} of {len(wanted)})")
            rows.append(measure(network))
            if as_json:
                print_json({**asdict(rows[-1]), "outcome": rows[-1].outcome})
    if write:
        write_tables(write, rows)
    if not as_json:
        typer.echo(networks_table(rows))


@bench_app.command("gap")
def gap_bench(
    data: Annotated[
        Path | None, typer.Option(help="A folder 0.json to 9.json of digits; by default scikit-learn's.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many networks to train.")] = 3,
    at_most: Annotated[float | None, typer.Option(help="Exit with 1 if more points are lost than this.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Train small networks on real digits, replace their heads by global average pooling, and compare."""
    from bench.planner.gap import measure  # noqa: PLC0415 - only this command needs it

    with status_line() as progress:
        found = measure(data, range(seeds), progress)
    if as_json:
        print_json({**asdict(found), "drop_points": found.drop_points})
    else:
        display.print_gap(out, found)
    if at_most is not None and found.drop_points > at_most:
        raise SerferError(f"pooling lost {found.drop_points:.2f} points, more than {at_most:g}")


@bench_app.command()
def planner(
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model of the zoo; may be repeated. By default five of different kinds."),
    ] = None,
    size: Annotated[
        list[int] | None,
        typer.Option(min=32, help="Height and width; may be repeated. By default the model's and 896."),
    ] = None,
    store: Annotated[str, typer.Option(help="The kind of store of our plans: redis or s3.")] = "redis",
    codec_mb: Annotated[float, typer.Option(min=1, help="MB/s of Gillis's codec, at each end.")] = 25,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print tables in Markdown.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare our plans with Gillis's planner and with one function, all at the same predicted prices."""
    from bench.baselines.gillis import Options  # noqa: PLC0415 - same
    from bench.planner import planner as versus  # noqa: PLC0415 - only this command needs it

    with status_line() as progress:
        found = versus.measure(
            load_settings().facts(),
            model or versus.NETWORKS,
            size or (),
            _store_kind(store),
            Options(codec_rate=codec_mb * 1e6),
            progress,
        )
    if as_json:
        for case in found.cases:
            print_json({**case.as_dict(), "profiles": found.profiled_on})
    else:
        typer.echo(versus.markdown(found) if as_markdown else versus.table(found))


@bench_app.command()
def breakeven(
    model: Annotated[
        list[str] | None, typer.Option(help="A model of the zoo; may be repeated. By default eight of them.")
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(min=32, help="Height and width; may be repeated. By default 224 to 1120.")
    ] = None,
    store: Annotated[str, typer.Option(help="The kind of store of split plans: redis or s3.")] = "redis",
    here: Annotated[
        bool, typer.Option("--here", help="Measure on this machine: one function against a split over two.")
    ] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print tables in Markdown.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Predict from which network and which image on splitting beats one large function, and where it never does."""
    if here:
        _breakeven_here(model, size, as_markdown=as_markdown, as_json=as_json)
        return
    from bench.planner import breakeven as sweep  # noqa: PLC0415 - only this command needs it

    with status_line() as progress:
        found = sweep.measure(
            load_settings().facts(), model or sweep.NETWORKS, size or sweep.SIZES, _store_kind(store), progress
        )
    if as_json:
        for one in found.races:
            print_json({**one.as_dict(), "profiles": found.profiled_on})
    else:
        typer.echo(sweep.markdown(found) if as_markdown else sweep.table(found))


def _breakeven_here(model: list[str] | None, size: list[int] | None, *, as_markdown: bool, as_json: bool) -> None:
    from bench.planner import breakeven_here as race  # noqa: PLC0415 - only this command needs it

    with status_line() as progress:
        found = race.measure(load_settings(), model or race.NETWORKS, size or race.SIZES, progress=progress)
    if as_json:
        for one in found:
            print_json(one.as_dict())
    else:
        typer.echo(race.markdown(found) if as_markdown else race.table(found))


@bench_app.command()
def prediction(
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model of the zoo; may be repeated. By default those that no profile was filled from."),
    ] = None,
    profiles: ProfilesOption = None,
    at_most: Annotated[float | None, typer.Option(help="Exit with 1 if the mean error is higher than this.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the stage latencies that the planner predicts with those measured on this machine."""
    from bench.planner import prediction as judged  # noqa: PLC0415 - only this command needs it

    with status_line() as progress:
        found = judged.measure(load_settings().profiles(profiles), model or judged.HELD_OUT, progress)
    if as_json:
        for stage in found.stages:
            print_json({**asdict(stage), "error": stage.error, "profiles": found.profiled_on})
    else:
        typer.echo(judged.table(found))
    if at_most is not None and found.mean_error > at_most:
        raise SerferError(f"predictions miss by {found.mean_error:.1%} on average, more than {at_most:.1%}")


QueriesOption = Annotated[int, typer.Option("--queries", min=1, help="How many queries come at once.")]
RoundsOption = Annotated[int, typer.Option(min=1, help="How often each system is loaded; rounds take turns.")]
SystemOption = Annotated[
    list[str] | None,
    typer.Option(
        help="serfer, unshared (queries never share invocations), function (one function for all), unsplit (ONNX "
        "Runtime on all processors), serfer-published, serfer-repaired or gillis (see bench/load/systems.py); may be "
        "repeated. By default serfer and unsplit."
    ),
]
NetworkOption = Annotated[
    str | None, typer.Option("--model", help="A fixed plan of bench/core/plans.py, or else a model of the zoo.")
]
LoadWorkersOption = Annotated[
    str, typer.Option("--workers", help="local: processes; inprocess: threads; null: answer, and compute nothing.")
]
ConcurrencyOption = Annotated[
    int | None, typer.Option(min=1, max=10_000, help="Invocations at once; by default as many as processors.")
]
OrderOption = Annotated[
    list[str] | None,
    typer.Option(help="Whose tasks start first, oldest (query) or arrival (task); may be repeated, null workers only."),
]
ServiceOption = Annotated[float, typer.Option(min=0, help="Milliseconds that a null worker takes.")]
WarmUpOption = Annotated[
    int | None, typer.Option(min=0, help="Queries before the first round; by default 4 for each invocation at once.")
]
PatienceOption = Annotated[float, typer.Option(min=1, help="Seconds after which a query without an answer failed.")]
DeadlineOption = Annotated[
    int, typer.Option("--deadline-ms", min=1, max=86_340_000, help="What serfer's driver has for each query.")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="A directory to write result.json, queries.csv and picture.png to.")
]


@bench_app.command()
def burst(
    queries: QueriesOption = 100,
    model: NetworkOption = None,
    plan: PlanOption = None,
    system: SystemOption = None,
    rounds: RoundsOption = 3,
    workers: LoadWorkersOption = "local",
    concurrency: ConcurrencyOption = None,
    order: OrderOption = None,
    service_ms: ServiceOption = 5.0,
    warm_up: WarmUpOption = None,
    patience_s: PatienceOption = 600.0,
    deadline_ms: DeadlineOption = 120_000,
    directory: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send all queries at once to each system, in turn, and measure each one's latency."""
    from bench.load.burst import Burst  # noqa: PLC0415 - only this command needs it
    from bench.load.measure import Options, measure  # noqa: PLC0415 - same

    times = (service_ms, warm_up, patience_s, deadline_ms / 1000)
    choice = Options(model, plan, system, rounds, workers, concurrency, order, *times)
    with status_line() as progress:
        found = measure(Burst(queries), choice, directory, load_settings(), progress)
    _show_load(found, as_json=as_json)


@bench_app.command()
def uniform(
    rps: Annotated[float, typer.Option(help="Queries a second.")] = 5.0,
    seconds: Annotated[float, typer.Option(help="How long they come.")] = 20.0,
    pattern: Annotated[str, typer.Option(help="even, or poisson: as independent users send them.")] = "even",
    seed: Annotated[int, typer.Option(min=0, help="Of the first round's arrivals, with poisson.")] = 0,
    model: NetworkOption = None,
    plan: PlanOption = None,
    system: SystemOption = None,
    rounds: RoundsOption = 3,
    workers: LoadWorkersOption = "local",
    concurrency: ConcurrencyOption = None,
    order: OrderOption = None,
    service_ms: ServiceOption = 5.0,
    warm_up: WarmUpOption = None,
    patience_s: PatienceOption = 600.0,
    deadline_ms: DeadlineOption = 120_000,
    directory: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send queries at a rate to each system, in turn, whatever becomes of those before, and measure latencies."""
    from bench.load.measure import Options, measure  # noqa: PLC0415 - only this command needs it
    from bench.load.uniform import Uniform  # noqa: PLC0415 - same

    times = (service_ms, warm_up, patience_s, deadline_ms / 1000)
    choice = Options(model, plan, system, rounds, workers, concurrency, order, *times)
    with status_line() as progress:
        found = measure(Uniform(rps, seconds, pattern, seed), choice, directory, load_settings(), progress)
    _show_load(found, as_json=as_json)


def _show_load(found: Result, *, as_json: bool) -> None:
    """Print a load's result; raises QueryError where a query failed, so that scripts notice."""
    from bench.load.rounds import HEAD, remarks, rows  # noqa: PLC0415 - same
    from bench.planner.planner import aligned  # noqa: PLC0415 - the command line starts fast

    if as_json:
        print_json(unstructure(found))
    else:
        typer.echo("\n".join([*aligned(HEAD, rows(found)), *remarks(found)]))
    failed = sum(one.sent - one.answered for one in found.rounds)
    if failed:
        raise QueryError(f"{failed:,} of {sum(one.sent for one in found.rounds):,} queries had no right answer")


@bench_app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="A result.json of bench burst or uniform, or its place.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another one, of the same work.")],
    confidence: Annotated[float, typer.Option(min=0.5, max=0.999, help="Of the intervals.")] = 0.95,
    as_json: JsonOption = False,
) -> None:
    """Say whether B differs from A, system by system: the paired rounds' difference, with its interval."""
    from bench.core import compare as judge  # noqa: PLC0415 - only this command needs it
    from bench.load.results import read_result  # noqa: PLC0415 - same

    one, other = read_result(before), read_result(after)
    found = judge.compare(one, other, confidence)
    for warning in judge.warnings(one, other):
        complain(warning)
    if as_json:
        for each in found:
            print_json(each.as_dict())
    else:
        typer.echo(judge.table(found, confidence))


@bench_app.command()
def stores(
    store: Annotated[
        list[str] | None,
        typer.Option(help="A store's URL; may be repeated. By default memory, file, and a Redis that is started."),
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(min=1, help="Bytes of an object; may be repeated. By default 1 kB to 4 MB.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often every operation is measured; stores take turns.")] = 15,
    directory: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the round trips and bandwidth of stores: put, get, get_many and delete, by size."""
    from bench.pipeline import stores as measuring  # noqa: PLC0415 - only this command needs it

    with status_line() as progress:
        found = measuring.measure(store, size or measuring.SIZES, rounds, progress)
    _show_table(found, directory, as_json=as_json)


@bench_app.command()
def engines(
    model: ModelOption = None,
    plan: PlanOption = None,
    driver: Annotated[
        list[str] | None, typer.Option(help="push, poll, stepfunctions, stepfunctions-express; may be repeated.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Queries of each; they take turns.")] = 15,
    directory: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the engines, and handing on inline, through Redis and through S3 (with its latency injected)."""
    from bench.pipeline import engines as measuring  # noqa: PLC0415 - only this command needs it

    unknown = set(driver or ()) - {*measuring.ENGINES}
    if unknown:
        raise UsageError(f"there is no engine {', '.join(sorted(unknown))}; there are {', '.join(measuring.ENGINES)}")
    where = plan_directory(plan, model or (None if plan else "alexnet"))
    with status_line() as progress:
        found = measuring.measure(where, load_settings(), driver or measuring.ENGINES, rounds, progress)
    _show_table(found, directory, as_json=as_json)


@bench_app.command()
def micro(
    model: NetworkOption = None,
    plan: PlanOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured; they take turns.")] = 15,
    directory: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the parts of the hot path on a plan: processor time, and bytes that each allocates."""
    from bench.load.measure import network  # noqa: PLC0415 - same
    from bench.pipeline import micro as measuring  # noqa: PLC0415 - only this command needs it

    settings = load_settings()
    with status_line() as progress:
        found = measuring.measure(network(model, plan, settings, progress), settings, rounds, progress)
    _show_table(found, directory, as_json=as_json)


@bench_app.command("chaos")
def chaos_bench(
    model: NetworkOption = None,
    plan: PlanOption = None,
    queries: Annotated[int, typer.Option(min=1, max=10_000, help="Queries of each burst.")] = 300,
    only: Annotated[
        str | None,
        typer.Option(
            help="Some of killed, store, restarted, throttled, twice, slow and driver, with commas between; calm is "
            "always there. By default all."
        ),
    ] = None,
    store: Annotated[str | None, typer.Option(help="A Redis store's URL; by default each scenario starts one.")] = None,
    driver: Annotated[str, typer.Option(help="push or poll; twice is always poll.")] = "push",
    seconds: Annotated[float, typer.Option(min=1, help="For all scenarios; what has no answer by then is lost.")] = 840,
    directory: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Kill workers, driver and store, refuse, double and delay invocations while queries run: nothing may be lost."""
    from bench.chaos import scenarios  # noqa: PLC0415 - only this command needs it

    chosen = scenarios.chosen(only, driver, store)
    with status_line() as progress:
        suite = scenarios.prepared(scenarios.Options(model, plan, queries, store, seconds), load_settings(), progress)
        found = [*scenarios.measure(chosen, suite)]
    _show_table(found, directory, as_json=as_json)
    if failed := [one.scenario for one in found if one.problems]:
        raise SerferError(f"{len(failed)} of {len(found)} scenarios went wrong: {', '.join(failed)}")


def _show_table(found: Sequence[Row], directory: Path | None, *, as_json: bool) -> None:
    from bench.core.rows import report  # noqa: PLC0415 - the command line starts fast

    report(found, make_stamp(sys.argv[1:], datetime.now(UTC)), directory, as_json=as_json)


def _store_kind(store: str) -> str:
    from serfer.core.costs.aws import STORES  # noqa: PLC0415 - the command line starts fast

    if store not in STORES:
        raise UsageError(f"store is {' or '.join(STORES)}, not {store!r}")
    return store
