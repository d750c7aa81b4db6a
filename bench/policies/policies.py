"""Every policy on every load, in every scenario, at both scalings: what it costs against the clairvoyant optimum."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Annotated, Final

import typer

from bench.core.options import MarkdownOption
from bench.core.results import Results, Table, publish
from serfer.cli.shared.options import JsonOption, status_lines
from serfer.control.scenario_files import read_scenario
from serfer.core.errors import InputError
from serfer.settings import load_settings
from serfer.sim.driver_limits import DriverLimits
from serfer.sim.generators import GENERATORS
from serfer.sim.service_times import scenario_times
from serfer.sim.simulate import DetailedRun, LoadSpec, Outcome, RunOptions, policy_names, prepare, run_policies

POLICIES: Final = ("break-even", "target-tracking", "target-tracking-stepwise", "serverless", "instances")
SCALES: Final = ("S", "M")
PREDICTABLE: Final = ("twitter", "nasa", "diurnal", "infless_periodic")
SAVING: Final = ("twitter", "nasa", "diurnal")
YARDSTICK: Final = "target-tracking-stepwise"  # what earlier papers compare with; earlier tables did, too
HEAD: Final = ("load", "scenario", "scale", "policy", "cost $", "ratio", "slo met", "launches", "saves")


@dataclass(frozen=True)
class Options:
    """The selection of runs: policies, loads whose names have one of `only` in them (all of them without), scalings.

    Windows of `window_s` seconds are run query by query, none where it is 0.
    """

    policies: Sequence[str]
    run_options: RunOptions
    only: Sequence[str] = ()
    scales: Sequence[str] = SCALES
    seed: int = 0
    window_s: float = 0.0
    skip_zeros_over_s: float = math.inf


@dataclass(frozen=True)
class Case:
    """A load in a scenario at a scaling, and the policies to run; small, so that it travels to other processes."""

    load: LoadSpec
    scenario: Path
    scale: str
    policies: tuple[str, ...]
    options: Options

    def run(self) -> list[Outcome]:
        """Run the policies."""
        options, scenario = self.options, read_scenario(self.scenario)
        sim_input = prepare(self.load.read(options.seed), self.scenario.stem, scenario, self.scale)
        facts = load_settings().facts().functions
        limits = DriverLimits(hedge=True, growth=facts.growth)
        times = scenario_times(scenario.serverless, facts)
        detailed = DetailedRun(times, options.window_s, limits=limits) if options.window_s else None
        return [
            each.outcome for each in run_policies(sim_input, self.policies, options.run_options, options.seed, detailed)
        ]


def cases(traces: Path, scenarios: Path, options: Options) -> list[Case]:
    """Return what there is to run: CSV files of `traces` and all generators, in TOML files of `scenarios`.

    Raises InputError where there is nothing.
    """
    loads = [str(path) for path in sorted(traces.glob("*.csv"))] + [*GENERATORS]
    loads = [name for name in loads if not options.only or any(part in Path(name).name for part in options.only)]
    worlds = sorted(scenarios.glob("*.toml"))
    for what, files, where in (
        ("loads", loads, f"--traces {traces}"),
        ("scenarios", worlds, f"--scenarios {scenarios}"),
    ):
        if not files:
            raise InputError(f"{where}: there are no {what}")
    names = tuple(policy_names(options.policies, read_scenario(worlds[0])))
    return [
        Case(LoadSpec(load, 0.0, math.inf, options.skip_zeros_over_s), world, scale, names, options)
        for load in loads
        for world in worlds
        for scale in options.scales
    ]


def measure(every: Sequence[Case], progress: Callable[[str], None]) -> list[Outcome]:
    """Run the cases, on all processors, and return their outcomes in the cases' order."""
    outcomes: dict[int, list[Outcome]] = {}
    pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn"))
    try:
        running = {pool.submit(case.run): number for number, case in _longest_first(every)}
        for done in as_completed(running):
            outcomes[running[done]] = done.result()
            progress(f"{len(outcomes)} of {len(every)} cases: {_called(every[running[done]])}")
    finally:
        pool.shutdown(cancel_futures=True)
    return [outcome for number in range(len(every)) for outcome in outcomes[number]]


def _longest_first(every: Sequence[Case]) -> Iterator[tuple[int, Case]]:
    def length(item: tuple[int, Case]) -> float:
        return -item[1].load.read(item[1].options.seed).seconds

    return iter(sorted(enumerate(every), key=length))


def _called(case: Case) -> str:
    return f"{Path(case.load.name).stem}, {case.scenario.stem}, {case.scale}"


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return a row for each outcome; `saves` is by how much it is cheaper than stepwise target tracking."""
    yardsticks = {_place(one): one.cost_usd for one in outcomes if one.policy == YARDSTICK}
    return [
        (
            one.trace,
            one.scenario,
            one.scale,
            one.policy,
            f"{one.cost_usd:,.2f}",
            "-" if one.ratio is None else f"{one.ratio:.3f}",
            "-" if one.slo_met is None else f"{one.slo_met:.2%}",
            f"{one.launches:,}",
            _saved(one, yardsticks.get(_place(one))),
        )
        for one in outcomes
    ]


def _place(one: Outcome) -> tuple[str, str, str]:
    return one.trace, one.scenario, one.scale


def _saved(one: Outcome, yardstick: float | None) -> str:
    if not yardstick or one.ratio is None or one.policy == YARDSTICK:
        return "-"
    return f"{1 - one.cost_usd / yardstick:.0%}"


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """Summarize for each policy how it did over predictable loads and the others, and at its worst."""
    lines = []
    for policy in dict.fromkeys(one.policy for one in outcomes):
        mine = [one for one in outcomes if one.policy == policy]
        lines.append(f"{policy}: {'; '.join(_verdicts(mine, outcomes))}")
    warnings = dict.fromkeys(f"{one.scenario}: {warning}" for one in outcomes for warning in one.warnings)
    return [*lines, *(f"warning: {each}" for each in warnings)]


def _verdicts(mine: Sequence[Outcome], outcomes: Sequence[Outcome]) -> Iterator[str]:
    for what, wanted in (("predictable", True), ("others", False)):
        some = [one for one in mine if one.trace.startswith(PREDICTABLE) == wanted and one.ratio is not None]
        if some:
            worst = max(some, key=lambda one: one.ratio or 0.0)
            mean = fmean(one.ratio or 0.0 for one in some)
            yield f"{what} {mean:.3f} on average, {worst.ratio:.3f} at worst ({', '.join(_place(worst))})"
    slo = [one.slo_met for one in mine if one.slo_met is not None]
    if slo:
        yield f"slo met {min(slo):.2%} at least"
    yardsticks = {_place(one): one.cost_usd for one in outcomes if one.policy == YARDSTICK}
    saved = [
        1 - one.cost_usd / yardsticks[_place(one)]
        for one in mine
        if one.scale == "M" and one.trace.startswith(SAVING) and yardsticks.get(_place(one))
    ]
    if saved and mine[0].policy != YARDSTICK:
        yield f"saves {min(saved):.0%} at least at M on {', '.join(SAVING)}"


def results(outcomes: Sequence[Outcome]) -> Results:
    """Return all outcomes, and how each policy did."""
    return Results((one.as_dict() for one in outcomes), [Table(HEAD, rows(outcomes))], summary(outcomes))


def command(
    traces: Annotated[Path, typer.Option(metavar="DIR", help="A folder of CSV traces (docs/how-to/simulate.md).")],
    scenarios: Annotated[Path, typer.Option(metavar="DIR", help="A folder of scenarios: TOML files.")],
    policy: Annotated[list[str] | None, typer.Option(help="A policy's name; may be repeated. By default five.")] = None,
    load: Annotated[
        list[str] | None, typer.Option(help="A part of the names of the loads to run; may be repeated.")
    ] = None,
    scale: Annotated[list[str] | None, typer.Option(help="S, M, none or a factor; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of generators and arrivals.")] = 0,
    period_s: Annotated[float, typer.Option(help="Seconds between a policy's decisions.")] = 5.0,
    window_s: Annotated[
        float,
        typer.Option(min=0, help="Run so many seconds query by query, busiest and median ones; 0: none; 3600: hours."),
    ] = 0.0,
    skip_zeros_over: Annotated[
        float, typer.Option(help="Cut out times without queries of at least so many seconds.")
    ] = math.inf,
    overflow: Annotated[
        bool, typer.Option("--overflow/--no-overflow", help="Lambda takes what instances cannot.")
    ] = True,
    as_markdown: MarkdownOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run policies on all loads of a folder and all generators, in all scenarios, and compare with the optimum."""
    options = Options(
        policies=policy or POLICIES,
        run_options=RunOptions(period_s=period_s, overflow=overflow),
        only=load or (),
        scales=scale or SCALES,
        seed=seed,
        window_s=window_s,
        skip_zeros_over_s=skip_zeros_over,
    )
    every = cases(traces, scenarios, options)
    with status_lines() as progress:
        outcomes = measure(every, progress)
    publish(results(outcomes), as_json=as_json, as_markdown=as_markdown)
