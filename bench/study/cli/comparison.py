"""How `serfer study simulate` prints a comparison of candidates, and which one it recommends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from serfer.cli.shared.display import plain, print_table, styled
from serfer.cli.shared.terminal import out

if TYPE_CHECKING:
    from serfer_bench.study.sim.recommend import Comparison, Evaluation, Spread


def print_comparison(comparison: Comparison, evaluations: Sequence[Evaluation]) -> None:
    first = evaluations[0]
    several = first.seeds > 1
    queries = f", {first.queries.mean:,.0f} queries" if first.queries else ""
    means = f"; means over {first.seeds} seeds" if several else ""
    out.print(plain(f"{comparison.load.name} in {comparison.scenario_name}{queries}{means}"))
    names = ["cost $", *(["least", "largest"] if several else []), "ratio", "window $", "times rates"]
    names += [f"in {comparison.scenario.slo_ms:g} ms", *(["least"] if several else []), "SLO", "p99 ms", "launches"]
    print_table(["", *names], [_row(evaluation, several=several) for evaluation in evaluations])
    notes = dict.fromkeys(text for one in evaluations for text in one.warnings)
    for text in notes:
        out.print(plain(f"warning: {text}"))
    if first.recommended:
        out.print(styled("recommended:"), plain(first.reason or ""))
    else:
        out.print("recommended: none, because each candidate refuses queries or answers them late, which costs nothing")
    if any(each.detailed for each in comparison.lambdas):
        sources = dict.fromkeys(each.detailed.services.source for each in comparison.lambdas if each.detailed)
        out.print(plain(f"Lambda's times: {'; '.join(sources)}"))


def _verdict(one: Evaluation) -> str:
    if not one.comparable:
        return "refuses"
    return {True: "met", False: "missed", None: "-"}[one.meets_slo]


def _row(one: Evaluation, *, several: bool) -> list[str]:
    cost, slo = one.cost_usd, one.slo_met
    return [
        ("* " if one.recommended else "  ") + one.candidate.label + (", spot" if one.spot else ""),
        _mean(cost, ",.4f"),
        *([f"{cost.min:,.4f}", f"{cost.max:,.4f}"] if several and cost else []),
        _mean(one.ratio, ".3f"),
        _mean(one.window_usd, ",.4f"),
        _mean(one.window_ratio, ".2f"),
        _mean(slo, ".2%"),
        *([f"{slo.min:.2%}" if slo else "-"] if several else []),
        _verdict(one),
        _mean(one.p99_ms, ",.0f"),
        _mean(one.launches, ",.0f"),
    ]


def _mean(value: Spread | None, form: str) -> str:
    return "-" if value is None else format(value.mean, form)
