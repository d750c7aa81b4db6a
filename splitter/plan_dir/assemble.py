"""Assembles a plan directory (serfer/core/plan/layout.py) from a graph and a choice of stages.

Graphs are named by content, so tiles of the same shape share one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from serfer.core.costs.cold_queries import price_cold
from serfer.core.costs.cost_model import (
    MEASURED_MEMBERS,
    GangPrice,
    Platform,
    gang_load,
    plan_load,
    price_gang,
    price_plan,
    stage_price,
)
from serfer.core.costs.operator_costs import Profiles
from serfer.core.errors import ModelError
from serfer.core.geometry import Grid, Rect
from serfer.core.plan import (
    FORMAT,
    IMAGE,
    ZIP,
    Alternative,
    Artefact,
    Gang,
    Input,
    Operator,
    Padding,
    Piece,
    Plan,
    Stage,
    Tile,
    sealed,
)
from serfer.core.plan.gang_times import compute_limit_s
from serfer.core.plan.layout import ORIGINAL, UNSPLIT, stage_directory
from serfer.core.units import MIB, MS_PER_S
from serfer.plan_directory import write_plan
from serfer.splitter.network.graph import Graph, Node, Weights
from serfer.splitter.network.source import Progress, Source
from serfer.splitter.plan_dir.emit import TileGraph, in_one_piece, tile_graph
from serfer.splitter.plan_dir.functions import artefact, half_weights, write_functions
from serfer.splitter.plan_dir.weights import WeightsFile
from serfer.splitter.planning.explanation import describe
from serfer.splitter.planning.limits import room_in
from serfer.splitter.planning.ort_kernels import predicted_ms, tile_works
from serfer.splitter.planning.planner import Choice, Decision
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.as_is import times_of
from serfer.splitter.tiling.byte_layout import Layout, Wanted, lay_out, pieces_for
from serfer.splitter.tiling.global_pooling import with_grid
from serfer.splitter.tiling.grids import tile_rects
from serfer.splitter.tiling.regions import Regions, infer_regions, input_paddings, tile_macs, whole_regions

_NO_PADDING = Padding(0, 0, 0, 0)


@dataclass(frozen=True)
class _TilePart:
    inputs: tuple[Rect, ...]
    padding: tuple[Padding, ...]
    outputs: tuple[Rect, ...]
    macs: int
    regions: Regions
    graph: TileGraph


@dataclass(frozen=True)
class _StagePart:
    graph: Graph
    choice: Choice
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.graph.nodes[self.choice.start : self.choice.stop]

    @cached_property
    def tiles(self) -> list[_TilePart]:
        graph, nodes, grid = self.graph, self.nodes, self.choice.grid
        rects = {name: tile_rects(graph, name, grid) for name in self.outputs}
        targets = [{name: rects[name][number] for name in self.outputs} for number in range(grid.tiles)]
        if grid.tiles == 1 and not all(operators.tileable(graph, node) for node in nodes):
            regions, paddings = [whole_regions(graph, nodes)], [(_NO_PADDING,) * len(self.inputs)]
        else:
            regions = infer_regions(graph, nodes, targets)
            paddings = input_paddings(graph, nodes, self.inputs, targets)
        return [self._tile(*tile) for tile in zip(targets, regions, paddings, strict=True)]

    def _tile(self, targets: Regions, regions: Regions, padding: tuple[Padding, ...]) -> _TilePart:
        return _TilePart(
            inputs=tuple(regions[name] for name in self.inputs),
            padding=padding,
            outputs=tuple(targets.values()),
            macs=tile_macs(self.graph, self.nodes, regions),
            regions=regions,
            graph=tile_graph(self.graph, self.nodes, regions, self.inputs, targets),
        )

    def functions(self, room: int) -> list[list[int]]:
        """Group tiles: all in one, unless its columns' weights are too large for its zip, or the tiles are `apart`."""
        if self.choice.apart:
            return [[number] for number in range(len(self.tiles))]
        groups: list[list[int]] = [[]]
        held: Weights = {}
        half = half_weights([tile.graph for tile in self.tiles])
        spread = self.choice.grid.columns and self.choice.weights_in == ZIP
        for number, tile in enumerate(self.tiles):
            held = {**held, **tile.graph.weights}
            if spread and groups[-1] and WeightsFile("", held, half).bytes > room:
                groups.append([])
                held = dict(tile.graph.weights)
            groups[-1].append(number)
        return groups


def assemble(
    decision: Decision,
    source: Source,
    original: Graph,
    budget: Budget,
    directory: Path,
    progress: Progress,
    reserve: int = 0,
) -> Plan:
    """Write a plan into an empty directory and return it; `original` is the given model.

    `reserve` are bytes of each function's package that weights are to leave for graphs. Raises PackageOverflowError
    where that is too little.
    """
    parts = _stage_parts(decision)
    graph, limit = decision.graph, budget.limit
    room = limit.room - reserve
    layouts = _layouts(parts)
    stages: list[Stage] = []
    files: dict[str, WeightsFile] = {}
    for number, part in enumerate(parts):
        progress(f"writing stage {number} of {len(parts)}")
        inputs = tuple(_input(parts, graph, name, number) for name in part.inputs)
        pieces = [_pieces(stages, layouts, inputs, number, tile) for tile in range(len(part.tiles))]
        groups = part.functions(room)
        stage = stage_directory(number)
        written = write_functions([tile.graph for tile in part.tiles], groups, directory / stage)
        files |= {f"{stage}/{file.name}": file for file in written.weights}
        stages.append(
            Stage(
                operators=tuple(_operator(graph, node) for node in part.nodes),
                grid=part.choice.grid,
                memory_mb=part.choice.memory_mb,
                inputs=inputs,
                outputs=tuple(part.graph.shape(name) for name in part.outputs),
                tiles=tuple(
                    Tile(
                        graph=written.graphs[index],
                        function=next(group for group, members in enumerate(groups) if index in members),
                        inputs=tile.inputs,
                        padding=tile.padding,
                        outputs=tile.outputs,
                        cells=tuple(cell for cell, _ in layouts[number][index]),
                        pieces=tuple(pieces[index]),
                        macs=tile.macs,
                        **_compute(part, tile, budget.profiles),
                    )
                    for index, tile in enumerate(part.tiles)
                ),
                functions=written.functions,
                path=part.choice.path,
                weights_in=part.choice.weights_in,
            )
        )
    _check_packages(stages, decision.gangs, budget)
    (directory / UNSPLIT).write_bytes(in_one_piece(graph).model(files).SerializeToString())
    plan = sealed(
        _with_predictions(
            Plan(
                format=FORMAT,
                model=source.name,
                weights=source.weights,
                input=graph.shape(graph.input),
                output=graph.shape(graph.output),
                outputs=graph.answers,
                file=source.given.tensors if source.given else None,
                sizes=graph.sizes,
                activation=source.activation,
                detection=source.detection,
                preprocess=source.preprocess,
                labels=source.labels,
                limit=limit,
                memory_per_vcpu=float(budget.facts.functions.memory_per_vcpu),
                stages=tuple(stages),
                unsplit=artefact(directory / UNSPLIT, directory),
                original=_write_original(original, directory) if decision.changes else (),
                changes=decision.changes,
                ways=decision.ways,
                store=budget.store,
                cold_share=budget.cold_share,
                times=times_of(graph),
                digest="",
            ),
            decision,
            budget.platform,
        )
    )
    write_plan(plan, directory)
    return plan


def _with_predictions(plan: Plan, decision: Decision, platform: Platform) -> Plan:
    """Prices of the search are close, and not the same: they name the plan's alternatives, which nobody has written."""
    stages, gangs = list[Stage](), list[Gang]()
    for number, stage in enumerate(plan.stages):
        seconds, usd = stage_price(plan_load(plan, number), stage.memory_mb, platform)
        stages.append(replace(stage, predicted_ms=float(seconds) * MS_PER_S, predicted_usd=float(usd)))
    for numbers in decision.gangs:
        load = gang_load(plan, Gang(numbers.start, numbers.stop))
        price = price_gang(load, stages[numbers.start].memory_mb, platform)
        ms = price.seconds * MS_PER_S
        gangs.append(Gang(numbers.start, numbers.stop, ms, price.usd, compute_limit_s(ms)))
    plan = replace(plan, stages=tuple(stages), gangs=tuple(gangs))
    query, cold = price_plan(plan, platform), price_cold(plan, platform)
    warm = price_plan(plan, replace(platform, cold_share=0.0))
    mine = Alternative(
        describe(decision.steps),
        tasks=sum(step.tasks for step in warm.stages),
        ms=query.seconds * MS_PER_S,
        usd=query.usd,
        fits=True,
        chosen=True,
        warm_ms=warm.seconds * MS_PER_S,
        cold_ms=cold.seconds * MS_PER_S,
        warm_usd=warm.usd,
    )
    others = (mine if other.chosen else other for other in decision.alternatives)
    in_words = (
        _in_words(numbers, plan.stages[numbers.start].grid, step)
        for numbers, step in zip(warm.numbers, warm.stages, strict=True)
        if isinstance(step, GangPrice)
    )
    return replace(
        plan,
        why=" ".join([decision.why(mine, cold) + decision.sentences, *in_words]),
        alternatives=tuple(sorted(others, key=lambda other: other.ms)),
    )


def _in_words(gang: range, grid: Grid, price: GangPrice) -> str:
    measured = f"predictions agreed with measurements for gangs of {MEASURED_MEMBERS} members"
    simulated = f" Its times are simulated: {measured}." if grid.tiles > MEASURED_MEMBERS else ""
    return (
        f"Stages {gang.start} to {gang.stop - 1} are a gang on {grid}: {price.exchanges} exchanges, "
        f"{price.bytes_exchanged / MIB:.2f} MB of borders, {price.waiting_gb_s:.3f} of {price.billed_gb_s:.3f} "
        f"GB-seconds waiting.{simulated}"
    )


def _compute(part: _StagePart, tile: _TilePart, profiles: Profiles) -> dict[str, float]:
    outputs = dict(zip(part.outputs, tile.outputs, strict=True))
    works = tile_works(part.graph, part.nodes, tile.regions, part.inputs, outputs)
    return dict(zip(("serial_ms", "parallel_ms"), predicted_ms(profiles, works), strict=True))


class PackageOverflowError(ModelError):
    """A function's weights and graphs have `excess` bytes more than its package has room for."""

    def __init__(self, message: str, excess: int) -> None:
        super().__init__(message)
        self.excess = excess


def _check_packages(stages: Sequence[Stage], gangs: Sequence[range], budget: Budget) -> None:
    """Refuse functions that cannot be deployed: graphs count as well, and only the written files are exact."""
    functions = {
        f"function {index} of stage {number}": ([function], stage)
        for number, stage in enumerate(stages)
        for index, function in enumerate(stage.functions)
    }
    for numbers in gangs:
        held = [function for number in numbers for function in stages[number].functions]
        functions[f"the gang of stages {numbers.start} to {numbers[-1]}"] = held, stages[numbers.start]
    for what, (held, stage) in functions.items():
        files = [file for function in held for file in (function.graphs if stage.fetches else function.files)]
        room = room_in(ZIP if stage.fetches else stage.weights_in, budget)
        if (size := sum(file.bytes for file in files)) > room:
            raise PackageOverflowError(
                f"{what} has {size:,} bytes of {'graphs' if stage.fetches else 'weights and graphs'}, {size - room:,} "
                "more than its package has room for; allow more stages or columns",
                size - room,
            )


def _stage_parts(decision: Decision) -> list[_StagePart]:
    cuts = {cut.position: cut for cut in decision.cuts}
    made_at = {node.output: index for index, node in enumerate(decision.graph.nodes)}
    parts = []
    for choice in decision.choices:
        nodes = decision.graph.nodes[choice.start : choice.stop]
        read = {name for node in nodes for name in decision.graph.activations(node)}
        inputs = tuple(name for name in cuts[choice.start].tensors if name in read)
        outputs = tuple(name for name in cuts[choice.stop].tensors if made_at[name] >= choice.start)
        parts.append(_StagePart(decision.graph, choice, inputs, outputs))
    return _with_pools(parts)


def _with_pools(parts: Sequence[_StagePart]) -> list[_StagePart]:
    graph = parts[0].graph
    for part in parts:
        graph = with_grid(graph, part.choice.grid, frozenset(part.outputs))
    return [_StagePart(graph, part.choice, part.inputs, part.outputs) for part in parts]


def _layouts(parts: Sequence[_StagePart]) -> list[Layout]:
    """A stage's readers are all tiles of all stages after it; the last stage's output, the answer, is read whole."""
    return [
        lay_out(
            [tile.outputs for tile in part.tiles],
            [_rects_read(reader, tile, part.outputs) for reader in parts[number + 1 :] for tile in reader.tiles]
            or [{index: part.graph.shape(name).whole for index, name in enumerate(part.outputs)}],
        )
        for number, part in enumerate(parts)
    ]


def _rects_read(reader: _StagePart, tile: _TilePart, outputs: Sequence[str]) -> Wanted:
    reads = dict(zip(reader.inputs, tile.inputs, strict=True))
    return {number: reads[name] for number, name in enumerate(outputs) if name in reads}


def _input(parts: Sequence[_StagePart], graph: Graph, name: str, number: int) -> Input:
    if name == graph.input:
        return Input(IMAGE, IMAGE, graph.shape(name))
    stage = next(index for index in range(number) if name in parts[index].outputs)
    return Input(stage, parts[stage].outputs.index(name), parts[stage].graph.shape(name))


def _pieces(
    stages: Sequence[Stage], layouts: Sequence[Layout], inputs: Sequence[Input], number: int, tile: int
) -> list[Piece]:
    pieces = []
    for stage in sorted({source.stage for source in inputs} - {IMAGE}):
        reader = sum(len(stages[other].tiles) for other in range(stage + 1, number)) + tile
        pieces += pieces_for(reader, stage, stages[stage].outputs, layouts[stage])
    return pieces


def _write_original(graph: Graph, directory: Path) -> tuple[Artefact, ...]:
    name, weights = ORIGINAL
    whole = in_one_piece(graph)
    file = WeightsFile(weights, whole.weights, frozenset())
    file.write(directory / weights)
    (directory / name).write_bytes(whole.model({weights: file}).SerializeToString())
    return artefact(directory / name, directory), artefact(directory / weights, directory)


def _operator(graph: Graph, node: Node) -> Operator:
    return Operator(node.name, node.kind, operators.macs(graph, node, graph.shape(node.output).whole.area))
