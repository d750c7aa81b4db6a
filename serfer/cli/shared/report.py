"""A query's report on a terminal: its stages, what moved, and its dollars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serfer.cli.shared.display import byte_size, plain, print_table
from serfer.cli.shared.terminal import out

if TYPE_CHECKING:
    from serfer.core.exactness import Difference
    from serfer.core.plan import Plan
    from serfer.core.report import QueryReport, StageReport

_QUERIES = 1_000_000


def print_report(report: QueryReport, plan: Plan, workers: str) -> None:
    if report.target == "cache":
        out.print(f"{report.latency_ms:.1f} ms, from the cache: nothing ran")
    elif report.target == "gpu":
        out.print(f"{report.latency_ms:.1f} ms, on an instance of the pool: ${report.cost_usd:.8f} of what it costs")
    else:
        _print_stages(report)
        _print_sums(report)
        out.print(_dollars(report, plan, workers))


def print_difference(delta: Difference | None) -> None:
    if delta is not None:
        same = "same first class" if delta.same_top else "ANOTHER first class"
        out.print(f"difference from the unsplit model: {delta.error:.1e} of the outputs' range, {same}")


def _print_stages(report: QueryReport) -> None:
    gangs = _has_gangs(report)
    heads = ["stage", "grid", "tasks", "ms", "start", "bytes in", "bytes out"]
    rows = [
        (
            *(
                stage.name,
                stage.grid,
                str(stage.tasks),
                f"{stage.ms:.1f}",
                f"{stage.cold} cold" if stage.cold else "warm",
            ),
            *(byte_size(stage.bytes_in), byte_size(stage.bytes_out)),
            *(_gang_figures(stage) if gangs else ()),
        )
        for stage in report.stages
    ]
    print_table([*heads, *(["gang", "exchanged", "waited"] if gangs else [])], rows)


def _print_sums(report: QueryReport) -> None:
    store = report.store
    out.print(
        f"{report.latency_ms:.0f} ms; store: {byte_size(store.bytes_put)} written, {byte_size(store.bytes_get)} read, "
        f"{store.exists} polls; {report.retries} retries"
        + (f", {report.restarts} restarts" if report.restarts else "")
        + (f", {report.disbanded} gangs disbanded" if report.disbanded else "")
        + (f", environments warmed: {report.warm_ups}" if report.warm_ups else "")
    )
    if report.plan_reason:
        out.print(f"plan {report.plan[:12]}: {plain(report.plan_reason)}")
    if _has_gangs(report):
        out.print(f"gangs: members waited {report.wait_gb_s:.4f} GB-seconds for one another")


def _dollars(report: QueryReport, plan: Plan, workers: str) -> str:
    """Return what a query costs: of this machine, predicted, as its times at Lambda's prices would be no price."""
    predicted = "nothing is predicted: the plan has no explanation.json"
    if (usd := plan.predicted_usd) is not None:
        predicted = f"${usd * _QUERIES:.2f} for a million queries of one image on Lambda, warm, as predicted"
    cold, tasks = sum(stage.cold for stage in report.stages), sum(stage.tasks for stage in report.stages)
    starts = f", {cold} of {tasks} tasks cold" if cold else ""
    if workers != "aws":
        return f"{predicted}; the times above are this machine's{starts}"
    return f"${report.cost_usd:.8f} on Lambda at us-east-1 prices{starts}; {predicted}"


def _has_gangs(report: QueryReport) -> bool:
    return any(stage.gang is not None for stage in report.stages)


def _gang_figures(stage: StageReport) -> tuple[str, str, str]:
    if stage.gang is None:
        return "", "", ""
    return f"stage-{stage.gang}", byte_size(stage.bytes_exchanged), f"{stage.wait_ms:.1f} ms"
