"""Policies against MArk tuned on the first half of each load, both judged on the second: `study policies halves`.

    first half ──> MArk's settings, one after the other: the cheapest cool-down, with and without the SLO monitor,
                   seasonal or LSTM forecasts (trained on it)
    second half ──> every policy, having seen the first as its history:
                   dollars, SLO, and dollars over tuned MArk's

With `--spot` MArk plans all types and spot instances, and the others buy spot instances of the type that was cheapest
for them on the first half.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Annotated, Final

import typer

from serfer.cli.shared.options import JsonOption, status_lines
from serfer.control.policies import DEFAULT
from serfer.control.policy import Policy
from serfer.control.scenario import Scenario, read_scenario
from serfer.core.errors import InputError
from serfer.cost.loads.trace import Trace
from serfer.cost.service_times import scenario_times
from serfer.settings import load_settings
from serfer_bench.core.options import MarkdownOption
from serfer_bench.core.seeds import Several
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.study.forecasting.errors import peaks_of
from serfer_bench.study.forecasting.lstm_training import train_lstm
from serfer_bench.study.loads.scaling import scale_factor
from serfer_bench.study.policies.mark.options import MarkOptions
from serfer_bench.study.policies.mark.policy import Mark, MarkSpot
from serfer_bench.study.policy_experiments.policies import (
    SCALES,
    SCENARIOS,
    Case,
    Options,
    ScenariosOption,
    TracesOption,
    cases,
    measure,
)
from serfer_bench.study.sim.history import see_history
from serfer_bench.study.sim.simulate import DetailedRun, Outcome, RunOptions, prepare, run_policies

LOADS: Final = ("twitter_2021-08_per_minute", "nasa", "diurnal", "mmpp:hours=240,row_s=10")
TUNED: Final = "mark"
COOLDOWNS_S: Final = (300.0, 60.0, 900.0)
HEAD: Final = ("load", "scenario", "scale", "policy", "cost $", "over mark", "over optimum", "slo met")


@dataclass(frozen=True)
class HalfOptions(RunOptions):
    """Options of a run in which MArk, called TUNED, has settings of its own."""

    mark: MarkOptions = field(default_factory=MarkOptions)

    def new_policy(self, name: str, scenario: Scenario, factor: float) -> Policy:
        if name != TUNED:
            return super().new_policy(name, scenario, factor)
        policy = (MarkSpot if self.mark.spot else Mark)(scenario, self.mark)
        if self.history is not None:
            see_history(policy, scenario, self.history.scaled(factor), period_s=self.period_s)
        return policy


@dataclass(frozen=True)
class HalvesCase(Case):
    """A load in a scenario at a scaling: MArk is tuned on its first half, and all policies are judged on the second."""

    spot: bool = False

    def run(self) -> list[Outcome]:
        scenario = read_scenario(self.scenario)
        whole = self.load.read(self.seed)
        scaled = whole.scaled(scale_factor(self.scale, whole, scenario))
        middle = scaled.begin_s + scaled.seconds / 2
        first, second = scaled.cut(until_s=middle), scaled.cut(from_s=middle)
        plain = self.options.run_options
        learning = HalfOptions(**{each.name: getattr(plain, each.name) for each in fields(plain)})
        judged = replace(learning, history=first)
        with tempfile.TemporaryDirectory() as folder:
            tuned = self._tuned(first, scenario, learning, Path(folder))
            outcomes = self._judge(TUNED, second, scenario, replace(judged, mark=tuned))
        outcomes = [replace(outcomes[0], policy=described(tuned))]
        for name in self.policies:
            bought = self._bought(name, first, scenario, learning)
            options = replace(judged, kind=bought, spot=self.spot)
            outcomes += self._judge(name, second, scenario, options)
        return [replace(one, scale=self.scale) for one in outcomes]

    def _judge(self, name: str, load: Trace, scenario: Scenario, options: HalfOptions) -> list[Outcome]:
        sim_input = prepare(load, self.scenario.stem, scenario, "none")
        times = scenario_times(scenario.serverless, load_settings().facts().functions)
        detailed = DetailedRun(times, self.options.window_s) if self.options.window_s else None
        return [each.outcome for each in run_policies(sim_input, [name], options, self.seed, detailed)]

    def _usd(self, name: str, load: Trace, scenario: Scenario, options: HalfOptions) -> float:
        sim_input = prepare(load, self.scenario.stem, scenario, "none")
        return next(run_policies(sim_input, [name], options, self.seed)).outcome.cost_usd

    def _tuned(self, first: Trace, scenario: Scenario, options: HalfOptions, folder: Path) -> MarkOptions:
        @cache
        def usd(settings: MarkOptions) -> float:
            return self._usd(TUNED, first, scenario, replace(options, mark=settings))

        start = MarkSpot.options if self.spot else Mark.options
        best = min((replace(start, cooldown_s=seconds) for seconds in COOLDOWNS_S), key=usd)
        best = min((best, replace(best, backups=0)), key=usd)
        file = folder / "lstm.npz"
        file.write_bytes(train_lstm(peaks_of(first, best)).to_bytes())
        return min((best, replace(best, forecaster=str(file))), key=usd)

    def _bought(self, name: str, first: Trace, scenario: Scenario, options: HalfOptions) -> str:
        if not self.spot:
            return scenario.instance.name
        kinds = _spot_kinds(scenario)
        if len(kinds) == 1:
            return kinds[0]
        return min(kinds, key=lambda kind: self._usd(name, first, scenario, replace(options, kind=kind, spot=True)))


def _spot_kinds(scenario: Scenario) -> list[str]:
    return [one.name for one in scenario.instances if one.spot_usd_per_hour and not one.burstable]


def described(tuned: MarkOptions) -> str:
    forecast = "lstm" if tuned.forecaster.endswith(".npz") else tuned.forecaster
    monitor = "monitor" if tuned.backups else "no monitor"
    return f"{TUNED} ({forecast}, {tuned.cooldown_s:g} s, {monitor})"


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    found: dict[tuple[str, ...], list[tuple[Outcome, float]]] = {}
    for one, ratio in _over_mark(outcomes):
        policy = TUNED if _is_tuned(one) else one.policy
        load = re.sub("[:,]seed=[0-9]+$", "", Path(one.trace).name.removesuffix(".csv"))
        found.setdefault((load, one.scenario, one.scale, policy), []).append((one, ratio))
    return [
        (
            *place[:3],
            "; ".join(dict.fromkeys(one.policy for one, _ in seeds)),
            _range([one.cost_usd for one, _ in seeds], ",.2f"),
            _range([ratio for _, ratio in seeds], ".3f"),
            _range([one.ratio for one, _ in seeds], ".3f"),
            _range([one.slo_met for one, _ in seeds], ".2%"),
        )
        for place, seeds in found.items()
    ]


def _range(values: Sequence[float | None], form: str) -> str:
    known = tuple(value for value in values if value is not None)
    return format(Several(known), form) if known and len(known) == len(values) else "-"


def _is_tuned(one: Outcome) -> bool:
    return one.policy.startswith(f"{TUNED} (")


def _over_mark(outcomes: Sequence[Outcome]) -> Iterator[tuple[Outcome, float]]:
    mark = outcomes[0]
    for one in outcomes:
        if _is_tuned(one):
            mark = one
        yield one, one.cost_usd / mark.cost_usd


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    lines, mark = [], outcomes[0]
    found: dict[str, list[tuple[float, bool]]] = {}
    for one, ratio in _over_mark(outcomes):
        if _is_tuned(one):
            mark = one
            continue
        worse = one.slo_met is not None and mark.slo_met is not None and one.slo_met < mark.slo_met
        found.setdefault(one.policy, []).append((ratio, worse))
    for policy, each in found.items():
        ratios = [ratio for ratio, _ in each]
        slo = f"; the SLO met by fewer queries in {sum(worse for _, worse in each)} of {len(each)} cases"
        lines.append(
            f"{policy}: {fmean(ratios):.3f} of tuned mark's dollars on average, {max(ratios):.3f} at worst{slo}"
        )
    return lines


def results(outcomes: Sequence[Outcome], notes: Sequence[str] = ()) -> Results:
    return Results((one.as_dict() for one in outcomes), [Table(HEAD, rows(outcomes))], [*summary(outcomes), *notes])


def halves(traces: Path | None, scenarios: Path, options: Options, *, spot: bool) -> list[HalvesCase]:
    every = cases(traces, scenarios, options)
    for world in dict.fromkeys(one.scenario for one in every) if spot else ():
        if not _spot_kinds(read_scenario(world)):
            raise InputError(f"--spot: {world} has no instance type with a spot price: spot_usd_per_hour is 0")
    return [HalvesCase(**{each.name: getattr(one, each.name) for each in fields(one)}, spot=spot) for one in every]


def command(
    traces: TracesOption = None,
    scenarios: ScenariosOption = SCENARIOS,
    policy: Annotated[
        list[str] | None, typer.Option(help=f"To compare with MArk; may be repeated. [default: {DEFAULT}]")
    ] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(help=f"A part of the names of the loads; may be repeated. [default: {', '.join(LOADS)}]"),
    ] = None,
    scale: Annotated[list[str] | None, typer.Option(help="S, M, none or a factor; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of generators and arrivals.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Loads of each generator, from --seed on.")] = 1,
    period_s: Annotated[float, typer.Option(help="Seconds between a policy's decisions.")] = 10.0,
    window_s: Annotated[
        float, typer.Option(min=0, help="Run so many seconds query by query, busiest and median ones; 0: none.")
    ] = 0.0,
    skip_zeros_over: Annotated[
        float, typer.Option(help="Cut out times without queries of at least so many seconds.")
    ] = math.inf,
    spot: Annotated[bool, typer.Option("--spot", help="All types and spot instances.")] = False,
    spot_losses: Annotated[
        float, typer.Option(min=0, max=60, help="How many times an hour a spot instance is taken away, on average.")
    ] = 0.0,
    as_markdown: MarkdownOption = False,
    as_json: JsonOption = False,
) -> None:
    """Tune MArk on the first half of each load, and compare policies with it on the second (needs torch)."""
    run_options = RunOptions(period_s=period_s, spot_losses_per_hour=spot_losses)
    options = Options(
        policies=policy or (DEFAULT,),
        run_options=run_options,
        only=load or LOADS,
        scales=scale or SCALES,
        seed=seed,
        seeds=seeds,
        window_s=window_s,
        skip_zeros_over_s=skip_zeros_over,
    )
    every = halves(traces, scenarios, options, spot=spot)
    with status_lines() as progress:
        outcomes = measure(every, progress)
    publish(results(outcomes, options.skipped(traces)), as_json=as_json, as_markdown=as_markdown)
