"""MArk's evaluation (ATC 2019, section 5) redone in the simulator: `serfer study paper mark`.

    cost           Twitter, 8 hours, and MMPP, 4 hours: SageMaker's dollars over MArk's, SLO, and figure 7's curve:
                   MMPP query by query, Twitter's dollars at the level of rates and the rest in windows
    latency        of the same, figure 6's boxes
    surges         +50, +75 and +100% in two minutes: how long queries are late, and how many
    interruptions  20 spot instances, of which 20, 40 and 80% are taken away: latency before, meanwhile and after,
                   with stand-ins that have as many vCPUs as what they stand in for, and twice as many

The paper's text gives factors, settings and pairs; the cells of its tables are not in it. Speeds that it does not give
are constructed, and so marked: `MODELS` says which. Of its four models the two are run that it says most about.
MArk forecasts with its default, the seasonal forecaster, so that nothing is trained beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from serfer.cli.shared.options import JsonOption, status_lines
from serfer.control.policies import make_policy, serves_alone
from serfer.control.policy import InstanceGroup, InstanceState
from serfer.control.router import Router
from serfer.control.scenario import CpuCredits, InstanceType, LambdaTarget, Market, Scenario
from serfer.cost.fleet import Purchase, SpotLosses
from serfer.cost.loads.steps import steps_of
from serfer.cost.loads.trace import Floats, Trace
from serfer.cost.queries import QueriesResult, QueriesRun
from serfer.cost.service_times import scenario_times
from serfer.cost.windows import Window
from serfer.settings import load_settings
from serfer_bench.core.options import MarkdownOption
from serfer_bench.core.seeds import Several
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.core.traces import missing_in, skipped
from serfer_bench.study.policies.mark.options import MarkOptions
from serfer_bench.study.policies.mark.policy import Mark
from serfer_bench.study.sim.simulate import DetailedRun, LoadSpec, Outcome, RunOptions, prepare, run_policies

PERIOD_S: Final = 5.0
TWITTER: Final = "twitter_2021-08_per_minute"
ON_DEMAND: Final = f"{__name__}:MarkOnDemand"
NAMES: Final = {"sagemaker": "SageMaker", ON_DEMAND: "MArk-ondemand", "mark-spot": "MArk-spot"}
_DAY_S, _HOUR_S, _MINUTE_S, _MS = 86400.0, 3600.0, 60.0, 1000.0
_HISTORY_DAYS, _EVALUATED_H = 10.0, 8.0
_MOST: Final = 40  # instances of the first type that the highest rate takes; the paper used up to 42
_LOSSES_PER_HOUR: Final = 0.05  # constructed
_GB_S_USD, _CALL_USD = 0.0000166667, 2e-7
_OVER: Final = (0.5, 2.0, 10.0)  # times the SLO
_BOX: Final = (5, 25, 50, 75, 95)
HEAD: Final = ("experiment", "model", "load", "figure", "published", "here")


class Experiment(StrEnum):
    """What is run: the cost, latency and SLO of loads, surges, or interruptions."""

    COST = "cost"
    SURGE = "surge"
    INTERRUPTION = "interruption"


class MarkOnDemand(Mark):
    """MArk-ondemand with all types, as the paper has it; `mark` uses the first type alone."""

    options = MarkOptions(all_types=True)


def _lambda(latency_ms: float, cold_ms: float) -> LambdaTarget:
    """Return the paper's Lambda of 3 GB, which keeps an idle environment for 45 to 60 minutes."""
    return LambdaTarget(latency_ms / _MS * 3.0 * _GB_S_USD + _CALL_USD, latency_ms, cold_ms, 1000, 3.0, 45 * _MINUTE_S)


def _kind(name: str, usd: tuple[float, float], batches: tuple[tuple[int, float], ...], slo_ms: float) -> InstanceType:
    """Return a type at its prices on demand and of spot: it boots for tau, 5 minutes; t2 is resumed in less than 2."""
    known = CREDITS.get(name)
    made = InstanceType(name, *usd, 90.0 if known else 300.0, 60.0, 1.0, batches, known)
    return replace(made, qps=0.9 * made.sustained_qps(slo_ms))


CREDITS: Final = {"t2.medium": CpuCredits(2, 24.0, 60.0, 576.0), "t2.xlarge": CpuCredits(4, 54.0, 120.0, 1296.0)}
"""AWS's, with 30 launch credits a vCPU at each start: its EC2 User Guide, *CPU credits and baseline utilization*."""
STAND_INS: Final = (
    _kind("t2.medium", (0.0464, 0.0), ((1, 250.0),), 600.0),
    _kind("t2.xlarge", (0.1856, 0.0), ((1, 125.0),), 600.0),  # "drops linearly with the CPU allocation" (3.2)
)
"""Types that stand in for c5.large, boosted: with its two vCPUs, and with four."""


@dataclass(frozen=True)
class Model:
    """A model of the paper: what it published, and a scenario whose `constructed` values are not in its text."""

    name: str
    on_demand: float
    spot: float
    scenario: Scenario | None = None
    constructed: str = ""


MODELS: Final = (
    Model(
        "Inception-v3",
        3.63,
        6.21,
        Scenario(
            600.0,
            _lambda(350.0, 2860.0),
            (
                _kind("c5.large", (0.085, 0.034), ((1, 250.0),), 600.0),
                _kind("p2.xlarge", (0.90, 0.27), ((1, 41.25), (8, 130.0)), 600.0),
                STAND_INS[0],
            ),
        ),
        "from the text: SLO, N_batch 8 and W_batch 200 ms (put in: p2.xlarge's constructed times end at 8 images), "
        "7,000 environments for $1 that serve 20,000 queries/s (350 ms, 2.86 s to start), boots of 5 minutes; "
        "constructed: 250 ms on c5.large and t2.medium, 130 ms for 8 on p2.xlarge, list prices, spot at 0.4 and 0.3 of "
        "them, 0.05 losses an hour",
    ),
    Model("NASNet", 2.79, 5.91),
    Model(
        "LSTM-ptb",
        2.41,
        6.64,
        Scenario(
            100.0,
            _lambda(40.0, 1000.0),
            (
                _kind("c5.large", (0.085, 0.034), ((1, 20.0),), 100.0),
                _kind("t2.medium", (0.0464, 0.0), ((1, 20.0),), 100.0),
            ),
        ),
        "from the text: SLO, CPU instances alone, no batches; constructed: 20 ms on c5.large and t2.medium, 40 ms and "
        "1 s on Lambda, prices as above",
    ),
    Model("OpenNMT-ende", 3.15, 7.83),
)


@dataclass(frozen=True)
class Row:
    """A figure of an experiment: as published, in words, and here; `form` has names of `values` in braces."""

    experiment: str
    model: str
    load: str
    figure: str
    published: str
    form: str
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def here(self) -> str:
        return self.form.format(**self.values)

    @property
    def cells(self) -> tuple[str, ...]:
        return self.experiment, self.model, self.load, self.figure, self.published, self.here


def over_seeds(found: Sequence[Sequence[Row]]) -> list[Row]:
    return [
        replace(same[0], values={key: Several(tuple(one.values[key] for one in same)) for key in same[0].values})
        for same in zip(*found, strict=True)
    ]


def _model(name: str) -> tuple[Model, Scenario]:
    model = next(one for one in MODELS if one.name == name)
    if model.scenario is None:
        raise KeyError(name)
    return model, model.scenario


def twitter_rows(
    twitter: Path, window_s: float, seed: int, progress: Callable[[str], None], most: float = _MOST
) -> Iterator[Row]:
    """Run the paper's cost experiment on eight hours of Twitter, after ten days of history."""
    spec = LoadSpec(str(twitter), skip_zeros_over_s=1200.0)
    whole = spec.read()
    middle = whole.begin_s + _HISTORY_DAYS * _DAY_S
    judged = whole.cut(middle, middle + _EVALUATED_H * _HOUR_S)
    for model in MODELS:
        for name, value in (("MArk-ondemand", model.on_demand), ("MArk-spot", model.spot)):
            if model.scenario is None:
                yield Row("cost", model.name, "Twitter", f"SageMaker / {name}", f"{value:.2f}", "not run")
        if model.scenario is not None:
            progress(f"{model.name}, Twitter")
            yield from _costs(model, model.scenario, "Twitter", judged, whole.cut(until_s=middle), window_s, seed, most)


def mmpp_rows(
    seed: int, progress: Callable[[str], None], most: float = _MOST, hours: tuple[float, float] = (4, 24)
) -> Iterator[Row]:
    """Run it on four hours of a Markov-modulated process, query by query, after a day of another one."""
    model, scenario = _model("Inception-v3")
    progress(f"{model.name}, MMPP")
    loads = [LoadSpec(f"mmpp:row_s=5,hours={many:g}").read(seed + number) for number, many in enumerate(hours)]
    yield from _costs(model, scenario, "MMPP", loads[0], loads[1], math.inf, seed, most)


def _costs(
    model: Model, scenario: Scenario, load: str, judged: Trace, history: Trace, window_s: float, seed: int, most: float
) -> Iterator[Row]:
    factor = most * scenario.instance.qps / judged.peak
    found: dict[str, tuple[float, Outcome, Floats]] = {}
    for name in NAMES:
        losses = _LOSSES_PER_HOUR if name == "mark-spot" else 0.0
        options = RunOptions(PERIOD_S, spot_losses_per_hour=losses, history=history.scaled(factor))
        detailed = DetailedRun(scenario_times(scenario.serverless, load_settings().facts().functions), window_s)
        sim_input = prepare(judged.scaled(factor), model.name, scenario, "none")
        run = next(run_policies(sim_input, [name], options, seed, detailed))
        usd = run.outcome.cost_usd if window_s < judged.seconds else run.windows[0].usd(scenario)
        found[name] = usd, run.outcome, np.concatenate([one.latencies_s for one in run.windows]) * _MS
    published = {ON_DEMAND: model.on_demand, "mark-spot": model.spot}
    for name, value in published.items():
        usd, figure = found[name][0], f"SageMaker / {NAMES[name]}"
        paper = f"{value:.2f}" if load == "Twitter" else "-"
        values = {"factor": found["sagemaker"][0] / usd, "cost_usd": usd}
        yield Row("cost", model.name, load, figure, paper, "{factor:.2f}", values)
    for name, (usd, one, ms) in found.items():
        paper = "98% or more" if name != "sagemaker" else "violated" if model.name == "Inception-v3" else "-"
        values = {"slo_met": one.slo_met or 0.0, "cost_usd": usd}
        values |= {f"over_{100 * times:.0f}": float((ms > times * scenario.slo_ms).mean()) for times in _OVER}
        form = "{slo_met:.2%}; later than half, twice and ten times the SLO: "
        form += ", ".join(f"{{over_{100 * times:.0f}:.2%}}" for times in _OVER)
        yield Row("SLO", model.name, load, NAMES[name], paper, form, values)
    for name, (_, _, ms) in found.items():
        values = {f"p{share}_ms": float(np.quantile(ms, share / 100)) for share in _BOX}
        form = " / ".join(f"{{p{share}_ms:,.0f}}" for share in _BOX) + " ms"
        figure = f"{NAMES[name]}, p{' / '.join(map(str, _BOX))}"
        yield Row("latency", model.name, load, figure, "-", form, values)


def surge_rows(seed: int, progress: Callable[[str], None], surges: Sequence[float] = (0.5, 0.75, 1.0)) -> Iterator[Row]:
    """Raise the load of LSTM-ptb within two minutes: ten minutes before, and fifteen after the surge began."""
    model, scenario = _model("LSTM-ptb")
    base, begin_s = 4.0 * scenario.instance.qps, 600.0
    for more in surges:
        ramp = base * (1 + more * np.linspace(0, 1, 12))
        rates = np.concatenate(([base], ramp, [base * (1 + more)]))
        trace = Trace("surge", np.array([begin_s, *[10.0] * 12, 780.0]), rates)
        for name, number in (("sagemaker", 8), ("mark", 5)):
            progress(f"{model.name}, +{more:.0%}, {name}")
            window = Window("surge", begin_s, trace.seconds)
            run = _Fleet(scenario, name, number, Market.ON_DEMAND).run(trace, window, seed)
            ms = run.latencies_s * _MS
            late = float((ms > scenario.slo_ms).mean())
            usd = run.usd(scenario)
            form = "{late:.2%} late, mean {mean_ms:.0f} ms, p99 {p99_ms:.0f} ms, ${usd:.3f}"
            paper = "latency capped by Lambda" if name == "mark" else "queues build up"
            label = NAMES.get(name, "MArk")
            values = {"late": late, "mean_ms": float(ms.mean()), "p99_ms": float(np.quantile(ms, 0.99)), "usd": usd}
            yield Row("surge", model.name, f"+{more:.0%}", label, paper, form, values)


def interruption_rows(
    seed: int,
    progress: Callable[[str], None],
    shares: Sequence[float] = (0.2, 0.4, 0.8),
    stand_ins: Sequence[InstanceType] = STAND_INS,
) -> Iterator[Row]:
    """Take away shares of 20 spot instances of Inception-v3 at the 7th minute, after 5 others."""
    model, whole = _model("Inception-v3")
    lead_s, minute = 300.0, _MINUTE_S
    lost_s = lead_s + 7 * minute
    bounds = (lead_s, lost_s, lost_s + 6 * minute, lead_s + 25 * minute)
    spans = {
        span: Window(span, *window)
        for span, window in zip(("before", "meanwhile", "after"), pairwise(bounds), strict=True)
    }
    for stand_in, share in product(stand_ins, shares):
        scenario = Scenario(whole.slo_ms, whole.serverless, (whole.instance, stand_in))
        values, met = {}, []
        for span, window in spans.items():
            progress(f"{model.name}, {share:.0%} lost, {stand_in.name}, {span}")
            trace = Trace("steady", np.array([window.end_s]), np.array([19.0 * scenario.instance.qps]))
            fleet = _Fleet(scenario, "mark-spot", 20, Market.SPOT)
            run = fleet.run(trace, window, seed, SpotLosses(shares=((lost_s, share),)))
            met.append(float((run.latencies_s <= scenario.slo_ms / _MS).mean()))
            values[f"{span}_ms"] = float(run.latencies_s.mean()) * _MS
            values[f"{span}_on_lambda"] = run.on_serverless / run.queries
        form = (
            "{before_ms:.0f} / {meanwhile_ms:.0f} / {after_ms:.0f} ms, {less:.0%} less meanwhile, SLO met by "
            "{slo_met:.2%} at least, {meanwhile_on_lambda:.1%} on Lambda meanwhile"
        )
        figure = "mean latency before / meanwhile / after"
        values |= {"slo_met": min(met), "less": 1 - values["meanwhile_ms"] / values["before_ms"]}
        load = f"{share:.0%} lost, {stand_in.name}"
        yield Row("interruption", model.name, load, figure, "lower meanwhile", form, values)


@dataclass(frozen=True)
class _Fleet:
    scenario: Scenario
    policy: str
    number: int
    market: Market

    def run(self, trace: Trace, window: Window, seed: int, losses: SpotLosses | None = None) -> QueriesResult:
        kind, policy = self.scenario.instance, make_policy(self.policy, self.scenario)
        policy.resume([InstanceGroup(kind.name, self.market, InstanceState.SERVING, self.number)])
        router = Router(self.scenario, policy, overflow=not serves_alone(policy))
        times = scenario_times(self.scenario.serverless, load_settings().facts().functions)
        launches = [(-_HOUR_S, Purchase(kind, self.market))] * self.number
        run = QueriesRun(self.scenario, router, times, launches, seed, losses)
        return run.over(steps_of(trace, PERIOD_S), 0.0, window)


def results(rows: Sequence[Row], seeds: Sequence[int], remarks: Sequence[str] = ()) -> Results:
    notes = [f"{len(seeds)} seeds from {seeds[0]} on" + (": the least to the largest" if len(seeds) > 1 else "")]
    notes += [f"{one.name}: {one.constructed}" for one in MODELS if one.constructed]
    notes.append(
        "SageMaker's instances cost what EC2's do here; by AWS's list prices of 2019 they cost 1.4 times as much, "
        "which is in the paper's factors"
    )
    notes += remarks
    records = (
        {name: getattr(row, name) for name in _RECORDED}
        | {"values": {key: list(value.values) for key, value in row.values.items()}}
        for row in rows
    )
    return Results(records, [Table(HEAD, [row.cells for row in rows])], notes)


_RECORDED: Final = ("experiment", "model", "load", "figure", "published", "here")


def command(
    traces: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help=f"A folder with {TWITTER}.csv; without it, no rows of Twitter."),
    ] = None,
    window_s: Annotated[
        float,
        typer.Option(min=60, help="Seconds of Twitter's busiest and median window, run query by query."),
    ] = 600.0,
    seed: Annotated[int, typer.Option(min=0, help="Of MMPP, arrivals and losses.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="How many, from --seed on: their least to largest.")] = 1,
    experiment: Annotated[
        list[Experiment] | None,
        typer.Option(help="Which: cost (latency and SLO, too), surge, interruption; may be repeated. [default: all]"),
    ] = None,
    as_markdown: MarkdownOption = False,
    as_json: JsonOption = False,
) -> None:
    """Redo MArk's evaluation in the simulator: its factors as published beside those reached here."""
    numbers, wanted = range(seed, seed + seeds), {*(experiment or Experiment)}
    missing = missing_in(traces, [TWITTER]) if Experiment.COST in wanted else []
    twitter = None if traces is None or missing else traces / f"{TWITTER}.csv"
    with status_lines() as progress:
        found = [
            [
                *(twitter_rows(twitter, window_s, number, progress) if twitter and Experiment.COST in wanted else ()),
                *(mmpp_rows(number, progress) if Experiment.COST in wanted else ()),
                *(surge_rows(number, progress) if Experiment.SURGE in wanted else ()),
                *(interruption_rows(number, progress) if Experiment.INTERRUPTION in wanted else ()),
            ]
            for number in numbers
        ]
    remarks = skipped(missing, traces or "DIR")
    publish(results(over_seeds(found), numbers, remarks), as_json=as_json, as_markdown=as_markdown)
