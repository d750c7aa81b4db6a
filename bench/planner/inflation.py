"""The cost of halos: multiply-accumulates over all tiles against the unsplit network, with groups placed by search."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import typer

from bench.core.options import AtMostOption
from bench.core.results import Results, Table, publish, require_at_most
from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import UsageError
from serfer.core.plan import PackageLimit
from serfer.settings import load_settings
from splitter.network.ingest import from_onnx
from splitter.network.source import load
from splitter.plan_dir.assemble import Decision, tile_macs_of
from splitter.planning.options import Budget
from splitter.planning.planner import choose
from splitter.tiling.cuts import cut_points
from splitter.tiling.global_pooling import with_tile_pools
from splitter.tiling.grids import parse_grids


@dataclass(frozen=True)
class Inflation:
    """A network's tiled stages: `groups` names their first and last operators; MACs are one image's."""

    model: str
    size: int
    grid: str
    groups: tuple[tuple[str, str], ...]
    unsplit_macs: int
    tiled_macs: int

    @property
    def ratio(self) -> float:
        """Work over all tiles relative to the same stages unsplit."""
        return self.tiled_macs / self.unsplit_macs


def measure(
    model: str, size: int, grid: str, groups: int, facts: AwsFacts, progress: Callable[[str], None]
) -> Inflation:
    """Place `groups` tiled stages (what cannot be tiled is a stage after them) where they compute the least.

    Weights are not limited here. Raises UsageError for a grid of columns, or more groups than the network has.
    """
    choice = parse_grids(grid)
    if choice.requested is None or choice.requested.columns or choice.requested.tiles == 1:
        raise UsageError(f"give one grid of tiles such as 2x2, not {grid!r}")
    progress("reading the network")
    source, _ = load(model, np.zeros((1, 3, size, size), dtype=np.float32))
    graph = with_tile_pools(from_onnx(source.onnx, size, size))
    progress("placing the groups")
    budget = Budget(PackageLimit(sys.maxsize, 0), facts, (facts.functions.memory_per_vcpu,))
    cuts = cut_points(graph)
    choices = choose(graph, cuts, choice, groups + 1, budget, least_work=True)
    tiled = [choice for choice in choices or () if choice.grid.tiles > 1]
    if len(tiled) != groups:
        raise UsageError(f"{model} has no {groups} groups that can be tiled {grid} before one stage that cannot")
    work = [tile_macs_of(Decision(graph, cuts, choices or ()), choice) for choice in tiled]
    return Inflation(
        model=model,
        size=size,
        grid=grid,
        groups=tuple((graph.nodes[choice.start].name, graph.nodes[choice.stop - 1].name) for choice in tiled),
        unsplit_macs=sum(whole for whole, _ in work),
        tiled_macs=sum(tiles for _, tiles in work),
    )


def results(inflation: Inflation) -> Results:
    """Return the groups of a network's tiled stages, and their work."""
    groups = [(str(number), first, last) for number, (first, last) in enumerate(inflation.groups)]
    work = f"{inflation.tiled_macs:,} multiply-accumulates over all {inflation.grid} tiles, "
    network = f"{inflation.unsplit_macs:,} unsplit ({inflation.model}, {inflation.size} px)"
    return Results(
        [{**asdict(inflation), "ratio": inflation.ratio}],
        [Table(("group", "from", "to"), groups)],
        [f"x{inflation.ratio:.3f}: {work}{network}"],
    )


def command(
    model: Annotated[str, typer.Option(help="A model of the zoo.")] = "alexnet",
    size: Annotated[int, typer.Option(min=1, help="The image's height and width.")] = 224,
    grid: Annotated[str, typer.Option(help="The grid of every group.")] = "2x2",
    groups: Annotated[int, typer.Option(min=1, help="How many tiled stages, placed by search.")] = 3,
    at_most: AtMostOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count what halos cost: multiply-accumulates over all tiles against the unsplit network."""
    with status_line() as progress:
        inflation = measure(model, size, grid, groups, load_settings().facts(), progress)
    publish(results(inflation), as_json=as_json)
    require_at_most(inflation.ratio, at_most, f"the tiles compute {inflation.ratio:.3f} times the network's work")
