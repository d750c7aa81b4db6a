"""Invariants of every plan, checked before anything is allocated or indexed by its numbers.

The JSON itself, its keys and types, is checked by codec.py before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

from serfer.core.errors import PlanError
from serfer.core.plan.detection import check_heads, head_fits
from serfer.core.plan.layout import DECODER, ORIGINAL, QUANTISED, UNSPLIT, is_graph, stage_directory, weights_file
from serfer.core.plan.model import (
    ACTIVATIONS,
    IMAGE,
    INPUT_AXES,
    INPUT_TYPES,
    MAX_ELEMENTS,
    OUTPUT_TYPES,
    PATHS,
    WEIGHT_PLACES,
    Cell,
    Input,
    OutputTensor,
    Piece,
    Plan,
    Range,
    Shape,
    Stage,
    Tile,
)
from serfer.core.plan.windows import AxisWindows

_MOST_OF_A_FRAME = 8_192
_MAP_AXES = 3  # (C, H, W)
MAX_RANK = 8
"""The most axes of an output, the batch's apart."""
MAX_NAME = 1024
"""The most characters of a tensor's name in a file."""


def _check_files(number: int, stage: Stage) -> None:
    for index, function in enumerate(stage.functions):
        graphs = [graph.path for graph in function.graphs]
        weights = f"{stage_directory(number)}/{weights_file(index)}"
        names = function.weights.path == weights and all(is_graph(path, number) for path in graphs)
        if not names or any(tile.graph not in graphs for tile in stage.tiles if tile.function == index):
            raise PlanError(f"plan.json names files that are not of stage {number}, or lie outside the directory")
    macs = [*(operator.macs for operator in stage.operators), *(tile.macs for tile in stage.tiles)]
    if not (all(value >= 0 for value in macs) and stage.memory_mb > 0):
        raise PlanError(f"plan.json's stage {number} has impossible figures")


def _check_words(number: int, stage: Stage) -> None:
    if stage.path not in PATHS:
        raise PlanError(f"plan.json's stage {number} has an unknown path of its output: {stage.path!r:.40}")
    if stage.weights_in not in WEIGHT_PLACES:
        raise PlanError(f"plan.json's stage {number} has its weights in an unknown place: {stage.weights_in!r:.40}")


def check_sound(plan: Plan) -> None:
    """Refuse a plan that no splitter of ours writes, before anything is allocated or indexed by its numbers."""
    shapes = [plan.input, plan.output, *(shape for stage in plan.stages for shape in stage.outputs)]
    if not all(0 < size <= MAX_ELEMENTS for shape in shapes for size in (shape.channels, shape.height, shape.width)):
        raise PlanError("plan.json has a shape with a side of no or too many values")
    if max(shape.elements for shape in shapes) > MAX_ELEMENTS:
        raise PlanError(f"plan.json has a shape of more than {MAX_ELEMENTS:,} values")
    _check_outputs(plan)
    _check_detection(plan)
    _check_file(plan)
    if plan.unsplit.path != UNSPLIT or [file.path for file in plan.original] not in ([], list(ORIGINAL)):
        raise PlanError("plan.json's unsplit network has another name")
    if [file.path for file in plan.quantised] not in ([], [QUANTISED]):
        raise PlanError("plan.json's network in 8 bits has another name")
    if plan.activation not in ACTIVATIONS or not labels_fit(plan):
        raise PlanError("plan.json's activation is unknown, or its labels are not one for each class")
    if not 1 <= plan.memory_per_vcpu < math.inf:
        raise PlanError("plan.json has impossible MB that come with one vCPU")
    for number, stage in enumerate(plan.stages):
        _check_words(number, stage)
        _check_files(number, stage)
        _check_tiles(plan, number, stage)
    _check_gangs(plan)
    if plan.windows:
        from serfer.core.plan.windows_validation import check_windows  # noqa: PLC0415 - a worker's start imports no more

        check_windows(plan, plan.windows)
    _check_boxes(plan)
    _check_sizes(plan)
    last = plan.stages[-1]
    whole = [tuple(Cell(number, rect) for number, rect in enumerate(tile.outputs)) for tile in last.tiles]
    if not last.inline or [tile.cells for tile in last.tiles] != whole:
        raise PlanError("plan.json's last stage does not answer with its output")


def labels_fit(plan: Plan) -> bool:
    """Return whether labels are one for each class, where the output's form says how many there are."""
    if plan.boxes:
        return not plan.boxes.head.classes or len(plan.labels) in (0, plan.boxes.head.classes)
    if plan.detection:
        return not plan.detection.classes or len(plan.labels) in (0, plan.detection.classes)
    classes = classes_of(plan.output, plan.output_tensors[0])
    return not plan.labels or classes is None or len(plan.labels) == classes


def classes_of(output: Shape, tensor: OutputTensor) -> int | None:
    """Return how many classes labels are names of: scores, (N, K), or channels of a map, (N, C, H, W).

    None for any number: of a mask, whose values are classes, and of boxes, one of whose axes is more than the classes.
    """
    if tensor.dtype != OUTPUT_TYPES[0] or len(tensor.dims) not in (1, _MAP_AXES):
        return None
    return output.elements if output.flat else output.channels


def _check_outputs(plan: Plan) -> None:
    last = plan.stages[-1].outputs if plan.stages else ()
    if not last or last[0] != plan.output or (plan.classifies and (len(last) != 1 or not plan.output.flat)):
        raise PlanError("plan.json's stages do not lead to its output")
    tensors = plan.output_tensors
    if len(tensors) != len(last) or len({tensor.name for tensor in tensors}) != len(tensors):
        raise PlanError("plan.json's outputs are not those of its last stage, each with a name of its own")
    for tensor, shape in zip(tensors, last, strict=True):
        sound = len(tensor.dims) <= MAX_RANK and all(0 < size <= MAX_ELEMENTS for size in tensor.dims)
        if not sound or prod(tensor.dims) != shape.elements or tensor.dtype not in OUTPUT_TYPES:
            raise PlanError(f"plan.json's output {tensor.name!r:.40} has another shape or type than the last stage's")
        sizes = [other for other in tensors if other.name == tensor.sized_by and not other.dims and not other.sized_by]
        if (tensor.sized_by or tensor.axis) and not (sizes and 0 <= tensor.axis < len(tensor.dims)):
            raise PlanError(f"plan.json's output {tensor.name!r:.40} has a size that no output has")


def _check_detection(plan: Plan) -> None:
    if plan.detection is None:
        return
    dims = {tensor.name: tensor.dims for tensor in plan.outputs}
    given = [dims.get(name, ()) for name in plan.detection.outputs]
    if plan.windows or not head_fits(plan.detection, given):
        raise PlanError("plan.json's detection names outputs that do not hold boxes")


def _check_boxes(plan: Plan) -> None:
    boxes = plan.boxes
    if boxes is None:
        return
    check_heads(boxes.head.family)
    strides = [axis.of_output(number).step for number in range(len(plan.outputs)) for axis in _axes(plan)]
    whole = all(step >= 1 and step.is_integer() for step in strides)
    sides = (boxes.height, boxes.width, boxes.multiple)
    fits = whole and all(0 < side <= _MOST_OF_A_FRAME and side % int(step) == 0 for side in sides for step in strides)
    if not plan.windows or not strides or not fits or boxes.decoder.path != DECODER:
        raise PlanError("plan.json has boxes that its maps do not hold, or a decoder of another size or name")


def _axes(plan: Plan) -> list[AxisWindows]:
    return [*plan.windows.heights, *plan.windows.widths] if plan.windows else []


def _check_file(plan: Plan) -> None:
    file = plan.file
    if file is None:
        return
    named = 0 < len(file.input) <= MAX_NAME and len(file.output) <= MAX_NAME
    if not named or file.dtype not in INPUT_TYPES or file.axes not in INPUT_AXES:
        raise PlanError("plan.json's tensors of the ONNX file have impossible names, types or axes")


def _check_sizes(plan: Plan) -> None:
    sizes = plan.sizes
    if plan.preprocess:
        plan.preprocess.check_sizes(sizes.input if sizes else None)
        if plan.preprocess.of_maps and not plan.windows:
            raise PlanError("plan.json has a preprocessing that is for maps, and is not a map plan")
    if sizes is None:
        return
    largest, tensors = sizes.input.largest, plan.output_tensors
    one_task = len(plan.stages) == 1 and len(plan.stages[0].tiles) == 1 and not plan.windows
    if not one_task or largest != (plan.input.height, plan.input.width) or len(sizes.outputs) != len(tensors):
        raise PlanError("plan.json has sizes that are not those of its one task")
    for number, (tensor, shape) in enumerate(zip(tensors, plan.stages[0].outputs, strict=True)):
        positive = all(min(sizes.dims(number, corner), default=1) > 0 for corner in sizes.input.corners)
        form = shape.flat or len(tensor.dims) == _MAP_AXES
        if tensor.sized_by or not positive or not form or sizes.dims(number, largest) != tensor.dims:
            raise PlanError(f"plan.json's output {tensor.name!r:.40} has sizes that do not follow from the input's")


def _check_tiles(plan: Plan, number: int, stage: Stage) -> None:
    images = number == 0
    if any((source.stage == IMAGE) != images or not _exists(plan, number, source) for source in stage.inputs):
        raise PlanError(f"plan.json's stage {number} does not follow from the stages before")
    if not (stage.inputs and stage.functions and stage.grid.tiles == len(stage.tiles)):
        raise PlanError(f"plan.json's stage {number} lacks inputs, functions or tiles")
    for tile in stage.tiles:
        lengths = len(tile.inputs), len(tile.padding), len(tile.outputs), 0 <= tile.function < len(stage.functions)
        if lengths != (len(stage.inputs), len(stage.inputs), len(stage.outputs), True):
            raise PlanError(f"plan.json's stage {number} has a tile of another stage")
        rects = [*zip(stage.inputs, tile.inputs, strict=True)]
        inside = all(source.shape.whole.contains(rect) for source, rect in rects) and all(
            shape.whole.contains(rect) for shape, rect in zip(stage.outputs, tile.outputs, strict=True)
        )
        written = all(_is_part(cell, tile) for cell in tile.cells)
        if not inside or not written or not all(_readable(plan, number, piece) for piece in tile.pieces):
            raise PlanError(f"plan.json's stage {number} has a tile outside its map, or a piece of no tile")


def _is_part(cell: Cell, tile: Tile) -> bool:
    if not 0 <= cell.output < len(tile.outputs):
        return False
    rows, cols = cell.rect.rows.size, cell.rect.cols.size
    return min(rows, cols) > 0 and tile.outputs[cell.output].contains(cell.rect)


def _exists(plan: Plan, number: int, source: Input) -> bool:
    if source.stage == IMAGE:
        return source.shape == plan.input
    outputs = plan.stages[source.stage].outputs if 0 <= source.stage < number else ()
    return 0 <= source.output < len(outputs) and outputs[source.output] == source.shape


def _readable(plan: Plan, number: int, piece: Piece) -> bool:
    if not (0 <= piece.stage < number and 0 <= piece.tile < len(plan.stages[piece.stage].tiles)):
        return False
    known = {(source.stage, source.output) for source in plan.stages[number].inputs}
    if not all((piece.stage, cell.output) in known for part in piece.ranges for cell in part.cells):
        return False
    stage = plan.stages[piece.stage]
    cells = stage.tiles[piece.tile].cells
    sizes = [stage.outputs[cell.output].channels * cell.rect.area for cell in cells]
    return all(_lies_there(part, cells, sizes) for part in piece.ranges)


def _lies_there(part: Range, cells: Sequence[Cell], sizes: Sequence[int]) -> bool:
    stop = part.first + len(part.cells)
    return (
        0 <= part.first < stop <= len(cells)
        and cells[part.first : stop] == part.cells
        and part.offset == sum(sizes[: part.first])
        and part.elements == sum(sizes[part.first : stop])
    )


def _check_gangs(plan: Plan) -> None:
    end = 0
    for gang in plan.gangs:
        stages = plan.stages[gang.start : gang.stop] if end <= gang.start else ()
        if len(stages) != gang.stop - gang.start or len(stages) < 2:  # noqa: PLR2004 - one stage exchanges nothing
            raise PlanError("plan.json has a gang of stages that do not exist, or belong to another")
        end = gang.stop
        most = stages[0].grid.tiles
        alike = all(
            (stage.memory_mb, stage.weights_in, len(stage.functions)) == (stages[0].memory_mb, stages[0].weights_in, 1)
            for stage in stages
        )
        if not alike or any(stage.grid.tiles > most for stage in stages):
            raise PlanError(f"plan.json's gang of stages {gang.start} to {gang.stop - 1} cannot be one function")
        if gang.compute_s < 1:
            raise PlanError(f"plan.json's gang of stages {gang.start} to {gang.stop - 1} has no time to compute")
