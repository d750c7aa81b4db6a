"""`serfer study policy`: a policy of one's own beside the published ones, on fixed loads at fixed prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.control.policies import buys_several_types, find_policy, serves_alone
from serfer.system import processors
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.study.policies import NAMES
from serfer_bench.study.sim.policy_suite import (
    LOADS,
    PERIOD_S,
    PRICES,
    PUBLISHED,
    QUICK_LOADS,
    SEEDS,
    Suite,
    SuiteRow,
    over_all,
    run,
)
from serfer_bench.study.sim.recommend import Spread

_QUICK_SEEDS = 2


def policy(
    own: Annotated[
        list[str] | None,
        typer.Argument(metavar="[POLICY]...", help="MODULE:Class (docs/how-to/add-a-policy.md), or a name."),
    ] = None,
    load: Annotated[
        list[str] | None, typer.Option(help=f"In place of {', '.join(LOADS)}: a generator or a file; may be repeated.")
    ] = None,
    scenario: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE or NAME",
            help="In place of aws, google-cloud and azure: small-network, two-types, large-network, or a TOML file; "
            "may be repeated.",
        ),
    ] = None,
    scale: Annotated[str, typer.Option(help="As of serfer study simulate.")] = "M",
    seeds: Annotated[int | None, typer.Option(min=1, max=1000, help=f"Of each load. [default: {SEEDS}]")] = None,
    period_s: Annotated[float, typer.Option(help="Seconds between decisions.")] = PERIOD_S,
    alone: Annotated[bool, typer.Option("--alone", help="Without the published policies.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"{' and '.join(QUICK_LOADS)}, of {_QUICK_SEEDS} seeds: does it run?")
    ] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run policies on fixed loads at three prices: dollars over those of the clairvoyant optimum, in one table.

    Each cell is the mean over the seeds, with the least and the largest. Published policies stand beside it.
    """
    suite = Suite(
        policies=[*(own or ()), *(() if alone and own else PUBLISHED)],
        loads=load or (QUICK_LOADS if quick else LOADS),
        prices=scenario or PRICES,
        scale=scale,
        seeds=seeds or (_QUICK_SEEDS if quick else SEEDS),
        period_s=period_s,
    )
    with status_line() as progress:
        rows = run(suite, processors(), progress)
    publish(results(rows, suite), as_json=as_json, as_markdown=as_markdown)


def results(rows: Sequence[SuiteRow], suite: Suite) -> Results:
    head = ["load", "prices", "optimum, $", *rows[0].ratios]
    body = [
        [row.load, row.prices, _dollars(row.optimum_usd), *(_cell(one) for one in row.ratios.values())] for row in rows
    ]
    body.append(["all", "", "", *(_cell(one) for one in over_all(rows).values())])
    return Results((asdict(row) for row in rows), [Table(head, body)], [*_notes(suite)])


def _cell(one: Spread | None) -> str:
    if one is None:
        return "-"
    mean, least, most = (f"{value:.3f}" for value in (one.mean, one.min, one.max))
    return mean if least == most else f"{mean} ({least} to {most})"


def _dollars(one: Spread | None) -> str:
    return "-" if one is None else f"{one.mean:,.2f}"


def _notes(suite: Suite) -> Iterator[str]:
    yield (
        f"dollars over those of the clairvoyant optimum with the first instance type on demand, at the level of rates, "
        f"scale {suite.scale}, a decision every {suite.period_s:g} s"
    )
    if suite.seeds > 1:
        yield f"of a generated load the mean of {suite.seeds} seeds from 0 on, the least and the largest"
    yield "all: the mean of the means above, the least and the largest of them"
    if {*PUBLISHED} <= {*suite.policies}:
        several, alone = (
            filter(buys_several_types, NAMES),
            [name for name in NAMES if serves_alone(find_policy(name).kind)],
        )
        yield (
            f"left out: {', '.join(several)}, which buys other types and spot instances than the optimum may, and "
            f"{', '.join(alone)}, whose instances serve alone and not all queries"
        )
    yield "Lambda takes what instances cannot, so every query is answered; boots cost Lambda"
