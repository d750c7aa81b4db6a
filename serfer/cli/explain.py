"""`serfer explain`: what a plan is, what it costs, and what it competed with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path

import numpy as np
import typer

from serfer.cli.shared.display import byte_size, counted, plain, print_table, styled
from serfer.cli.shared.options import print_json
from serfer.cli.shared.plan_commands import ExplainCommand
from serfer.cli.shared.plan_summary import described, figures_line, idle_line
from serfer.cli.shared.terminal import err, out
from serfer.core.costs.aws import LambdaFacts
from serfer.core.costs.cold_queries import ColdChoice, ColdPrice, StartingWay
from serfer.core.costs.cost_model import (
    MEASURED_MEMBERS,
    Latency,
    Platform,
    gang_load,
    price_gang,
)
from serfer.core.costs.pricing import Circumstances, Prices, latency_ms, price
from serfer.core.dataclass_codec import unstructure
from serfer.core.errors import UsageError
from serfer.core.inline_outputs import PAYLOAD_SHARE
from serfer.core.plan import CONTAINER, Plan, Stage, explained
from serfer.core.plan.window_plan import check_whole_images, priced_query
from serfer.core.units import MS_PER_S
from serfer.doctor.accounts import account_facts
from serfer.plan_directory import load_cold_plan, load_plan
from serfer.settings import load_settings

_MILLION = 1_000_000


def explain(options: ExplainCommand, _context: typer.Context) -> None:
    directory, picture, image = options.directory, options.picture, options.image
    if image is not None and picture is None:
        raise UsageError("--image is what --picture draws over: give both")
    plan = load_plan(directory)
    if options.pareto:
        _show_pareto(plan, as_json=options.as_json)
    elif options.as_json:
        print_plan_json(plan, options.per_month)
    else:
        given = Circumstances(burst=options.burst)
        prices = price(priced_query(plan), account_facts()[1], given, load_cold_plan(directory, plan))
        _print_plan(plan, prices, options.per_month)
    if options.operators:
        _print_operators(plan)
    if picture is not None:
        _draw(priced_query(plan), picture, image)


def _show_pareto(plan: Plan, *, as_json: bool) -> None:
    from serfer.control.alternatives import choices, query_of  # noqa: PLC0415 - the command line starts fast

    check_whole_images(plan)  # a map plan competed with other sizes of windows alone
    rows = []
    for candidate in choices(plan):
        alternative = candidate.plan
        if as_json:
            print_json({"number": candidate.number, **asdict(alternative), "best": candidate.best})
        parts = ("-" if ms is None else f"{ms:,.1f}" for ms in (alternative.warm_ms, alternative.cold_ms))
        figures = f"{alternative.ms:,.1f}", *parts, f"{candidate.usd:,.2f}", str(alternative.tasks), candidate.verdict
        rows.append(("->" if alternative.chosen else "", str(candidate.number), *figures, alternative.stages))
    if as_json:
        return
    text = f": latency against dollars of {query_of(plan)} over {plain(plan.store)}, predicted"
    out.print(styled(plan.model), text, sep="")
    print_table(["", "", "mean ms", "warm", "cold", "$ a million", "tasks", "verdict", "stages"], rows, left=(0, 8))
    out.print("best: no plan that fits is faster and cheaper; does not fit: more than a function's package may have")
    out.print(plain(plan.why))


def _draw(plan: Plan, picture: Path, image: Path | None) -> None:
    from serfer.pictures import draw_plan, picture_pixels  # noqa: PLC0415 - only pictures need it

    draw_plan(plan, picture, picture_pixels(plan, image, load_settings().image_limits()) if image else None)
    err.print(f"wrote {plain(str(picture))}", soft_wrap=True)


def print_plan_json(plan: Plan, per_month: Sequence[int] = ()) -> None:
    months = price(priced_query(plan), load_settings().facts(), Circumstances()).months(per_month) if per_month else {}
    print_json({**unstructure(plan), **months})


def _print_plan(plan: Plan, prices: Prices, per_month: Sequence[int]) -> None:
    priced, facts = prices.plan, load_settings().facts()
    out.print(styled(plan.model), f" weights: {plain(plan.weights)}  digest: {plan.digest[:12]}")
    query = f"{counted(plan.tasks, 'task')} a query in {counted(len(plan.stages), 'stage')}"
    if (invocations := sum(stage.tasks for stage in prices.query.stages)) < plan.tasks:  # of members of gangs
        query += f", by {counted(invocations, 'invocation')}"
    if plan.windows:
        query = f"a query is one window, a task, of {len(plan.stages[0].tiles)} kinds"
    of_many = " (the largest of many sizes)" if plan.sizes else ""
    out.print(f"{plan.input} in{of_many}, {plan.output} out, {query}")
    for line in described(plan):
        out.print(line, soft_wrap=True)
    if plan.windows:
        out.print("the commonest window:")
    _print_stages(priced, leave_out=("grid", "halo") if plan.windows else ())
    for number, stage in enumerate(plan.stages):
        first, last = stage.operators[0], stage.operators[-1]
        out.print(plain(f"stage-{number}: {first.name} ({first.kind}) to {last.name} ({last.kind})"))
    _print_outputs(plan, facts.functions)
    _print_gangs(plan, Platform.over(facts, plan.store))
    _print_packages(plan, facts.functions.image_limit)
    _print_deployment_options(plan)
    for line in changes_of(plan):
        out.print(plain(line))
    print_starts(prices)
    out.print(plain(plan.why))
    out.print(plain(figures_line(prices)))
    over = f", over {plan.store}" if prices.stored else ""
    out.print(f"warm{over}: {quantiles(prices.warm.latency)} (a model: see docs/explanation/cost.md)")
    print_months(prices, per_month)
    out.print(idle_line(prices))
    if plan.tasks > 1:
        from serfer.pictures import text_picture  # noqa: PLC0415 - the command line starts fast

        out.print("\n".join(map(plain, text_picture(priced).split("\n"))), soft_wrap=True)


def quantiles(latency: Latency) -> str:
    return ", ".join(f"{name} {ms:.0f} ms" for name, ms in latency_ms(latency).items() if name != "mean")


def print_months(prices: Prices, per_month: Sequence[int]) -> None:
    for queries in per_month:
        out.print(
            f"a month of {queries:,} queries: ${prices.month_usd(queries):,.2f}, ${prices.standing_usd:,.2f} of it for "
            f"an idle {prices.store}, {prices.cold_share:.1%} of the queries cold"
        )


def _print_stages(plan: Plan, leave_out: Sequence[str]) -> None:
    from serfer.pictures.anatomy import read, written  # noqa: PLC0415 - the command line starts fast

    rows = [
        {
            "stage": f"stage-{number}",
            "grid": str(stage.grid),
            "operators": str(len(stage.operators)),
            "in": "+".join(str(source.shape) for source in stage.inputs),
            "out": "+".join(str(shape) for shape in stage.outputs),
            "halo": _halo(stage),
            "MACs": f"{stage.macs / 1e6:.1f} M",
            "work": f"x{stage.inflation:.2f}",
            "memory": f"{stage.memory_mb} MB",
            "writes": byte_size(written(stage)),
            "by": stage.path,
            "reads": byte_size(read(stage)) if number else "inline",
        }
        for number, stage in enumerate(plan.stages)
    ]
    names = [name for name in rows[0] if name not in leave_out]
    print_table(names, [[row[name] for name in names] for row in rows])


def _print_outputs(plan: Plan, facts: LambdaFacts) -> None:
    rows = []
    for tensor in plan.output_tensors:
        size = byte_size(prod(tensor.dims) * np.dtype(tensor.dtype).itemsize)
        rows.append((tensor.name, "x".join(map(str, tensor.dims)) or "1", tensor.dtype, size))
    print_table(["output", "shape", "type", "an image's answer"], rows)
    if plan.detection:
        out.print(plain(plan.detection.in_words()), soft_wrap=True)
    last, limit = plan.stages[-1], int(facts.sync_payload_limit * PAYLOAD_SHARE)
    largest = max(last.written(tile) for tile in last.tiles)
    if largest > limit:
        out.print(
            f"a task of the last stage answers an image with up to {byte_size(largest)}, and a function's response "
            f"carries {byte_size(limit)} of tensors: it goes through the store (smaller: serfer split "
            "--set reduce=...; left where tiles write it: serfer run --keep)"
        )


def _print_gangs(plan: Plan, platform: Platform) -> None:
    rows = []
    for gang in plan.gangs:
        first = plan.stages[gang.start]
        price = price_gang(gang_load(plan, gang), first.memory_mb, platform)
        simulated = ", simulated" if first.grid.tiles > MEASURED_MEMBERS else ""
        row = f"stages {gang.start} to {gang.stop - 1}", str(first.grid), str(first.grid.tiles), str(price.exchanges)
        seconds = f"{price.billed_gb_s:.3f}", f"{price.waiting_gb_s:.3f}"
        predicted = f"{explained(gang.predicted_ms):.1f}{simulated}", f"{explained(gang.predicted_usd) * _MILLION:.2f}"
        rows.append((*row, byte_size(price.bytes_exchanged), *seconds, *predicted))
    if rows:
        heads = ["gang", "grid", "members", "exchanges", "borders", "GB-s", "of them waiting", "ms", "$ a million"]
        print_table(heads, rows)
        out.print("a gang is one function, invoked for each member: tiles stay, borders travel through the store")


def _print_packages(plan: Plan, image_limit: int) -> None:
    limit = explained(plan.limit)
    rows = []
    for stage, number in plan.functions:
        size, place = plan.function_bytes(stage, number), plan.stages[stage].weights_in
        tiles = sum(tile.function == number for tile in plan.stages[stage].tiles)
        total = size + limit.dependencies
        share = f"{total / (image_limit if place == CONTAINER else limit.package):.0%}"
        rows.append((f"stage-{stage}/{number}", str(tiles), place, byte_size(size), byte_size(total), share))
    sizes = "weights and graphs (S)", "with dependencies (S + D)", "of the limit (M)"
    print_table(["function", "tiles", "weights in", *sizes], rows)
    out.print(f"M = {byte_size(limit.package)} unzipped, D = {byte_size(limit.dependencies)} of code and dependencies")
    fetched = sum(file.bytes for stage, number in plan.functions for file in plan.fetched(stage, number))
    if fetched:
        out.print(f"{byte_size(fetched)} of weights are in no package: environments fetch them when they start")
    if any(stage.weights_in == CONTAINER for stage in plan.stages):
        out.print(f"a container image may have {byte_size(image_limit)}")


def print_starts(prices: Prices) -> None:
    _print_cold_starts(prices.plan, prices.cold)
    _print_starting_ways(prices.ways, prices.cold_share)
    if prices.cold_plan and prices.choice:
        _print_cold_choice(prices.cold_plan, prices.choice, prices.burst.queries)


def _print_cold_starts(plan: Plan, cold: ColdPrice) -> None:
    rows = []
    for step, (start, stage, times) in enumerate(zip(cold.cold_starts, cold.stages, cold.times, strict=True)):
        run = stage.seconds - times.waited
        parts = start.package, start.process, start.fetching, start.sessions
        figures = [f"{MS_PER_S * part:,.0f}" for part in (*parts, times.ready, times.waited, run, times.ended)]
        rows.append((cold.name(step), plan.stages[cold.numbers[step].start].weights_in, *figures))
    parts_of_start = "package", "process, imports", "fetch", "sessions", "ready at", "waited for", "run", "ends at"
    print_table(["cold start", "weights in", *parts_of_start], rows)
    out.print(
        f"the first answer, where every environment is cold, as predicted: {MS_PER_S * cold.seconds:,.0f} ms (the "
        "environments of all stages start as the query starts)"
    )


def _print_starting_ways(ways: Sequence[StartingWay], cold_share: float) -> None:
    cold = f"{100 * cold_share:.3g}% cold"
    rows = []
    for way in ways:
        figures = f"{MS_PER_S * way.cold_seconds:,.0f}", f"{_MILLION * way.cold_usd:,.2f}"
        mixed = f"{MS_PER_S * way.seconds:,.1f}", f"{_MILLION * way.usd:,.2f}", f"{way.month_usd:,.2f}"
        place = f"{way.weights_in}, SnapStart" if way.snapstart else way.weights_in
        rows.append(("->" if way.chosen else "", place, *figures, *mixed, "yes" if way.fits else "no"))
    head = "first answer ms", "$ a million cold", f"ms, {cold}", f"$ a million, {cold}", "$ a month", "fits"
    print_table(["", "weights in", *head], rows, left=(0, 1))
    out.print(
        "ways to start, as predicted; of SnapStart (serfer deploy package --snapstart) restoring is assumed "
        "(lambda.restore, lambda.snapshot_rate), and snapshots cost their month whether queries come or not",
        soft_wrap=True,
    )


def _print_cold_choice(cold: Plan, choice: ColdChoice, queries: int) -> None:
    grids = ", ".join(str(cold.stages[numbers.start].grid) for numbers in choice.split.numbers)
    out.print(styled("cold plan"), f" digest: {cold.digest[:12]}  grids: {grids}, for queries that find nothing warm")
    _print_cold_starts(cold, choice.split)
    names = "this plan alone", "the cold plan, this one warmed beside it"
    bursts = dict(zip(names, choice.burst(queries), strict=True))
    rows = (
        (name, f"{MS_PER_S * burst.seconds:,.0f}", f"{burst.environments:,}", f"{burst.usd:.6f}")
        for name, burst in bursts.items()
    )
    print_table(["queries at once" if queries > 1 else "a cold query", "first answer ms", "environments", "$"], rows)
    out.print(
        f"{queries:,} at once: the cold plan answers {choice.times_earlier:.2f} times earlier; of its dollars "
        f"${queries * choice.warm_up_usd:.6f} are for warming this plan, as predicted"
    )
    for name, burst in bursts.items():
        if burst.refused:
            out.print(
                f"refused on {name}: {burst.queries:,} cold queries at once need {burst.environments:,} environments, "
                f"the account has {burst.concurrency:,} (SERFER_ACCOUNT), enough for {burst.most_queries:,} queries"
            )


def _print_deployment_options(plan: Plan) -> None:
    rows = [
        (way.what, str(way.functions), byte_size(way.bytes), *("yes" if yes else "no" for yes in (way.fits, way.exact)))
        for way in plan.ways
    ]
    if rows:
        out.print("the largest part that no cut divides could be deployed as:")
        print_table(["way", "functions", "weights of each", "fits", "exact"], rows)


def changes_of(plan: Plan) -> Iterator[str]:
    for change in plan.changes:
        parts = [f"same first class on {change.agreement:.1%} of {change.samples:,} {change.measured_on}"]
        if change.error is not None:
            parts.append(f"logits off by at most {change.error:.1e} of their range")
        if change.accuracy_before is not None and change.accuracy_after is not None:
            drop = 100 * (change.accuracy_before - change.accuracy_after)
            parts.append(f"accuracy {change.accuracy_before:.2%} before, {change.accuracy_after:.2%} after")
            parts.append(f"{abs(drop):.2f} points {'lost' if drop > 0 else 'gained'}")
        yield f"{change.what} ({change.how}): {', '.join(parts)}"


def _print_operators(plan: Plan) -> None:
    rows = (
        (operator.name, operator.kind, f"stage-{number}", f"{operator.macs:,}")
        for number, stage in enumerate(plan.stages)
        for operator in stage.operators
    )
    print_table(["operator", "kind", "stage", "MACs"], rows)


def _halo(stage: Stage) -> str:
    if stage.inputs[0].shape.flat:
        return "-"
    if stage.grid.columns:
        return "all"
    rects = [tile.inputs[0] for tile in stage.tiles]
    rows = {row for rect in rects for row in range(rect.rows.start, rect.rows.stop)}
    cols = {col for rect in rects for col in range(rect.cols.start, rect.cols.stop)}
    read = len(rows) * len(cols)  # tiles of one row of the grid read the same rows
    return f"+{sum(rect.area for rect in rects) / read - 1:.0%}" if read else "-"
