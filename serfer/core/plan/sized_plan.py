"""What a query of a plan of many sizes computes: the plan at the query's size."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from serfer.core.errors import InputError, PlanError
from serfer.core.geometry import Rect
from serfer.core.plan.model import MAX_ELEMENTS, Cell, OutputTensor, Plan, Shape
from serfer.core.plan.sizes import Size


def sized_plan(plan: Plan, size: Size | None) -> Plan:
    """Return the plan at a query's size, with its digest; a plan of one size as it is.

    Raises InputError for a size that the plan does not take, or for one of a plan that has one size.
    """
    if plan.sizes is None:
        if size is not None:
            raise InputError("the plan has one input size: its queries name none")
        return plan
    if size is None:
        raise InputError(f"the query has no size: this plan takes {plan.sizes.input}")
    plan.sizes.input.check(size)
    [stage] = plan.stages
    [tile] = stage.tiles
    image = replace(plan.input, height=size[0], width=size[1])
    tensors = tuple(
        replace(tensor, dims=plan.sizes.dims(number, size)) for number, tensor in enumerate(plan.output_tensors)
    )
    shapes = tuple(_shape(before, tensor) for before, tensor in zip(stage.outputs, tensors, strict=True))
    rects = tuple(shape.whole for shape in shapes)
    cells = tuple(Cell(number, rect) for number, rect in enumerate(rects))
    sized = replace(tile, inputs=(Rect.whole(*size),), outputs=rects, cells=cells)
    inputs = (replace(stage.inputs[0], shape=image),)
    return replace(
        plan,
        input=image,
        output=shapes[0],
        outputs=tensors if plan.outputs else (),
        stages=(replace(stage, tiles=(sized,), inputs=inputs, outputs=shapes),),
        sizes=None,
    )


def check_one_size(plan: Plan, what: str) -> None:
    if plan.sizes is not None:
        raise PlanError(
            f"{plan.model} takes images of many sizes ({plan.sizes.input}), and {what} take one: go without, or make a "
            "plan of one size (--size HEIGHTxWIDTH)"
        )


def _shape(before: Shape, tensor: OutputTensor) -> Shape:
    elements = prod(tensor.dims)
    if elements > MAX_ELEMENTS:
        raise InputError(f"output {tensor.name!r} of an input of this size has {elements:,} values: give a smaller one")
    if before.flat:
        return Shape.vector(elements)
    channels, rows, columns = tensor.dims
    return Shape(channels, rows, columns, flat=False)
