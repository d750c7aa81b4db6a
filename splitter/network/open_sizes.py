"""Networks whose input has many sizes: how the sizes of their outputs follow, and the graph that takes all of them.

The forms of outputs (serfer/core/plan/sizes.py) follow from the network's answers at four small sizes, and are compared
with its answers at the largest size, in the middle and at the ends: an axis that a stride rounds is no such form there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from serfer.core.errors import ModelError
from serfer.core.plan import AxisForm, InputSizes, PlanSizes, SideSizes
from serfer.core.plan.answers import Answer
from serfer.core.plan.sizes import Size
from splitter.network.as_is import PART, AsIsNodes, AsIsPart, Result

Run = Callable[[NDArray[np.float32]], Answer]
_Image = Callable[[Size], NDArray[np.float32]]


def checked_sizes(sizes: InputSizes) -> list[Size]:
    """Return the sizes on which a plan is compared with its network: the largest, the middle, and the ends."""
    middle = tuple(side.floor((side.least + side.most) / 2) for side in (sizes.rows, sizes.columns))
    small = (_second(sizes.rows), _second(sizes.columns))
    wanted = [sizes.largest, (middle[0], middle[1]), small, *sizes.corners]
    return [*dict.fromkeys(size for size in wanted if size in sizes)]


def plan_sizes(run: Run, image: _Image, sizes: InputSizes, results: Sequence[Result]) -> PlanSizes:
    """Return the forms of a network's outputs, of which `results` has the axes, from its answers to images of sizes.

    Raises ModelError for sizes that the network does not take, or whose outputs have no such form.
    """
    if varying := next((result.name for result in results if result.varying), None):
        raise ModelError(
            f"the size of the model's output {varying!r} depends on what is in the image, not on its size alone: give "
            "one size"
        )

    def dims_at(size: Size) -> list[tuple[int, ...]]:
        arrays = _in_order(_answer(run, image, size))
        pairs = zip(results, arrays, strict=False)  # an output that is listed twice is one
        return [array.shape[result.leading :] for result, array in pairs]

    ends = [(side.least, _second(side)) for side in (sizes.rows, sizes.columns)]
    seen = {(rows, columns): dims_at((rows, columns)) for rows in ends[0] for columns in ends[1]}
    forms = PlanSizes(sizes, tuple(_forms(sizes, ends, seen, number) for number in range(len(results))))
    for size in checked_sizes(sizes):
        for number, (result, dims) in enumerate(zip(results, seen.get(size) or dims_at(size), strict=True)):
            if forms.dims(number, size) != dims:
                raise ModelError(
                    f"the model's output {result.name!r} is {_x(dims)} for images of {_x(size)}, where smaller ones "
                    f"let expect {_x(forms.dims(number, size))}: its size is rounded; give a larger multiple in --size"
                )
    return forms


def opened(part: AsIsNodes, forms: PlanSizes) -> AsIsNodes:
    """Return the nodes of a whole network with open rows and columns, of its outputs too."""
    node, *readers = part.nodes
    given: AsIsPart = node.attributes[PART]
    body = onnx.GraphProto()
    body.CopyFrom(given.body)
    _open(body.input[0], [False, forms.input.rows.varies, forms.input.columns.varies])
    for value, axes in zip(body.output, forms.outputs, strict=True):
        _open(value, [form.varies for form in axes])
    attributes = {**node.attributes, PART: replace(given, body=body)}
    return replace(part, nodes=(replace(node, attributes=attributes), *readers))


def _open(value: onnx.ValueInfoProto, axes: Sequence[bool]) -> None:
    for number, (dim, is_open) in enumerate(zip(value.type.tensor_type.shape.dim, axes, strict=True)):
        if is_open:
            dim.dim_param = f"{value.name}.{number}"


def _second(side: SideSizes) -> int:
    """Return the size after the least one, which is that itself where there is no other."""
    return min(side.most, side.least + side.multiple)


def _forms(
    sizes: InputSizes, ends: Sequence[Size], seen: dict[Size, list[tuple[int, ...]]], number: int
) -> tuple[AxisForm, ...]:
    """Return the forms of the axes of an output from its shapes at two rows and two columns that follow each other."""
    (low, high), (left, right) = ends
    shapes = [seen[size][number] for size in ((low, left), (high, left), (low, right), (high, right))]
    if len({len(shape) for shape in shapes}) > 1:
        raise ModelError("the number of axes of the model's outputs depends on the image's size: give one size")
    rows, columns = sizes.units((low, left))
    return tuple(_form(rows, columns, *axis) for axis in zip(*shapes, strict=True))


def _form(rows: int, columns: int, here: int, below: int, beside: int, across: int) -> AxisForm:
    by_area = across - below - beside + here
    by_rows, by_columns = below - here - by_area * columns, beside - here - by_area * rows
    constant = here - by_rows * rows - by_columns * columns - by_area * rows * columns
    return AxisForm(constant, by_rows, by_columns, by_area)


def _answer(run: Run, image: _Image, size: Size) -> Answer:
    try:
        return run(image(size))
    except ModelError as error:
        raise ModelError(
            f"the model does not take images of {_x(size)}, which --size allows: {error}; often a larger multiple "
            "helps, such as 32"
        ) from error


def _in_order(answer: Answer) -> Iterator[NDArray[Any]]:
    yield from answer.values() if isinstance(answer, dict) else [answer]


def _x(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))
