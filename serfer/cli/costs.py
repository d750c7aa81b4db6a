"""`serfer cost`: what plans, deployments and loads cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from serfer.cli.explain import print_months, print_starts, quantiles
from serfer.cli.shared.display import byte_size, plain, print_table, styled
from serfer.cli.shared.load_costs import check_load, plan_directory_of, show_load_costs
from serfer.cli.shared.options import print_json
from serfer.cli.shared.plan_commands import CostCommand
from serfer.cli.shared.plan_summary import figures_line, idle_line
from serfer.cli.shared.terminal import out
from serfer.core.costs.account import AccountQuotas
from serfer.core.costs.cost_model import GangPrice
from serfer.core.costs.pricing import Circumstances, Prices, price
from serfer.core.errors import UsageError
from serfer.core.plan.window_plan import priced_query
from serfer.core.units import MS_PER_S
from serfer.doctor.accounts import account_facts
from serfer.plan_directory import load_cold_plan, load_plan

if TYPE_CHECKING:
    from serfer.sam.cost.bill import Bill, Month

_MILLION = 1_000_000


def cost(options: CostCommand, _context: typer.Context) -> None:
    from serfer.sam.options import is_build  # noqa: PLC0415 - the command line starts fast

    built = is_build(options.directory)
    check_load(options, is_built=built)
    directory = plan_directory_of(options.directory, options.size, options.channels)
    if built:
        if options.store is not None or options.memory is not None:
            raise UsageError(f"{directory} has its store and memory: package it with others, or give a plan directory")
        _cost_of_build(options)
        return
    if options.parameter:
        raise UsageError(f"--parameter wants a BUILD directory, not {directory}")
    plan = load_plan(directory)
    if options.has_load:
        show_load_costs(directory, plan, options)
        return
    given = Circumstances(options.store, options.memory, options.cold_share, options.burst)
    quotas, facts = account_facts(options.account)
    prices = price(priced_query(plan), facts, given, load_cold_plan(directory, plan))
    if options.as_json:
        print_json(prices.as_dict() | prices.months(options.per_month))
    else:
        _print_prices(prices, quotas)
        print_months(prices, options.per_month)


def _cost_of_build(options: CostCommand) -> None:
    from serfer.sam.cost.bill import price_build  # noqa: PLC0415 - the command line starts fast
    from serfer.sam.deployment import load_deployment  # noqa: PLC0415 - same

    pairs = [text.partition("=") for text in options.parameter]
    if (wrong := next((name for name, sign, _ in pairs if not (name and sign)), None)) is not None:
        raise UsageError(f"--parameter is NAME=VALUE, not {wrong!r}")
    quotas, facts = account_facts(options.account, load_deployment(options.directory).options.region)
    bill = price_build(
        options.directory,
        facts,
        burst=options.burst,
        loads=options.per_month or None,
        cold_share=options.cold_share,
        parameters={name: value for name, _, value in pairs},
    )
    if options.as_json:
        print_json(bill.as_dict())
    else:
        _print_bill(bill, quotas)


def _print_prices(prices: Prices, quotas: AccountQuotas) -> None:
    plan, burst, stored = prices.plan, prices.burst, prices.stored
    over = f" over {prices.store}" if stored else ""
    out.print(styled(plan.model), f"{over}, {prices.cold_share:.1%} of the queries cold, predicted", sep="")
    cold = f"{100 * prices.cold_share:.3g}% cold"
    heads = ["stage", "grid", "tasks", "memory", f"ms, {cold}", f"$ a million, {cold}"]
    heads += ["read", "ranges", "written", "carried"]
    rows = [
        (
            *(prices.query.name(step), str(plan.stages[numbers.start].grid), str(stage.tasks), f"{stage.memory_mb} MB"),
            *(f"{stage.seconds * MS_PER_S:.1f}", f"{stage.usd * _MILLION:.2f}", byte_size(stage.bytes_read)),
            *(str(stage.ranges), byte_size(stage.bytes_written), byte_size(stage.bytes_carried)),
        )
        for step, (numbers, stage) in enumerate(zip(prices.query.numbers, prices.query.stages, strict=True))
    ]
    print_table(heads, rows)
    for step, stage in enumerate(prices.query.stages):
        if isinstance(stage, GangPrice):
            out.print(
                f"{prices.query.name(step)} is a gang: {stage.exchanges} exchanges, {byte_size(stage.bytes_exchanged)} "
                f"of borders, {stage.waiting_gb_s:.3f} GB-seconds of {stage.billed_gb_s:.3f} waiting"
            )
    out.print(plain(figures_line(prices)))
    out.print(f"a query: {quantiles(prices.query.latency)}")
    cold = f"{quantiles(prices.cold.latency)}, ${prices.cold.usd * _MILLION:,.2f} a million queries"
    out.print(f"a query that finds every environment cold: {cold}")
    print_starts(prices)
    out.print(f"a burst of {burst.queries:,}: ${burst.usd:.4f}, or ${prices.cold_burst_usd:.4f} if all of it is cold")
    least = f"takes {burst.least_seconds:.1f} s or more"
    out.print(plain(f"   at once it would keep {burst.environments:,} environments busy; in {quotas} it {least}"))
    out.print(idle_line(prices))
    if stored and prices.store != plan.store:
        out.print(f"stages and paths were chosen for {plain(plan.store)}: split with --store {prices.store} for others")


def _print_bill(bill: Bill, quotas: AccountQuotas) -> None:
    plan, options = bill.deployed.plan, bill.deployed.options
    snapshots = ", SnapStart" if options.snapstart else ""
    out.print(
        styled(plan.model),
        f"as {options.name}: drivers {options.drivers}, store {options.store}, engine {options.engine}, "
        f"{options.architecture}{snapshots}; predicted",
    )
    lines = bill.idle
    idle = ((line.item, f"{line.quantity:,.6g}", line.unit, f"{line.usd:,.2f}", bill.tag(line)) for line in lines)
    print_table(["an idle month", "", "", "$", "from"], idle)
    _print_queries(bill)
    print_totals(bill)
    out.print(
        f"a burst of {bill.burst:,}: ${bill.burst * bill.warm.usd:,.4f} warm, ${bill.burst * bill.cold.usd:,.4f} "
        f"cold; at once it would keep {bill.environments:,} workers busy in {plain(str(quotas))}"
    )
    if bill.limits:
        out.print(f"the API takes {bill.limits}, and refuses more: --parameter has other limits")
    months = ((bill.load(month), f"{month.cold_share:.0%}", *_month_usd(bill, month)) for month in bill.months)
    print_table(["queries a month", "cold", "stands", "is used", "total"], months)
    for line in bill.assumed:
        out.print(plain(line))


def print_totals(bill: Bill) -> None:
    out.print(f"the plan alone: {plain(figures_line(price(bill.deployed.plan, bill.deployed.facts, Circumstances())))}")
    out.print("an idle month:", styled(f"${bill.idle_usd:,.2f}"))
    share, some = bill.mixed
    for name, part, usage in (
        ("warm", 0, bill.warm),
        (f"{100 * share:.3g}% cold", share, some),
        ("cold", 1, bill.cold),
    ):
        ms = f"{MS_PER_S * bill.seconds(usage, part):,.0f} ms"
        out.print(f"a million queries, {name}: ", styled(f"${_MILLION * usage.usd:,.2f}"), f"; one takes {ms}", sep="")


def _month_usd(bill: Bill, month: Month) -> list[str]:
    return [f"${usd:,.2f}" for usd in (bill.idle_usd, month.usd - bill.idle_usd, month.usd)]


def _print_queries(bill: Bill) -> None:
    cold = {line.item: line for line in bill.cold.lines}
    warm = {line.item: line for line in bill.warm.lines}
    rows = []
    for item, line in {**cold, **warm}.items():
        dollars = [f"{_MILLION * usage[item].usd:,.2f}" if item in usage else "-" for usage in (warm, cold)]
        rows.append((item, f"{line.quantity:,.4g}", line.unit, *dollars, bill.tag(line)))
    print_table(["a million queries", "each", "", "$ warm", "$ cold", "from"], rows)
