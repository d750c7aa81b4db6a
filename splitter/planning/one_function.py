"""The plan of one task, without a search."""

from __future__ import annotations

from serfer.core.errors import ModelError
from serfer.splitter.network.graph import Graph
from serfer.splitter.planning.explanation import alternative, describe, why_nothing_fits
from serfer.splitter.planning.limits import WeightStorage
from serfer.splitter.planning.planner import Decision, choices_of, prepare
from serfer.splitter.planning.search import BALANCED
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling.cuts import Cut
from serfer.splitter.tiling.grids import ONE, GridChoice


def in_one_function(graph: Graph, budget: Budget, places: tuple[str, ...]) -> Decision:
    """Return the decision for one task that computes the whole network, with the best of the budget's memory sizes.

    `places` are where it may have its weights. Raises ModelError where no function holds it.
    """
    cuts = (Cut(0, (graph.input,)), Cut(len(graph.nodes), graph.outputs))
    grids, storage = GridChoice((ONE,)), WeightStorage(places=places)
    search = prepare(graph, cuts, grids, None, budget, storage)
    chain = search.best(BALANCED) if search.fastest else None
    if chain is None:
        raise ModelError(why_nothing_fits(graph, cuts, grids, None, budget, storage))
    why = f"As given, {describe(chain)}: nothing else was looked for."
    listed = (alternative(chain, budget.platform, chosen=True),)
    return Decision(graph, cuts, choices_of(chain), why=why, alternatives=listed)
