"""How results look on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from serfer.core.aws import LambdaFacts
from serfer.core.cost import FLOAT_BYTES, invocation_usd
from serfer.core.plan import Plan, Stage

if TYPE_CHECKING:
    from bench.overhead import Overhead
    from serfer.doctor import Check
    from serfer.report import QueryReport
    from splitter.exactness import Difference

_MB = 1024 * 1024
_QUERIES = 1_000_000


def plain(text: str) -> str:
    """Return text that rich prints as it is."""
    return escape(text)


def _table(*columns: str) -> Table:
    """Make a table whose first column is text and whose others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _bytes(count: float) -> str:
    return f"{count / _MB:.1f} MB" if count >= _MB else f"{count / 1024:.1f} kB"


def print_answer(out: Console, plan: Plan, report: QueryReport, delta: Difference | None) -> None:
    """Print one query's answer: classes, stages, dollars, and how far it is from the unsplit model's."""
    for image in report.images:
        out.print(f"[bold]{plain(PurePath(image.name).name)}[/]  {plain(plan.model)}, weights: {plain(plan.weights)}")
        for prediction in image.predictions:
            out.print(f"  {prediction.score:8.2%}  {plain(prediction.label)}")
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
    """Print a plan's stages and what it would cost."""
    out.print(f"[bold]{plain(plan.model)}[/]  weights: {plain(plan.weights)}  digest: {plan.digest[:12]}")
    out.print(f"{plan.input} in, {plan.output} out, {plan.tasks} tasks a query in {len(plan.stages)} stages")
    table = _table(
        "stage", "grid", "operators", "in", "out", "halo", "MACs", "work", "weights", "memory", "writes", "reads"
    )
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
            _bytes(sum(function.weights.bytes for function in stage.functions)),
            f"{stage.memory_mb} MB",
            _bytes(_written(stage)),
            _bytes(_read(stage)) if number else "inline",
        )
    out.print(table)
    for number, stage in enumerate(plan.stages):
        first, last = stage.operators[0], stage.operators[-1]
        out.print(plain(f"stage-{number}: {first.name} ({first.kind}) to {last.name} ({last.kind})"))
    latency = sum(stage.predicted_ms for stage in plan.stages)
    usd = sum(stage.grid.tiles * invocation_usd(stage.memory_mb, stage.predicted_ms, facts) for stage in plan.stages)
    out.print(
        f"predicted, warm, on Lambda: {latency:.0f} ms and at most ${usd * _QUERIES:.2f} for a million queries "
        "(a model: see serfer/core/cost.py)"
    )


def _halo(stage: Stage) -> str:
    """Say how many more input positions all tiles read together than there are."""
    if stage.inputs[0].shape.flat:
        return "-"
    read = sum(tile.inputs[0].area for tile in stage.tiles)
    return f"+{read / stage.inputs[0].shape.whole.area - 1:.0%}"


def _written(stage: Stage) -> int:
    cells = (cell for tile in stage.tiles for cell in tile.cells)
    return FLOAT_BYTES * sum(stage.outputs[cell.output].channels * cell.rect.area for cell in cells)


def _read(stage: Stage) -> int:
    ranges = (part for tile in stage.tiles for piece in tile.pieces for part in piece.ranges)
    return FLOAT_BYTES * sum(part.elements for part in ranges)


def print_differences(out: Console, found: Sequence[tuple[str, Difference]]) -> None:
    """Print how far each answer is from the unsplit model's."""
    table = _table("input", "error / range", "first class", "exact")
    for name, delta in found:
        table.add_row(
            plain(name), f"{delta.error:.1e}", "same" if delta.same_top else "OTHER", "yes" if delta.exact else "NO"
        )
    out.print(table)


def print_checks(out: Console, checks: Sequence[Check]) -> None:
    """Print what the doctor found."""
    for check in checks:
        mark = "[green]ok     [/]" if check.ok else "[red]MISSING[/]"
        out.print(f"{mark}  {plain(check.name):<22} {plain(check.found)}")
        if not check.ok:
            out.print(f"         {plain(check.remedy)}")


def print_overhead(out: Console, result: Overhead) -> None:
    """Print the pipeline's processor time beside the unsplit forward pass's."""
    table = _table("processor ms a query", "median")
    for name, value in result.shares_ms.items():
        table.add_row(plain(name), f"{value:.2f}")
    table.add_row("pipeline, all of it", f"{result.pipeline_ms:.2f}")
    table.add_row("unsplit forward pass", f"{result.unsplit_ms:.2f}")
    out.print(table)
    low, high = min(result.ratios), max(result.ratios)
    out.print(f"[bold]{result.ratio:.2f} times[/] the unsplit pass (pairs from {low:.2f} to {high:.2f})")
    out.print(
        f"{result.rounds} rounds of {result.queries} queries; {result.polls} polls; "
        f"{result.bytes_per_query:,} bytes a query through the store"
    )
    out.print(f"most weight loads of any environment: {result.weight_loads}; {plain(result.machine)}")
