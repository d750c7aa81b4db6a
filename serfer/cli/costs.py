"""`serfer cost` and `serfer study profile`: what plans and deployments cost, and what operators take here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serfer.cli.explain import print_cold_choice, print_cold_starts, print_months, print_starting_ways
from serfer.cli.shared.display import byte_size, columns, plain
from serfer.cli.shared.load_costs import LoadOptions, show_load_costs
from serfer.cli.shared.named_model import WeightsFrom
from serfer.cli.shared.network_options import ChannelsOption, FileOptions, SizeOption, plan_of
from serfer.cli.shared.options import JsonOption, PerMonthOption, print_json, share, status_line
from serfer.cli.shared.terminal import err, out
from serfer.control.infless.measured import dump_profile, measured_profile
from serfer.core.costs.cost_model import HOURS_A_MONTH, GangPrice, PlanPrice
from serfer.core.costs.operator_costs import Profiles, dump_profiles
from serfer.core.costs.pricing import Circumstances, Prices, price, uses_store
from serfer.core.errors import UsageError
from serfer.core.plan.window_plan import check_whole_images, priced_query
from serfer.core.units import MS_PER_S
from serfer.files import check_place, write_whole
from serfer.plan_directory import check_artefacts, is_network, is_network_file, load_cold_plan, load_plan
from serfer.settings import load_settings
from serfer.splitter.network.description import Description

if TYPE_CHECKING:
    from serfer.core.plan import Plan
    from serfer.sam.cost.bill import Bill
    from serfer.sam.cost.fixed import Line

_THOUSAND, _MILLION = 1_000, 1_000_000
_QUICK_NETWORKS, _QUICK_ROUNDS = (("squeezenet", 224), ("mobilenet-v2", 224)), 2


def cost(
    context: typer.Context,
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="NETWORK_OR_DIR",
            help="A plan directory, a BUILD directory of serfer deploy package; or an .onnx file, timm:NAME or "
            "torchvision:NAME, priced as one function.",
        ),
    ],
    log: Annotated[
        Path | None,
        typer.Option(
            help="Price a month of the load in an access log, each way to serve it (docs/how-to/bill.md): nginx's, "
            "Apache's, a load balancer's, CloudFront's, CSV with a time in each row, a load of simulate; plain or .gz."
        ),
    ] = None,
    qps: Annotated[
        float | None,
        typer.Option(min=1e-6, max=1e4, help="Without a log: a load of so many queries a second, at random."),
    ] = None,
    path: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="With --log: count requests whose URL's path begins with this.")
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="With --log or --qps: the instance to compare with, whose speed is predicted. [default: c7i.large]",
        ),
    ] = None,
    slo_ms: Annotated[
        float | None,
        typer.Option(
            min=1, help="With --log or --qps: in how many ms an instance has to answer. [default: 1000, or more]"
        ),
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --log or --qps: a TOML file with an instance as it was measured (serfer study tune), and "
            "slo_ms.",
        ),
    ] = None,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            help="With --log or --qps: run the busiest minutes for real, through functions and an instance of this "
            "machine, and show what was simulated for them beside what was measured.",
        ),
    ] = False,
    replay_minutes: Annotated[
        float | None,
        typer.Option(
            min=0.05, max=10, help="With --replay: how many minutes; two ways are run for so long each. [default: 10]"
        ),
    ] = None,
    size: SizeOption = None,
    channels: ChannelsOption = None,
    burst: Annotated[int, typer.Option(min=1, max=10**12, help="How many queries come at once.")] = 1000,
    store: Annotated[
        str | None, typer.Option(help="redis, s3, valkey, redis+s3 or valkey+s3; by default the plan's own.")
    ] = None,
    cold_share: Annotated[
        float | None,
        typer.Option(
            help="The share of queries that find nothing warm, 0 to 1; by default what the plan was chosen for (0.02 "
            "is assumed), with BUILD the share of queries that come at random."
        ),
    ] = None,
    memory: Annotated[int | None, typer.Option(help="MB of every function; by default each stage's own.")] = None,
    per_month: PerMonthOption = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="With BUILD: a parameter of its template, such as AlarmEmail=x."),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="With BUILD: a table of all drivers, stores and engines, in Markdown.")
    ] = False,
    cluster_profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write what batches of the unsplit network take on cores, as [[profiles]] of a cluster's scenario of "
            "simulate, to this TOML file.",
        ),
    ] = None,
    profiles: Annotated[
        Path | None,
        typer.Option(help="With --cluster-profile: operator profiles to predict by, from serfer study profile."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Price a network, a plan or a deployment on AWS, as predicted: queries, a burst, months, the load of a log."""
    from serfer.sam.options import is_build  # noqa: PLC0415 - the command line starts fast

    load = LoadOptions(log, qps, path, scenario, instance, slo_ms, store, replay, replay_minutes)
    load.check(context, is_built=is_build(directory))
    directory = _plan_directory(directory, size, channels)
    cold = None if cold_share is None else share("--cold-share", cold_share, 1)
    if profiles is not None and cluster_profile is None:
        raise UsageError("--profiles is what --cluster-profile predicts by; a plan has the predictions of serfer split")
    if is_build(directory):
        if cluster_profile is not None:
            raise UsageError(f"--cluster-profile takes a plan directory, not the BUILD directory {directory}")
        if store is not None or memory is not None:
            raise UsageError(f"{directory} has its store and memory: package it with others, or give a plan directory")
        if compare:
            _compare_costs(directory, per_month, as_json)
        else:
            _cost_of_build(directory, burst, cold, per_month, parameter, as_json)
        return
    if compare or parameter:
        raise UsageError(f"--compare and --parameter want a BUILD directory, not {directory}")

    plan = load_plan(directory)
    if cluster_profile is not None:
        _write_cluster_profile(plan, directory, cluster_profile, profiles)
    if load.given:
        show_load_costs(directory, plan, load, as_json=as_json)
        return
    given = Circumstances(store, memory, cold, burst)
    prices = price(priced_query(plan), load_settings().facts(), given, load_cold_plan(directory, plan))
    if as_json:
        print_json(prices.as_dict() | prices.months(per_month or ()))
    else:
        _print_prices(prices)
        print_months(prices, per_month or ())


def _plan_directory(place: Path, size: str | None, channels: int | None) -> Path:
    """Return the plan directory of a network that runs as one function, in the cache; that of a plan is its own.

    Prices do not depend on weights: named networks have random ones.
    """
    if not is_network(place):
        if size is not None or channels is not None:
            raise UsageError(f"--size and --channels describe a network, and {place} is not one")
        return place
    weights = WeightsFrom(random=not is_network_file(place))
    with status_line() as progress:
        return plan_of(place, FileOptions(size, channels, Description(), weights), progress, deployed=False, says=False)


def _write_cluster_profile(plan: Plan, directory: Path, file: Path, given: Path | None) -> None:
    """Write what the unsplit network takes on cores; raises PlanError for a map plan, InputError and ModelError."""
    check_whole_images(plan)
    check_place(file)
    measured = load_settings().profiles(given)
    check_artefacts(plan, directory)
    with status_line() as progress:
        progress(f"reading {plan.unsplit.path}")
        from serfer.splitter.profiling.whole_network import read_whole_works  # noqa: PLC0415 - imports onnx

        works = read_whole_works(directory / plan.unsplit.path, plan.input.height, plan.input.width)
    write_whole(file, dump_profile(measured_profile(plan.model, works, measured), measured).encode())
    err.print(f"wrote {plain(str(file))}: add it to a cluster's scenario of serfer study simulate", soft_wrap=True)


def _cost_of_build(
    build: Path,
    burst: int,
    cold_share: float | None,
    loads: list[int] | None,
    parameters: list[str] | None,
    as_json: bool,  # noqa: FBT001 - a command's flag, passed on
) -> None:
    from serfer.sam.cost.bill import price_build  # noqa: PLC0415 - the command line starts fast

    pairs = [text.partition("=") for text in parameters or ()]
    if (wrong := next((name for name, sign, _ in pairs if not (name and sign)), None)) is not None:
        raise UsageError(f"--parameter is NAME=VALUE, not {wrong!r}")
    given = {name: value for name, _, value in pairs}
    facts = load_settings().facts()
    bill = price_build(build, facts, burst=burst, loads=loads, cold_share=cold_share, parameters=given)
    if as_json:
        print_json(bill.as_dict())
    else:
        _print_bill(bill)


def _compare_costs(build: Path, loads: list[int] | None, as_json: bool) -> None:  # noqa: FBT001 - same
    from serfer.sam.cost.bill import (  # noqa: PLC0415 - same
        LOADS,
        compare_build,
        markdown,
    )

    rows = compare_build(build, load_settings().facts(), loads)
    if as_json:
        for row in rows:
            print_json(asdict(row))
    else:
        print(markdown(rows, loads or LOADS))  # noqa: T201 - Markdown goes out as it is


def profile(
    file: Annotated[Path, typer.Option("--out", help="The JSON file to write.")] = Path("profiles.json"),
    quick: Annotated[bool, typer.Option("--quick", help="Measure less: one to three minutes, less exact.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure on this machine what operators cost, for split --profiles: three to five minutes on a quiet machine."""
    check_place(file)
    from serfer.splitter.profiling.profile import measure  # noqa: PLC0415 - imports onnx

    with status_line() as progress:
        profiles = measure(progress, _QUICK_NETWORKS, _QUICK_ROUNDS) if quick else measure(progress)
    write_whole(file, dump_profiles(profiles).encode())
    if as_json:
        print_json(json.loads(dump_profiles(profiles)))
    else:
        _print_profiles(profiles)
    err.print(
        f"wrote {plain(str(file))}: give it to split --profiles, or set SERFER_PROFILES_FILE to it",
        soft_wrap=True,
    )


def _print_prices(prices: Prices) -> None:
    """Print what a plan costs: a query by stage, warm and cold, a burst, and a month without queries."""
    plan, burst = prices.plan, prices.burst
    out.print(
        f"[bold]{plain(plan.model)}[/] over {prices.store}, {prices.cold_share:.1%} of the queries cold, predicted"
    )
    table = columns("stage", "grid", "tasks", "memory", "ms", "$ a million", "read", "ranges", "written", "carried")
    for step, (numbers, one) in enumerate(zip(prices.query.numbers, prices.query.stages, strict=True)):
        moved = (
            byte_size(one.bytes_read),
            str(one.ranges),
            byte_size(one.bytes_written),
            byte_size(one.bytes_carried),
        )
        figures = f"{one.seconds * MS_PER_S:.1f}", f"{one.usd * _MILLION:.2f}"
        grid = str(plan.stages[numbers.start].grid)
        table.add_row(prices.query.name(step), grid, str(one.tasks), f"{one.memory_mb} MB", *figures, *moved)
    out.print(table)
    for step, one in enumerate(prices.query.stages):
        if isinstance(one, GangPrice):
            out.print(
                f"{prices.query.name(step)} is a gang: {one.exchanges} exchanges, {byte_size(one.bytes_exchanged)} of "
                f"borders, {one.waiting_gb_s:.3f} GB-seconds of {one.billed_gb_s:.3f} waiting"
            )
    out.print(f"a query: {_query_price(prices.query)}")
    out.print(f"a query that finds every environment cold: {_query_price(prices.cold)}")
    print_cold_starts(plan, prices.cold)
    print_starting_ways(prices.ways, prices.cold_share)
    if prices.cold_plan and prices.choice:
        print_cold_choice(prices.cold_plan, prices.choice, burst.queries)
    out.print(f"a burst of {burst.queries:,}: ${burst.usd:.4f}, or ${prices.cold_burst_usd:.4f} if all of it is cold")
    out.print(
        f"   at once it would keep {burst.environments:,} environments busy; with the {burst.concurrency:,} that an "
        f"account has it takes {burst.least_seconds:.1f} s or more"
    )
    idle = f"an idle month ({HOURS_A_MONTH} h): ${prices.standing_usd:.2f} for {prices.store}, nothing for functions"
    out.print(f"{idle}; {_deployed_store(prices)}")
    if prices.store != plan.store:
        out.print(f"stages and paths were chosen for {plain(plan.store)}: split with --store {prices.store} for others")


def _deployed_store(prices: Prices) -> str:
    """Return what `serfer deploy package` deploys for the store that is priced, and what that costs idle."""
    if not uses_store(prices.plan, load_settings().facts()):
        return "no stage hands anything on through a store, so that serfer deploy package deploys s3, $0.00 idle"
    if not prices.store.startswith("redis"):
        return f"serfer deploy package deploys {prices.store.partition('+')[0]}"
    least = HOURS_A_MONTH * load_settings().facts().redis_serverless.price_hour
    return f"serfer deploy package deploys redis without a node, ElastiCache Serverless, from ${least:.2f} idle"


def _query_price(price: PlanPrice) -> str:
    p50, p95, p99 = (MS_PER_S * price.latency.quantile(share) for share in (0.5, 0.95, 0.99))
    return f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms, ${price.usd:.8f}"


def _print_bill(bill: Bill) -> None:
    """Print what a deployment costs: what stands, what a query uses, a burst, and months of several loads."""
    plan, options = bill.deployed.plan, bill.deployed.options
    snapshots = ", SnapStart" if options.snapstart else ""
    out.print(
        f"[bold]{plain(plan.model)}[/] as {options.name}: drivers {options.drivers}, store {options.store}, engine "
        f"{options.engine}, {options.architecture}{snapshots}; predicted"
    )
    _print_lines(bill, "an idle month", bill.idle)
    out.print(f"an idle month: [bold]${bill.idle_usd:,.2f}[/]")
    _print_queries(bill)
    for name, usage in (("warm", bill.warm), ("cold", bill.cold)):
        out.print(
            f"a thousand queries, {name}: [bold]${_THOUSAND * usage.usd:,.4f}[/]; one takes {usage.seconds:.2f} s"
        )
    out.print(
        f"a burst of {bill.burst:,}: ${bill.burst * bill.warm.usd:,.4f} warm, ${bill.burst * bill.cold.usd:,.4f} "
        f"cold; at once it would keep {bill.environments:,} workers busy, an account has "
        f"{bill.deployed.facts.functions.concurrency:,}"
    )
    table = columns("queries a month", "cold", "stands", "is used", "total")
    for month in bill.months:
        used = month.usd - bill.idle_usd
        row = f"{month.cold_share:.0%}", f"${bill.idle_usd:,.2f}", f"${used:,.2f}", f"${month.usd:,.2f}"
        table.add_row(f"{month.queries:,}", *row)
    out.print(table)
    for line in bill.assumed:
        out.print(plain(line))


def _print_lines(bill: Bill, what: str, lines: Sequence[Line]) -> None:
    table = columns(what, "", "", "$", "from")
    for line in lines:
        table.add_row(plain(line.item), f"{line.quantity:,.6g}", line.unit, f"{line.usd:,.2f}", bill.tag(line))
    out.print(table)


def _print_queries(bill: Bill) -> None:
    """Print what a query uses, for a thousand of them; what only a cold one uses stands there too."""
    cold = {line.item: line for line in bill.cold.lines}
    warm = {line.item: line for line in bill.warm.lines}
    table = columns("a thousand queries", "each", "", "$ warm", "$ cold", "from")
    for item, line in {**cold, **warm}.items():
        dollars = [f"{_THOUSAND * usage[item].usd:.5f}" if item in usage else "-" for usage in (warm, cold)]
        table.add_row(plain(item), f"{line.quantity:,.4g}", line.unit, *dollars, bill.tag(line))
    out.print(table)


def _print_profiles(profiles: Profiles) -> None:
    """Print how well each kind of operator was measured."""
    table = columns("operators", "measured", "mean error of the fit", "divided among threads")
    for kind, one in profiles.kinds.items():
        table.add_row(str(kind), f"{one.samples:,}", f"{one.error:.1%}", f"{one.parallel:.0%}")
    out.print(table)
    out.print(plain(f"{profiles.machine}; {profiles.runtime}; {profiles.date}"))
