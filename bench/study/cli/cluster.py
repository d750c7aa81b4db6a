"""`serfer study simulate` on a cluster's scenario: policies of study/policies/infless, printed, as JSON, drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import typer

from serfer.cli.shared.display import plain, print_table, styled
from serfer.cli.shared.options import print_json, status_line
from serfer.cli.shared.terminal import err, out
from serfer.core.errors import UsageError
from serfer.cost.loads.steps import Progress
from serfer.cost.loads.trace import Floats, Trace
from serfer_bench.core.charts import Chart, Curve
from serfer_bench.core.drawing import draw_charts
from serfer_bench.study.policies.infless.policies import CLUSTER_DEFAULT, CLUSTER_POLICIES
from serfer_bench.study.policies.infless.scenario import ClusterScenario, read_cluster
from serfer_bench.study.sim.cluster.outcome import ClusterOutcome, outcome_of
from serfer_bench.study.sim.cluster.run import ClusterLoad, ClusterRun, Detail, Timeline, cluster_load, run_cluster
from serfer_bench.study.sim.simulate import LoadSpec

_BINS: Final = 300
_S_PER_HOUR: Final = 3600.0


def _legend(outcomes: Sequence[ClusterOutcome]) -> list[str]:
    lines = [
        f"{one.policy}: {one.requests_per_unit_s:,.3f} requests per unit and second, {one.violations:.2%} missed the "
        f"SLO, {one.cold_starts:,} cold starts, {one.fragments:.1%} fragments, ${one.usd:,.2f}"
        for one in outcomes
    ]
    return ["load: requests a second of all functions", *lines]


def cluster_charts(runs: Sequence[ClusterRun]) -> list[Chart]:
    load = runs[0].load
    came = load.counts.sum(axis=1) / load.period_s
    charts = [Chart("load", "hours", "requests a second", (_curve("load", came, load.period_s),))]
    kinds: list[tuple[str, str, Callable[[Timeline], Floats]]] = [
        ("occupied resources", "units", lambda line: line.units),
        ("running instances", "on average", lambda line: line.instances),
        ("fragments of active servers", "%", lambda line: 100 * line.fragments),
        ("late or dropped", "requests a second", lambda line: line.missed / load.period_s),
    ]
    for title, unit, values in kinds:
        curves = [_curve(run.policy, values(run.timeline), load.period_s) for run in runs]
        charts.append(Chart(title, "hours", unit, tuple(curves), y_max=100.0 if unit == "%" else None))
    return charts


def _curve(name: str, values: Floats, period_s: float) -> Curve:
    bins = min(_BINS, len(values))
    edges = np.linspace(0, len(values), bins + 1).astype(np.int64)
    means = np.add.reduceat(values, edges[:-1]) / np.diff(edges)
    middles = (edges[:-1] + edges[1:]) / 2 * period_s / _S_PER_HOUR
    return Curve(name, tuple(zip(middles.tolist(), means.tolist(), strict=True)))


_TAKEN: Final = {
    *("load", "scenario", "policy", "seed", "level", "period_s", "from_time", "until_time", "skip_zeros_over"),
    *("window_s", "plot", "as_json"),
}
"""Options of `serfer study simulate` that a cluster has a use for."""


@dataclass(frozen=True)
class ClusterRequest:
    """What the command line asks for; `load` is for functions whose scenario has none, its times are for all."""

    scenario: Path
    load: LoadSpec
    policies: Sequence[str]
    seed: int
    period_s: float
    level: str
    window_s: float


def check_cluster_options(context: typer.Context) -> None:
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in _TAKEN and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{parameter.opts[0]} is not for a cluster's scenario: it is of Lambda and its instances")


def simulate_cluster(request: ClusterRequest, plot: Path | None, *, as_json: bool) -> None:
    names = list(dict.fromkeys(request.policies)) or [CLUSTER_DEFAULT]
    for name in names:
        if name not in CLUSTER_POLICIES:
            known = ", ".join(CLUSTER_POLICIES)
            raise UsageError(f"--policy {name:.40}: a cluster's scenario has {known}; others are of Lambda")
    if request.level == "tasks":
        raise UsageError("--level tasks runs a plan's tasks on Lambda: a cluster has rates and queries")
    world = read_cluster(request.scenario)
    _check_load(request, world)
    for warning in world.warnings():
        err.print(styled("warning:", "yellow"), plain(f"{request.scenario}: {warning}"), soft_wrap=True)
    with status_line() as progress:
        load = _load(request, world, progress)
        runs = [run_cluster(world, name, load, request.seed, progress) for name in names]
    outcomes = [outcome_of(world, request.scenario.stem, run, request.seed) for run in runs]
    if as_json:
        for one in outcomes:
            print_json(one.as_dict())
    else:
        _print(outcomes)
    if plot is not None:
        _draw(request.scenario.stem, runs, outcomes, plot)


def _check_load(request: ClusterRequest, world: ClusterScenario) -> None:
    if request.load.name and all(one.load for one in world.functions):
        raise UsageError(
            f"LOAD is for functions without one of their own, and all {len(world.functions)} of {request.scenario} "
            f"have theirs: leave {request.load.name:.80} away, or take `load` out of [[functions]]"
        )


def _load(request: ClusterRequest, world: ClusterScenario, progress: Progress) -> ClusterLoad:
    traces = []
    for number, one in enumerate(world.functions):
        progress(f"reading the load of {one.name}")
        traces.append(_trace(request, number, one.load).scaled(one.factor))
    detail = Detail(window_s=request.window_s) if request.level == "queries" else Detail(0)
    return cluster_load(traces, request.period_s, request.seed, detail)


def _trace(request: ClusterRequest, number: int, text: str) -> Trace:
    spec = replace(request.load, name=text or request.load.name)
    if not spec.name:
        raise UsageError(
            f"functions[{number}] has no load: give it one in the scenario, or LOAD for all that have none"
        )
    return spec.read(request.seed + number)


def _print(outcomes: Sequence[ClusterOutcome]) -> None:
    first = outcomes[0]
    functions = len(first.functions)
    out.print(
        plain(
            f"{first.scenario}: {first.seconds / 3600:,.1f} h, {functions} function{'s' * (functions > 1)}, "
            f"{first.requests:,} requests, of which {first.detailed_requests:,} one by one"
        )
    )
    print_table(["", *(outcome.policy for outcome in outcomes)], [(name, *values) for name, values in _rows(outcomes)])
    for window in first.windows:
        out.print(f"one by one: {window.name}, from {window.begin_s / 3600:,.2f} h to {window.end_s / 3600:,.2f} h")


def _rows(outcomes: Sequence[ClusterOutcome]) -> list[tuple[str, list[str]]]:
    rows = [
        ("in time", [f"{one.met:,}" for one in outcomes]),
        ("late", [f"{one.late:,}" for one in outcomes]),
        ("dropped", [f"{one.dropped:,}" for one in outcomes]),
        ("SLO missed", [f"{one.violations:.2%}" for one in outcomes]),
        ("requests per unit and second", [f"{one.requests_per_unit_s:,.3f}" for one in outcomes]),
        ("cores per 100 requests/s", [f"{one.cores_per_100_rps:,.2f}" for one in outcomes]),
        ("GPUs per 100 requests/s", [f"{one.gpus_per_100_rps:,.3f}" for one in outcomes]),
        ("$ per million requests", [_or_dash(one.usd_per_request, 1e6, ",.3f") for one in outcomes]),
        ("cost $", [f"{one.usd:,.2f}" for one in outcomes]),
        ("  of active servers $", [f"{one.servers_usd:,.2f}" for one in outcomes]),
        ("cold starts", [f"{one.cold_starts:,}" for one in outcomes]),
        ("idle", [f"{one.idle_share:.1%}" for one in outcomes]),
        ("fragments", [f"{one.fragments:.1%}" for one in outcomes]),
        ("instances", [f"{one.instances:,.1f}" for one in outcomes]),
        ("active servers", [f"{one.active_servers:,.1f}" for one in outcomes]),
        ("waiting ms", [_or_dash(one.wait_ms, 1, ",.1f") for one in outcomes]),
        ("execution ms", [_or_dash(one.exec_ms, 1, ",.1f") for one in outcomes]),
        ("batches", [_batches(one) for one in outcomes]),
    ]
    if any(one.unplaced for one in outcomes):
        rows.append(("requests without room", [f"{one.unplaced:,.0f}" for one in outcomes]))
    return rows


def _or_dash(value: float | None, times: float, form: str) -> str:
    return "-" if value is None else format(value * times, form)


def _batches(one: ClusterOutcome) -> str:
    most = sorted(one.batches.items(), key=lambda each: -each[1])[:3]
    return " ".join(f"{size}:{share:.0%}" for size, share in most) or "-"


def _draw(name: str, runs: Sequence[ClusterRun], outcomes: Sequence[ClusterOutcome], plot: Path) -> None:
    draw_charts(f"{name}: a cluster under load", cluster_charts(runs), _legend(outcomes), (), plot)
    err.print(f"wrote {plain(str(plot))}", soft_wrap=True)
