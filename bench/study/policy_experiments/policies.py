"""Every policy on every load, in every scenario, at both scalings: what it costs against the clairvoyant optimum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Annotated, Final

import typer

from serfer.cli.shared.options import JsonOption, status_lines
from serfer.control.policy import Policy
from serfer.control.scenario import Scenario, read_scenario, scenario_file
from serfer.core.errors import InputError
from serfer.cost.driver_limits import DriverLimits
from serfer.cost.service_times import scenario_times
from serfer.local.process_pool import process_pool
from serfer.settings import load_settings
from serfer.system import processors
from serfer_bench.core.options import MarkdownOption
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.core.traces import end_skipped, missing_in, skipped
from serfer_bench.study.loads.generators import GENERATORS, OF_ONE_FUNCTION, is_generator, parameters_of
from serfer_bench.study.policy_experiments.memoryless import NAME as PEER
from serfer_bench.study.policy_experiments.memoryless import MemorylessOptimum
from serfer_bench.study.sim.policy_suite import PRICES
from serfer_bench.study.sim.simulate import (
    DetailedRun,
    LoadSpec,
    Outcome,
    RunOptions,
    policy_names,
    prepare,
    run_policies,
)

POLICIES: Final = ("break-even", "target-tracking", "target-tracking-stepwise", "serverless", "instances")
SCALES: Final = ("S", "M")
TracesOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A folder of CSV traces (docs/how-to/simulate.md); without it generated loads."),
]
ScenariosOption = Annotated[
    Path,
    typer.Option(
        metavar="DIR, FILE or NAME",
        help="A folder of scenarios: TOML files; or one of them; or a name, as of serfer study policy: its prices are "
        "the default.",
        show_default=False,
    ),
]
SCENARIOS: Final = PRICES[0].parent
PREDICTABLE: Final = ("twitter", "nasa", "diurnal", "infless_periodic")
SAVING: Final = ("twitter", "nasa", "diurnal")
YARDSTICK: Final = "target-tracking-stepwise"  # what earlier papers compare with; earlier tables did, too
MMPP: Final = "mmpp"
HEAD: Final = ("load", "scenario", "scale", "policy", "cost $", "ratio", "slo met", "launches", "saves")
PEER_HEAD: Final = ("scenario", "scale", "policy", "over the optimum", f"over {PEER}", "least to largest", "loads")


@dataclass(frozen=True)
class Options:
    """The selection of runs: policies, loads whose names have one of `only` in them (all of them without), scalings.

    Of `only`, NAME:KEY=VALUE,... is a generator to run by itself. Generators make a load for each of `seeds` seeds.
    Windows of `window_s` seconds are run query by query, none where it is 0.
    """

    policies: Sequence[str]
    run_options: RunOptions
    only: Sequence[str] = ()
    scales: Sequence[str] = SCALES
    seed: int = 0
    seeds: int = 1
    window_s: float = 0.0
    skip_zeros_over_s: float = math.inf

    @property
    def own(self) -> list[str]:
        return [name for name in self.only if is_generator(name) and ":" in name]

    def wanted(self, loads: Sequence[str]) -> list[str]:
        parts = [name for name in self.only if name not in self.own]
        return [name for name in loads if not self.only or any(part in Path(name).name for part in parts)]

    def skipped(self, traces: Path | None) -> list[str]:
        return skipped(self.wanted(missing_in(traces)), traces or "DIR")


@dataclass(frozen=True)
class Case:
    """A load in a scenario at a scaling, and the policies to run; small, so that it travels to other processes."""

    load: LoadSpec
    scenario: Path
    scale: str
    policies: tuple[str, ...]
    options: Options
    seed: int = 0

    def run(self) -> list[Outcome]:
        options, scenario = self.options, read_scenario(self.scenario)
        sim_input = prepare(self.load.read(self.seed), self.scenario.stem, scenario, self.scale)
        facts = load_settings().facts().functions
        limits = DriverLimits(hedge=True, growth=facts.growth)
        times = scenario_times(scenario.serverless, facts)
        detailed = DetailedRun(times, options.window_s, limits=limits) if options.window_s else None
        policies, run_options = self.policies, options.run_options
        if self.load.name.partition(":")[0] == MMPP:
            policies, run_options = (*policies, PEER), _WithPeer.of(run_options, self.load.name)
        return [each.outcome for each in run_policies(sim_input, policies, run_options, self.seed, detailed)]


@dataclass(frozen=True)
class _WithPeer(RunOptions):
    process: str = MMPP

    @classmethod
    def of(cls, options: RunOptions, process: str) -> _WithPeer:
        return cls(**{each.name: getattr(options, each.name) for each in fields(options)}, process=process)

    def new_policy(self, name: str, scenario: Scenario, factor: float) -> Policy:
        if name == PEER:
            return MemorylessOptimum(scenario, parameters_of(self.process), factor, self.period_s)
        return super().new_policy(name, scenario, factor)


def cases(traces: Path | None, scenarios: Path, options: Options) -> list[Case]:
    """Return what there is to run: CSV files of `traces` and the generators, in TOML files of `scenarios`, or that one.

    Ends the command where public traces alone are wanted, and none is there.
    """
    loads = [str(path) for path in sorted(traces.glob("*.csv"))] if traces else []
    loads += [name for name in GENERATORS if name not in OF_ONE_FUNCTION]
    loads = options.wanted(loads) + options.own
    if not loads and (lines := options.skipped(traces)):
        end_skipped(lines)
    worlds = sorted(scenarios.glob("*.toml")) if scenarios.is_dir() else [scenario_file(scenarios)]
    for what, files, where in (
        ("loads", loads, f"--traces {traces or '(none)'}"),
        ("scenarios", worlds, f"--scenarios {scenarios}"),
    ):
        if not files:
            raise InputError(f"{where}: there are no {what}")
    names = tuple(policy_names(options.policies, read_scenario(worlds[0])))
    specs = [LoadSpec(load, 0.0, math.inf, options.skip_zeros_over_s) for load in loads]
    return [
        Case(spec, world, scale, names, options, options.seed + number)
        for spec in specs
        for world in worlds
        for scale in options.scales
        for number in range(options.seeds if spec.is_seeded else 1)
    ]


def measure(every: Sequence[Case], progress: Callable[[str], None]) -> list[Outcome]:
    outcomes: dict[int, list[Outcome]] = {}
    with process_pool(processors()) as pool:
        running = {pool.submit(case.run): number for number, case in _longest_first(every)}
        for done in as_completed(running):
            outcomes[running[done]] = done.result()
            progress(f"{len(outcomes)} of {len(every)} cases: {_called(every[running[done]])}")
    return [outcome for number in range(len(every)) for outcome in outcomes[number]]


def _longest_first(every: Sequence[Case]) -> Iterator[tuple[int, Case]]:
    def length(item: tuple[int, Case]) -> float:
        return -item[1].load.read(item[1].seed).seconds

    return iter(sorted(enumerate(every), key=length))


def _called(case: Case) -> str:
    return f"{Path(case.load.name).stem}, {case.scenario.stem}, {case.scale}"


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
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


def _beside_the_peer(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    peers = {_place(one): one for one in outcomes if one.policy == PEER}
    beside: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for one in outcomes:
        peer = peers.get(_place(one))
        if peer and peer.cost_usd and one.ratio is not None:
            key = one.scenario, one.scale, one.policy
            beside.setdefault(key, []).append((one.ratio, one.cost_usd / peer.cost_usd))
    for key, pairs in beside.items():
        ratios, times = zip(*pairs, strict=True)
        yield (
            *key,
            f"{fmean(ratios):.3f}",
            f"{fmean(times):.3f}",
            f"{min(times):.3f} to {max(times):.3f}",
            f"{len(pairs)}",
        )


def results(outcomes: Sequence[Outcome], notes: Sequence[str] = ()) -> Results:
    tables = [Table(HEAD, rows(outcomes))]
    if beside := [*_beside_the_peer(outcomes)]:
        tables.append(Table(PEER_HEAD, beside))
    return Results((one.as_dict() for one in outcomes), tables, [*summary(outcomes), *notes])


def command(
    traces: TracesOption = None,
    scenarios: ScenariosOption = SCENARIOS,
    policy: Annotated[list[str] | None, typer.Option(help="A policy's name; may be repeated. By default five.")] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(
            help="A part of the names of the loads to run, or a generator's NAME:KEY=VALUE,...; may be repeated."
        ),
    ] = None,
    scale: Annotated[list[str] | None, typer.Option(help="S, M, none or a factor; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of generators and arrivals.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Loads of each generator, from --seed on.")] = 1,
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
    """Run policies on all generators, and on a folder of loads, in all scenarios, and compare with the optimum."""
    options = Options(
        policies=policy or POLICIES,
        run_options=RunOptions(period_s=period_s, overflow=overflow),
        only=load or (),
        scales=scale or SCALES,
        seed=seed,
        seeds=seeds,
        window_s=window_s,
        skip_zeros_over_s=skip_zeros_over,
    )
    every = cases(traces, scenarios, options)
    with status_lines() as progress:
        outcomes = measure(every, progress)
    publish(results(outcomes, options.skipped(traces)), as_json=as_json, as_markdown=as_markdown)
