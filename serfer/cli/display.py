"""How results look on a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from serfer.core.costs.aws import LambdaFacts
from serfer.core.costs.cost_model import HOURS_A_MONTH, PlanPrice, latency
from serfer.core.plan import Plan, Stage

if TYPE_CHECKING:
    from sam.cost.bill import Bill
    from sam.cost.fixed import Line
    from sam.deployment import Deployment
    from serfer.core.costs.operator_costs import Profiles
    from serfer.core.costs.pricing import Prices
    from serfer.core.exactness import Difference
    from serfer.core.report import QueryReport
    from serfer.doctor.machine import Check
    from serfer.pictures.pareto import Choice
    from serfer.pipeline.verify import Verification
    from serfer.pipeline.warm import Warmth

_MB = 1024 * 1024
_MS_PER_S = 1000
_QUERIES, _THOUSAND = 1_000_000, 1_000
_MOST_ROWS = 40


def plain(text: str) -> str:
    """Return text that rich prints as it is, with control characters escaped: a terminal would obey them."""
    return escape("".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text))


def _table(*columns: str) -> Table:
    """Make a table whose first column is text and whose others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _bytes(count: float) -> str:
    return f"{count / _MB:.1f} MB" if count >= _MB else f"{count / 1024:.1f} kB"


def print_warmth(out: Console, found: Sequence[Warmth]) -> None:
    """Print what became of a warm-up, a line for each function."""
    table = _table("function", "asked", "warm", "started", "slowest start ms")
    for one in found:
        table.add_row(
            plain(one.function), str(one.asked), str(one.warm), str(one.started), f"{one.slowest_start_ms:.0f}"
        )
    out.print(table)
    for one in found:
        if one.problem:
            out.print(f"{plain(one.function)}: {plain(one.problem)}")


def print_answer(out: Console, plan: Plan, report: QueryReport, delta: Difference | None) -> None:
    """Print one query's answer: classes, stages, dollars, and how far it is from the unsplit model's."""
    for image in report.images:
        out.print(f"[bold]{plain(PurePath(image.name).name)}[/]  {plain(plan.model)}, weights: {plain(plan.weights)}")
        for prediction in image.predictions:
            out.print(f"  {prediction.score:8.2%}  {plain(prediction.label)}")
    if report.target == "cache":
        out.print(f"{report.latency_ms:.1f} ms, from the cache: nothing ran")
        return
    if report.target == "gpu":
        out.print(f"{report.latency_ms:.1f} ms, on an instance of the pool: ${report.cost_usd:.8f} of what it costs")
        return
    table = _table("stage", "grid", "tasks", "ms", "start", "bytes in", "bytes out")
    for stage in report.stages:
        start = "warm" if not stage.cold else f"{stage.cold} cold"
        row = (stage.grid, str(stage.tasks), f"{stage.ms:.1f}", start, _bytes(stage.bytes_in), _bytes(stage.bytes_out))
        table.add_row(stage.name, *row)
    out.print(table)
    store = report.store
    out.print(
        f"{report.latency_ms:.0f} ms; store: {_bytes(store.bytes_put)} written, {_bytes(store.bytes_get)} read, "
        f"{store.exists} polls; {report.retries} retries"
        + (f", {report.restarts} new beginnings" if report.restarts else "")
    )
    out.print(
        f"${report.cost_usd:.8f} on Lambda (${report.cost_usd * _QUERIES:.2f} for a million such queries): "
        "us-east-1 prices, task times of this machine"
    )
    if delta is not None:
        same = "same first class" if delta.same_top else "ANOTHER first class"
        out.print(f"difference from the unsplit model: {delta.error:.1e} of the logits' range, {same}")
    out.print()


def print_plan(out: Console, plan: Plan, facts: LambdaFacts) -> None:
    """Print a plan's stages, its functions' packages, and what it would cost and has lost."""
    out.print(f"[bold]{plain(plan.model)}[/]  weights: {plain(plan.weights)}  digest: {plan.digest[:12]}")
    out.print(f"{plan.input} in, {plan.output} out, {plan.tasks} tasks a query in {len(plan.stages)} stages")
    table = _table("stage", "grid", "operators", "in", "out", "halo", "MACs", "work", "memory", "writes", "by", "reads")
    for number, stage in enumerate(plan.stages):
        table.add_row(
            f"stage-{number}",
            str(stage.grid),
            str(len(stage.operators)),
            "+".join(str(source.shape) for source in stage.inputs),
            "+".join(str(shape) for shape in stage.outputs),
            _halo(stage),
            f"{stage.macs / 1e6:.1f} M",
            f"x{stage.inflation:.2f}",
            f"{stage.memory_mb} MB",
            _bytes(_written(stage)),
            stage.path,
            _bytes(_read(stage)) if number else "inline",
        )
    out.print(table)
    for number, stage in enumerate(plan.stages):
        first, last = stage.operators[0], stage.operators[-1]
        out.print(plain(f"stage-{number}: {first.name} ({first.kind}) to {last.name} ({last.kind})"))
    _print_packages(out, plan)
    _print_ways(out, plan)
    print_changes(out, plan)
    out.print(plain(plan.why))
    spread = latency([(stage.predicted_ms / _MS_PER_S, stage.grid.tiles) for stage in plan.stages], facts)
    p50, p95, p99 = (_MS_PER_S * spread.quantile(share) for share in (0.5, 0.95, 0.99))
    usd = sum(stage.predicted_usd for stage in plan.stages)
    out.print(
        f"predicted, warm, on Lambda over {plan.store}: p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms and "
        f"${usd * _QUERIES:.2f} for a million queries (a model: see serfer/core/costs/cost_model.py)"
    )


def print_pareto(out: Console, plan: Plan, found: Sequence[Choice]) -> None:
    """Print what a plan competed with, the fastest first, with an arrow at the plan itself."""
    out.print(
        f"[bold]{plain(plan.model)}[/]: latency against dollars of one warm query over {plain(plan.store)}, predicted"
    )
    table = _table("", "", "ms", "$ a million", "tasks", "verdict")
    table.add_column("stages", no_wrap=True)
    for each in found:
        figures = f"{each.plan.ms:,.1f}", f"{each.usd:,.2f}", str(each.plan.tasks), each.verdict
        mark = "->" if each.plan.chosen else ""
        table.add_row(mark, str(each.number), *figures, plain(each.plan.stages), style="bold" if mark else None)
    out.print(table)
    out.print("best: no plan that fits is faster and cheaper; does not fit: more than a function's package may have")
    out.print(plain(plan.why))


def print_prices(out: Console, found: Prices) -> None:
    """Print what a plan costs: a query by stage, warm and cold, a burst, and a month without queries."""
    plan, burst = found.plan, found.burst
    out.print(
        f"[bold]{plain(plan.model)}[/] over {found.store}, {found.cold_share:.1%} of the invocations cold, predicted"
    )
    table = _table("stage", "grid", "tasks", "memory", "ms", "$ a million", "read", "ranges", "written", "carried")
    for number, (stage, one) in enumerate(zip(plan.stages, found.query.stages, strict=True)):
        moved = _bytes(one.bytes_read), str(one.ranges), _bytes(one.bytes_written), _bytes(one.bytes_carried)
        figures = f"{one.seconds * _MS_PER_S:.1f}", f"{one.usd * _QUERIES:.2f}"
        table.add_row(f"stage-{number}", str(stage.grid), str(one.tasks), f"{one.memory_mb} MB", *figures, *moved)
    out.print(table)
    out.print(f"a query: {_query_price(found.query)}")
    out.print(f"a query that finds every environment cold: {_query_price(found.cold)}")
    out.print(f"a burst of {burst.queries:,}: ${burst.usd:.4f}, or ${found.cold_burst_usd:.4f} if all of it is cold")
    out.print(
        f"   at once it would keep {burst.environments:,} environments busy; with the {burst.concurrency:,} that an "
        f"account has it takes {burst.least_seconds:.1f} s or more"
    )
    out.print(
        f"an idle month ({HOURS_A_MONTH} h): ${found.standing_usd:.2f} for {found.store}, nothing for functions"
        + ("" if found.query.stored else "; no query of one image goes through the store")
    )
    if found.store != plan.store:
        out.print(f"stages and paths were chosen for {plain(plan.store)}: split with --store {found.store} for others")


def _query_price(price: PlanPrice) -> str:
    p50, p95, p99 = (_MS_PER_S * price.latency.quantile(share) for share in (0.5, 0.95, 0.99))
    return f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms, ${price.usd:.8f}"


def print_bill(out: Console, found: Bill) -> None:
    """Print what a deployment costs: what stands, what a query uses, a burst, and months of several loads."""
    plan, options = found.deployed.plan, found.deployed.options
    snapshots = ", SnapStart" if options.snapstart else ""
    out.print(
        f"[bold]{plain(plan.model)}[/] as {options.name}: drivers {options.drivers}, store {options.store}, engine "
        f"{options.engine}, {options.architecture}{snapshots}; predicted"
    )
    _print_lines(out, found, "an idle month", found.idle)
    out.print(f"an idle month: [bold]${found.idle_usd:,.2f}[/]")
    _print_queries(out, found)
    for name, usage in (("warm", found.warm), ("cold", found.cold)):
        out.print(
            f"a thousand queries, {name}: [bold]${_THOUSAND * usage.usd:,.4f}[/]; one takes {usage.seconds:.2f} s"
        )
    out.print(
        f"a burst of {found.burst:,}: ${found.burst * found.warm.usd:,.4f} warm, ${found.burst * found.cold.usd:,.4f} "
        f"cold; at once it would keep {found.environments:,} workers busy, an account has "
        f"{found.deployed.facts.functions.concurrency:,}"
    )
    table = _table("queries a month", "cold", "stands", "is used", "total")
    for month in found.months:
        used = month.usd - found.idle_usd
        row = f"{month.cold_share:.0%}", f"${found.idle_usd:,.2f}", f"${used:,.2f}", f"${month.usd:,.2f}"
        table.add_row(f"{month.queries:,}", *row)
    out.print(table)
    for line in found.assumed:
        out.print(plain(line))


def _print_lines(out: Console, found: Bill, what: str, lines: Sequence[Line]) -> None:
    table = _table(what, "", "", "$", "from")
    for line in lines:
        table.add_row(plain(line.item), f"{line.quantity:,.6g}", line.unit, f"{line.usd:,.2f}", found.tag(line))
    out.print(table)


def _print_queries(out: Console, found: Bill) -> None:
    """Print what a query uses, for a thousand of them; what only a cold one uses stands there too."""
    cold = {line.item: line for line in found.cold.lines}
    warm = {line.item: line for line in found.warm.lines}
    table = _table("a thousand queries", "each", "", "$ warm", "$ cold", "from")
    for item, line in {**cold, **warm}.items():
        dollars = [f"{_THOUSAND * usage[item].usd:.5f}" if item in usage else "-" for usage in (warm, cold)]
        table.add_row(plain(item), f"{line.quantity:,.4g}", line.unit, *dollars, found.tag(line))
    out.print(table)


def print_profiles(out: Console, profiles: Profiles) -> None:
    """Print how well each kind of operator was measured."""
    table = _table("operators", "measured", "mean error of the fit", "divided among threads")
    for kind, one in profiles.kinds.items():
        table.add_row(str(kind), f"{one.samples:,}", f"{one.error:.1%}", f"{one.parallel:.0%}")
    out.print(table)
    out.print(plain(f"{profiles.machine}; {profiles.runtime}; {profiles.date}"))


def _print_packages(out: Console, plan: Plan) -> None:
    """Print each function's package: S + D against M, in the paper's letters."""
    limit = plan.limit
    table = _table("function", "tiles", "weights and graphs (S)", "with dependencies (S + D)", "of the limit (M)")
    for stage, number in plan.functions:
        size = plan.stages[stage].functions[number].bytes
        tiles = sum(tile.function == number for tile in plan.stages[stage].tiles)
        total = size + limit.dependencies
        table.add_row(
            f"stage-{stage}/{number}", str(tiles), _bytes(size), _bytes(total), f"{total / limit.package:.0%}"
        )
    out.print(table)
    out.print(f"M = {_bytes(limit.package)} unzipped, D = {_bytes(limit.dependencies)} of code and dependencies")


def _print_ways(out: Console, plan: Plan) -> None:
    """Print how the part that was too large for one function could be deployed."""
    if not plan.ways:
        return
    out.print("the largest part that no cut divides could be deployed as:")
    table = _table("way", "functions", "weights of each", "fits", "exact")
    for way in plan.ways:
        table.add_row(
            plain(way.what),
            str(way.functions),
            _bytes(way.bytes),
            *("yes" if yes else "no" for yes in (way.fits, way.exact)),
        )
    out.print(table)


def print_changes(out: Console, plan: Plan) -> None:
    """Print what a plan computes otherwise than the model as it was given, and what that cost."""
    for change in plan.changes:
        parts = [f"same first class on {change.agreement:.1%} of {change.samples:,} {change.measured_on}"]
        if change.error is not None:
            parts.append(f"logits off by at most {change.error:.1e} of their range")
        if change.accuracy_before is not None and change.accuracy_after is not None:
            drop = 100 * (change.accuracy_before - change.accuracy_after)
            parts.append(f"accuracy {change.accuracy_before:.2%} before, {change.accuracy_after:.2%} after")
            parts.append(f"{abs(drop):.2f} points {'lost' if drop > 0 else 'gained'}")
        out.print(f"[bold]{plain(change.what)}[/] ({plain(change.how)}): {plain(', '.join(parts))}")


def print_operators(out: Console, plan: Plan) -> None:
    """Print every operator of a plan, by stage."""
    table = _table("operator", "kind", "stage", "MACs")
    for number, stage in enumerate(plan.stages):
        for operator in stage.operators:
            table.add_row(plain(operator.name), operator.kind, f"stage-{number}", f"{operator.macs:,}")
    out.print(table)


def _halo(stage: Stage) -> str:
    """Say how many more input positions all tiles read together than there are."""
    if stage.inputs[0].shape.flat:
        return "-"
    if stage.grid.columns:
        return "all"
    read = sum(tile.inputs[0].area for tile in stage.tiles)
    return f"+{read / stage.inputs[0].shape.whole.area - 1:.0%}"


def _written(stage: Stage) -> int:
    return sum(stage.written(tile) for tile in stage.tiles)


def _read(stage: Stage) -> int:
    ranges = (part for tile in stage.tiles for piece in tile.pieces for part in piece.ranges)
    return sum(part.length(1) for part in ranges)


def print_deployment(out: Console, deployment: Deployment, build: PurePath) -> None:
    """Print what was packaged, and what comes next."""
    options = deployment.options
    table = _table("function", "unzipped, with layers")
    for name, size in deployment.bytes.items():
        table.add_row(f"stage-{name}", _bytes(size))
    out.print(table)
    kept = f", beside the one before, {deployment.plans[1]}" if len(deployment.plans) > 1 else ""
    out.print(
        f"plan {deployment.current}{kept}: {options.drivers} drivers, engine {options.engine}, store {options.store}, "
        f"{options.runtime} on {options.architecture}, {options.region}; digest {deployment.digest[:12]}"
    )
    place = plain(shlex.quote(str(build)))
    out.print(
        f"next: serfer cost {place}; serfer doctor --aws --build {place}; make deploy BUILD={place}, or cd {place} && "
        "sam build && sam deploy --guided"
    )


def print_verification(out: Console, found: Verification) -> None:
    """Print how far each answer is from the unsplit model's, and what all have in common."""
    lossy = any(row.loss for row in found.rows)
    table = _table("input", "error / range", "first class", "exact", *(["loss / range", "as given"] if lossy else []))
    for row in found.rows[:_MOST_ROWS]:
        cells = [f"{row.split.error:.1e}", _same(row.split), "yes" if row.exact else "NO"]
        if row.loss:
            cells += [f"{row.loss.error:.1e}", _same(row.loss)]
        table.add_row(plain(row.input), *cells)
    out.print(table)
    if len(found.rows) > _MOST_ROWS:
        out.print(f"... and {len(found.rows) - _MOST_ROWS:,} more")
    against = "the model as it was given" if lossy else "the unsplit model"
    out.print(
        f"{len(found.rows):,} inputs: largest error {found.error:.1e} of the logits' range; same first class as "
        f"{against} on {found.agreement:.1%}"
    )


def _same(delta: Difference) -> str:
    return "same" if delta.same_top else "OTHER"


def print_checks(out: Console, checks: Sequence[Check]) -> None:
    """Print what the doctor found."""
    for check in checks:
        mark = "[green]ok     [/]" if check.ok else "[red]MISSING[/]"
        out.print(f"{mark}  {plain(check.name):<22} {plain(check.found)}")
        if not check.ok:
            out.print(f"         {plain(check.remedy)}")
