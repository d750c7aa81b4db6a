"""What the defaults of `serfer split` choose for the zoo, compared with warm queries alone and gangs of any width.

*Warm* is `--cold-share 0 --gang-width 16`, *default* the assumed share of cold queries and gangs as wide as were
measured. Both are for a new AWS account. Nothing is written, and nothing runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.costs.account import AccountQuotas
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cold_starts import COLD_SHARE, cold_start
from serfer.core.costs.cost_model import MEASURED_MEMBERS, start_usd
from serfer.core.plan import ZIP, PackageLimit, explained
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.settings import load_settings
from serfer.splitter.network import zoo
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.source import load
from serfer.splitter.package_fit import fit
from serfer.splitter.planning.limits import column_bytes
from serfer.splitter.planning.planner import Decision
from serfer.splitter.planning.split_options import Budget, SplitOptions, memory_sizes
from serfer.splitter.tiling.cuts import weight_bytes
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer_bench.core.options import MarkdownOption
from serfer_bench.core.tables import Column, Measurement, Results, publish, table_of
from serfer_bench.study.planner.planner import scaled

_MILLION = 1_000_000
_DEFAULTS = {
    "warm": (0.0, None, 1.0),
    "default": (COLD_SHARE, MEASURED_MEMBERS, 1.0),
    "default, packages half as fast": (COLD_SHARE, MEASURED_MEMBERS, 0.5),
    "default, twice as fast": (COLD_SHARE, MEASURED_MEMBERS, 2.0),
}
"""The share of cold queries, the most members of a gang, None for any, and the times of lambda.package_rate."""
_NOTE = f"all predicted, for a new AWS account, {100 * COLD_SHARE:g}% of the queries cold where it says so: nothing ran"
_COLD = f"{100 * COLD_SHARE:g}% cold"


@dataclass(frozen=True)
class Choice(Measurement):
    """A plan that was chosen: what a query takes where everything is warm, where nothing is, and on average.

    Average is with the assumed share of cold queries, whatever the plan was chosen for.
    """

    network: Annotated[str, Column("network")]
    size: Annotated[int, Column("px")]
    chosen_for: Annotated[str, Column("chosen for")]
    plan: Annotated[str, Column("plan")]
    warm_ms: Annotated[float, Column("warm ms", ",.1f")]
    cold_ms: Annotated[float, Column("first cold answer ms", ",.0f")]
    usd: Annotated[float, Column("$ a million, warm", ",.2f", _MILLION)]
    expected_ms: Annotated[float, Column(f"ms, {_COLD}", ",.1f")]
    expected_usd: Annotated[float, Column(f"$ a million, {_COLD}", ",.2f", _MILLION)]


def choices(name: str, graph: Graph, size: int, facts: AwsFacts) -> Iterator[Choice]:
    account = AccountQuotas.new(facts)
    limit = PackageLimit(facts.functions.package_limit, DEPENDENCY_ALLOWANCE)
    for chosen_for, (share, width, times) in _DEFAULTS.items():
        within = account.within(scaled(facts, "package_rate", times))
        memory = memory_sizes(within.functions)
        budget = Budget(limit, within, memory, cold_share=share, account=account, gang_width=width)
        decision = fit(graph, SplitOptions(), budget, None, lambda _step: None)
        (chosen,) = (other for other in decision.alternatives if other.chosen)
        warm_ms, cold_ms, usd = (explained(figure) for figure in (chosen.warm_ms, chosen.cold_ms, chosen.warm_usd))
        mixed_ms = (1 - COLD_SHARE) * warm_ms + COLD_SHARE * cold_ms
        mixed_usd = usd + COLD_SHARE * _starts_usd(decision, budget)
        yield Choice(name, size, chosen_for, chosen.stages, warm_ms, cold_ms, usd, mixed_ms, mixed_usd)


def _starts_usd(decision: Decision, budget: Budget) -> float:
    graph, facts, usd = decision.graph, budget.facts.functions, 0.0
    for number, step in enumerate(decision.steps):
        first = step[0]
        size = weight_bytes(graph, first.start, step[-1].stop, graph.half)
        if first.grid.columns and (first.apart or (first.weights_in == ZIP and size > budget.limit.room)):
            size = column_bytes(graph, graph.nodes[first.start : step[-1].stop], first.grid, graph.half)
        start = cold_start(size, first.weights_in, facts)
        usd += start_usd(first.grid.tiles, first.memory_mb, start, facts, first=not number)
    return usd


def command(
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model", help="A model of the zoo; may be repeated. Without it all of them, which takes minutes."
        ),
    ] = None,
    as_markdown: MarkdownOption = False,
    as_json: JsonOption = False,
) -> None:
    """Price what split chooses for the zoo by default, and for warm queries alone with gangs of any width."""
    facts, rows = load_settings().facts(), list[Choice]()
    with status_line() as progress:
        for model in models or zoo.ZOO:
            progress(f"planning {model}")
            size = zoo.find(model).size
            source, _ = load(model, np.zeros((1, 3, size, size), dtype=np.float32))
            rows += choices(model, from_onnx(source.onnx, size, size), size, facts)
    publish(Results([asdict(row) for row in rows], [table_of(rows)], [_NOTE]), as_json=as_json, as_markdown=as_markdown)
