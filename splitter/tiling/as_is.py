"""The rules of a part that runs as it is, and of its results: never tiled, and written as a Scan (network/as_is.py)."""

from __future__ import annotations

from serfer.core.plan import AS_IS, PARTLY_TIMED, PREDICTED, TIMED
from serfer.splitter.network.as_is import AS_IS_OUTPUT, NUMBER, PART, AsIsPart, scan
from serfer.splitter.network.graph import Axes, Graph, Node
from serfer.splitter.tiling.onnx_builder import OnnxBuilder
from serfer.splitter.tiling.tiling_rule import Rule, TileOperator


def part_of(node: Node) -> AsIsPart | None:
    """Return the part that a node stands for, None for an operator."""
    part = node.attributes.get(PART)
    return part if isinstance(part, AsIsPart) else None


def runs_as_it_is(node: Node) -> bool:
    return node.kind in (AS_IS, AS_IS_OUTPUT)


def times_of(graph: Graph) -> str:
    """Return where the times of a graph's operators are from, as `Plan.times` has it."""
    costs = next((part.costs for part in map(part_of, graph.nodes) if part and part.costs), None)
    if costs is None:
        return PREDICTED
    return costs.times if costs.times != TIMED or all(map(runs_as_it_is, graph.nodes)) else PARTLY_TIMED


class AsIs(Rule):
    """A part that runs as it is."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        return None

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        """Append the Scan; its weights are put inside when the model is written."""
        part, node = tile.node.attributes[PART], tile.node
        constants = tile.graph.constants(node)
        read = [name for name in tile.inputs if name not in constants]
        outputs = [node.output] if part.results == 1 else [_result(node.output, at) for at in range(part.results)]
        written = scan(part, read, outputs, [])
        written.name = node.name
        builder.nodes.append(written)
        builder.inside[node.name] = tuple(constants)
        builder.domains |= part.domains


class AsIsOutput(Rule):
    """One result of a part that has several."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        return None

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        builder.append("Identity", [_result(tile.inputs[0], tile.node.attributes[NUMBER])], tile.node.output)


def _result(bundle: str, number: int) -> str:
    return f"{bundle}.{number}"
