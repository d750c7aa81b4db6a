"""The default policy with values that it learns, and with windows alone: `serfer bench policies values`.

The features and trees of learnt values were chosen on Twitter's trace, on `diurnal` and on `mmpp`
(docs/results/values.md), so none of these is here. What is here repeats at periods of 20 to 110 minutes, which can be
learnt, or does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Final

import typer

from serfer.cli.shared.options import JsonOption, status_lines, value_trainer
from serfer.cli.shared.tables import Results, Table, publish
from serfer.control.policies import DEFAULT
from serfer.core.errors import InputError
from serfer.extras import missing_extra
from serfer.sim.recommend import Spread
from serfer.sim.simulate import Outcome, RunOptions
from serfer_bench.core.options import MarkdownOption
from serfer_bench.policies.policies import Case, Options, ScenariosOption, TracesOption, cases, measure

_BURST: Final = "queries=60000,row_s=300,jitter_s=120,hours=120"
LOADS: Final = (
    *(f"periodic:every_s={60 * minutes},{_BURST}" for minutes in (20, 45, 75, 110)),
    "bursty-days:hours=120,factor=4,low_s=5400,high_s=1200",
    "flash:hours=120,row_s=60,crowds=60,fade_s=1200",
)
FIRST_SEED: Final = 3900
"""Drawn after the code was frozen; nothing was chosen by these loads."""
SEEDS: Final = 5
PERIOD_S: Final = 60.0
WINDOWS, VALUES = "windows alone", "with values"
HEAD: Final = ("load", "scenario", "scale", f"{WINDOWS}, over the optimum", VALUES, "saved")


@dataclass(frozen=True)
class ValuesCase(Case):
    """A load in a scenario at a scaling, for the default policy without values and with them."""

    def run(self) -> list[Outcome]:
        """Run it twice."""
        alone = replace(
            self, options=replace(self.options, run_options=replace(self.options.run_options, trainer=None))
        )
        outcomes = [Case.run(one)[0] for one in (alone, self)]  # on mmpp the peer comes second
        return [replace(one, policy=name) for one, name in zip(outcomes, (WINDOWS, VALUES), strict=True)]


@dataclass(frozen=True)
class ValuesRow:
    """A load over its seeds: dollars over the optimum's of both, and the share that values save."""

    load: str
    scenario: str
    scale: str
    seeds: int
    windows: Spread
    values: Spread
    saved: Spread


def rows(outcomes: Sequence[Outcome]) -> list[ValuesRow]:
    """Return a row for each load in each scenario at each scaling, of outcomes in pairs.

    Loads without queries, which have no optimum, are left out; raises InputError where there are no others.
    """
    pairs: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for windows, values in zip(outcomes[::2], outcomes[1::2], strict=True):
        load = windows.trace.rpartition(",seed=")[0] or windows.trace
        key = (load, windows.scenario, windows.scale)
        if windows.ratio and values.ratio:
            pairs.setdefault(key, []).append((windows.ratio, values.ratio))
    if not pairs:
        raise InputError("no load has an optimum to compare with: they have no queries")
    return [ValuesRow(*key, len(found), *_spreads(found)) for key, found in pairs.items()]


def _spreads(found: Sequence[tuple[float, float]]) -> Iterator[Spread]:
    for values in ([one for one, _ in found], [two for _, two in found], [1 - two / one for one, two in found]):
        yield Spread(fmean(values), min(values), max(values))


def results(found: Sequence[ValuesRow], remarks: Sequence[str] = ()) -> Results:
    """Return the rows, what values save over all loads, and remarks."""
    body = [
        [
            one.load,
            one.scenario,
            one.scale,
            _cell(one.windows, ".3f"),
            _cell(one.values, ".3f"),
            _cell(one.saved, ".1%"),
        ]
        for one in found
    ]
    saved = [one.saved.mean for one in found]
    notes = [
        f"saved: {fmean(saved):.1%} on average over {len(saved)} loads, {min(saved):.1%} to {max(saved):.1%}",
        f"means of {found[0].seeds} seeds, the least and the largest; of whole loads, with the first day, unlearnt",
    ]
    return Results((asdict(one) for one in found), [Table(HEAD, body)], [*notes, *remarks])


def _cell(one: Spread, form: str) -> str:
    mean, least, most = (format(value, form) for value in (one.mean, one.min, one.max))
    return mean if least == most else f"{mean} ({least} to {most})"


def command(
    traces: TracesOption = None,
    scenarios: ScenariosOption = Path("small-network"),
    load: Annotated[
        list[str] | None,
        typer.Option(help="As for bench policies optimum; may be repeated. By default six generators."),
    ] = None,
    scale: Annotated[
        list[str] | None, typer.Option(help="S, M, none or a factor; may be repeated. [default: M]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first load of each generator.")] = FIRST_SEED,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Loads of each generator.")] = SEEDS,
    period_s: Annotated[float, typer.Option(help="Seconds between decisions.")] = PERIOD_S,
    skip_zeros_over: Annotated[
        float, typer.Option(help="Cut out times without queries of at least so many seconds.")
    ] = math.inf,
    as_markdown: MarkdownOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run the default policy with learnt values and without on loads that these were not chosen by (extra `learn`)."""
    trainer = value_trainer(learn=True)
    if trainer is None:
        raise missing_extra("lightgbm")
    options = Options(
        policies=(DEFAULT,),
        run_options=RunOptions(period_s=period_s, trainer=trainer),
        only=load or LOADS,
        scales=scale or ("M",),
        seed=seed,
        seeds=seeds,
        skip_zeros_over_s=skip_zeros_over,
    )
    every = [
        ValuesCase(**{each.name: getattr(one, each.name) for each in fields(one)})
        for one in cases(traces, scenarios, options)
    ]
    with status_lines() as progress:
        outcomes = measure(every, progress)
    publish(results(rows(outcomes), options.skipped(traces)), as_json=as_json, as_markdown=as_markdown)
