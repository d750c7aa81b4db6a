"""What a query of a map plan computes: one window, as a plan of one stage and one tile."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from serfer.core.errors import InputError, PlanError
from serfer.core.geometry import Grid
from serfer.core.plan.model import OUTPUT_TYPES, OutputTensor, Plan
from serfer.core.plan.windows import Windows


def query_plan(plan: Plan, window: int | None) -> Plan:
    """Return what a query computes: the plan, or of a map plan the tile of its window, with the plan's digest.

    Raises PlanError for a query of a map plan that names no window, InputError for a window that the plan lacks.
    """
    if plan.windows is None:
        if window is not None:
            raise InputError("the plan has no windows: it is not a map plan")
        return plan
    if window is None:
        raise PlanError("this is a map plan, whose queries are windows of an image: use serfer map, or serfer.map")
    return _tile_plan(plan, plan.windows, window)


def _tile_plan(plan: Plan, windows: Windows, window: int) -> Plan:
    [stage] = plan.stages
    if not 0 <= window < len(stage.tiles):
        raise InputError(f"the map plan has no window of kind {window}")
    tile = stage.tiles[window]
    read = tile.inputs[0]
    image = replace(plan.input, height=read.rows.size, width=read.cols.size)
    results = tuple(
        replace(shape, height=rect.rows.size, width=rect.cols.size)
        for shape, rect in zip(stage.outputs, tile.outputs, strict=True)
    )
    tensors = tuple(
        replace(tensor, dims=(*tensor.dims[:-2], result.height, result.width))
        for tensor, result in zip(plan.output_tensors, results, strict=True)
    )
    if windows.pass_of(window):
        dims = results[0].channels, results[0].height, results[0].width
        tensors = (OutputTensor("statistics", dims, OUTPUT_TYPES[0]),)
    return replace(
        plan,
        input=image,
        output=results[0],
        outputs=tensors,
        stages=(
            replace(
                stage, grid=Grid(1, 1), tiles=(tile,), inputs=(replace(stage.inputs[0], shape=image),), outputs=results
            ),
        ),
        windows=None,
    )


def commonest_window(windows: Windows) -> int:
    """Return the tile of the most windows of the first of the images."""
    return Counter(window.tile for window in windows.first).most_common(1)[0][0]


def priced_query(plan: Plan) -> Plan:
    """Return what a plan's prices and pictures are of: the plan, or of a map plan its commonest window.

    That is the kind which the first of its images has most of. The stage's operators then have the multiply-accumulates
    of what the window writes, without its overlap.
    """
    if plan.windows is None:
        return plan
    image = plan.windows.first
    query = query_plan(plan, commonest_window(plan.windows))
    [stage] = query.stages
    written, whole = query.output.height * query.output.width, image.height * image.width
    operators = tuple(replace(operator, macs=operator.macs * written // whole) for operator in stage.operators)
    return replace(query, stages=(replace(stage, operators=operators),))


def check_whole_images(plan: Plan) -> None:
    if plan.windows is not None:
        raise PlanError(
            f"{plan.model} is a map plan, whose queries are windows of an image: serfer map runs it, and predicts "
            "dollars and time with --dry-run"
        )
