"""`serfer cost --log`: what a load costs, served in each of several ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from serfer.cli.shared.display import plain, print_table
from serfer.cli.shared.network_options import plan_of
from serfer.cli.shared.option_groups import NetworkFileOptions
from serfer.cli.shared.options import print_json, status_line
from serfer.cli.shared.plan_commands import CostCommand, LoadOptions, PriceOptions
from serfer.cli.shared.terminal import complain, out
from serfer.control.scenario import read_scenario
from serfer.core.costs.cost_model import HOURS_A_MONTH
from serfer.core.errors import InputError, UsageError
from serfer.core.options import changed
from serfer.core.plan.layout import UNSPLIT
from serfer.core.plan.window_plan import check_whole_images
from serfer.doctor.accounts import account_facts
from serfer.plan_directory import is_network, is_network_file, load_plan
from serfer.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from serfer.control.scenario import Scenario
    from serfer.core.costs.account import AccountQuotas
    from serfer.core.costs.aws import AwsFacts
    from serfer.core.plan import Plan
    from serfer.cost.loads.trace import Trace
    from serfer.cost.ways import Comparison, ServingWay

_S_PER_HOUR = 3600.0
_QUERIES = 2000  # of a load of --qps, at least, if a month has as many
_LEAST_HOURS = 24.0
_SHORT_S = 6 * _S_PER_HOUR  # a shorter log does not stand for a month
_DIGITS = 100  # dollars from which on cents are left out


def check_load(options: CostCommand, *, is_built: bool) -> None:
    if options.has_load and (wrong := changed(options, PriceOptions())):
        raise UsageError(f"--log and --qps price the load of a month: leave out {', '.join(wrong)}")
    if not options.has_load and (wrong := changed(options, LoadOptions())):
        raise UsageError(f"{', '.join(wrong)}: give --log FILE or --qps NUMBER, too")
    if options.has_load and is_built:
        raise UsageError("--log and --qps want a network or a plan directory, not a BUILD directory")


def scenario_of(options: LoadOptions, whole: Plan, facts: AwsFacts) -> Scenario:
    """Return a scenario with the instance to compare with; raises UsageError and InputError."""
    from serfer.cost.instances import predicted_instance  # noqa: PLC0415 - the command line starts fast

    if options.scenario is not None:
        return read_scenario(options.scenario)
    return predicted_instance(whole, options.instance or next(iter(facts.vcpus)), facts, options.slo_ms)


def read_load_of(options: LoadOptions, progress: Callable[[str], None]) -> Trace:
    from serfer.cost.loads.reading import read_load  # noqa: PLC0415 - the command line starts fast
    from serfer.cost.loads.trace import Trace  # noqa: PLC0415 - same

    if options.log is not None:
        load = read_load(options.log, progress, options.path)
        if len(load.rates) == load.queries == 1:
            raise InputError(
                f"{options.log} has one request, from which does not follow how many a month has: give a log of more, "
                "or --qps"
            )
        return load
    qps = options.qps or 0.0
    hours = min(max(_LEAST_HOURS, _QUERIES / qps / _S_PER_HOUR), HOURS_A_MONTH)
    return Trace.steady(f"{qps:g} queries/s at random", hours * _S_PER_HOUR, qps)


def plan_directory_of(place: Path, size: str | None, channels: int | None) -> Path:
    """Return the plan directory of a network that runs as one function, in the cache; that of a plan is its own.

    Prices do not depend on weights: named networks have random ones.
    """
    if not is_network(place):
        if size is not None or channels is not None:
            raise UsageError(f"--size and channels describe a network, and {place} is not one")
        return place
    options = NetworkFileOptions(size=size, channels=channels, random=not is_network_file(place))
    with status_line() as progress:
        return plan_of(place, options, progress, deployed=False, says=False)


def show_load_costs(directory: Path, plan: Plan, options: CostCommand) -> None:
    from serfer.cost.ways import compare_ways  # noqa: PLC0415 - same
    from serfer.sam.cost.driver_runs import DRIVER_MB  # noqa: PLC0415 - the command line starts fast

    check_whole_images(plan)
    plan = replace(plan, store=options.store or plan.store)
    plan.check_explained()
    quotas, facts = account_facts(options.account)
    with status_line() as progress:
        load = read_load_of(options, progress)
        whole = whole_plan(plan, directory, progress)[0]
        scenario = scenario_of(options, whole, facts)
        split = None if plan is whole else plan
        compared = compare_ways(load, whole, split, scenario, facts, DRIVER_MB, progress)
    for remark in load.remarks:
        complain(f"{options.log}: {remark}")
    if not options.as_json:
        _print(plan, options, compared, quotas)
    else:
        print_json({"model": plan.model, "plan": plan.digest, **compared.as_dict()})


def whole_plan(plan: Plan, directory: Path, progress: Callable[[str], None]) -> tuple[Plan, Path]:
    """Return the plan of one task of a plan's network, and its directory: in the cache where the plan splits it."""
    from serfer.wiring.network_file import plan_of_file  # noqa: PLC0415 - same

    if len(plan.stages) == 1 and len(plan.stages[0].tiles) == 1:
        return plan, directory
    place = plan_of_file(directory / UNSPLIT, load_settings(), progress)
    return load_plan(place), place


def _print(plan: Plan, options: CostCommand, compared: Comparison, quotas: AccountQuotas) -> None:
    load = compared.load
    name = f"{load.name}, {load.paths}" if load.paths else load.name
    out.print(
        plain(
            f"{plan.model}, {name}: {load.queries:,.0f} queries in {_time(load.seconds)}, {load.mean:,.3g} a "
            f"second on average and {load.peak:,.3g} at most; a month of that has {compared.queries_a_month:,.0f}"
        )
    )
    heads = ["", "$ a month", "p50 ms", "p99 ms", "cold", "unanswered"]
    print_table(heads, [(way.name, *_row(way)) for way in compared.ways])
    out.print(plain(_advice(compared)))
    for line in (*_assumed(options, compared), f"functions answer what they can in {quotas}"):
        out.print(plain(line))


def _row(way: ServingWay) -> list[str]:
    return [
        _dollars(way.month_usd),
        *("-" if value is None else f"{value:,.0f}" for value in (way.p50_ms, way.p99_ms)),
        "-" if way.cold_share is None else f"{way.cold_share:.2%}",
        f"{way.unanswered:.2%}",
    ]


def _dollars(usd: float) -> str:
    return f"{usd:,.0f}" if usd >= _DIGITS else f"{usd:,.2f}"


def _time(seconds: float) -> str:
    hours = seconds / _S_PER_HOUR
    return f"{hours:,.1f} h" if hours >= 1 else f"{seconds:,.0f} s"


def _advice(compared: Comparison) -> str:
    kind, least, in_time = compared.instance, compared.least, compared.least_in_time
    price = f"one {kind.name} (${kind.usd_per_hour:g} an hour)"
    first = f"least: {_named(least)} a month"
    if in_time is None:
        first += f"; p99 of none is within {compared.slo_ms:,.0f} ms"
    elif in_time is not least:
        first += f"; with p99 within {compared.slo_ms:,.0f} ms: {_named(in_time)}"
    if compared.wins_from is None:
        most = f"{kind.qps * _S_PER_HOUR:,.0f}"
        return f"{first}; {price} takes at most {most} queries an hour, for which functions cost less"
    return (
        f"{first}; {price} costs less than {compared.functions} from {compared.wins_from:,.0f} queries an hour on, "
        f"this load has {compared.load.mean * _S_PER_HOUR:,.0f}"
    )


def _named(way: ServingWay) -> str:
    return f"{way.name.strip()}, ${_dollars(way.month_usd)}"


def _assumed(options: CostCommand, compared: Comparison) -> list[str]:
    load, kind = compared.load, compared.instance
    names = " and the ".join(f"{window.name} {_time(window.end_s - window.begin_s)}" for window in compared.windows)
    what = "every query" if compared.whole else f"every query of the {names}"
    speed = "its vCPUs" if kind.name in load_settings().facts().vcpus else "a guess at its GPU"
    speed = f"{options.scenario}" if options.scenario else speed
    lines = [
        f"simulated: {what}; SerFer decides every {compared.period_s:g} s, for {compared.slo_ms:,.0f} ms (--slo-ms)",
        f"predicted: seconds of functions by operator profiles, of {kind.name} by {speed}",
        "assumed: prices, how long environments stay and instances boot (aws.toml); SageMaker as fast as Lambda",
        "left out: load balancer or API, logs, disks; split has its driver function (docs/how-to/bill.md)",
    ]
    if options.log is not None and load.seconds < _SHORT_S:
        lines.append(f"the log covers {_time(load.seconds)} alone: a month may be otherwise; a week tells more")
    return lines
