"""Networks whose input has many sizes: how the sizes of their outputs follow, and the graph that takes all of them.

The forms of outputs (serfer/core/plan/sizes.py) follow from the network's answers at four small sizes, and are compared
with its answers at the largest size, in between and at the ends. Where they differ, strides round: then sizes that
follow each other say by which steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from serfer.core.errors import ModelError
from serfer.core.plan import AxisForm, InputSizes, PlanSizes, SideSizes
from serfer.core.plan.answers import Answer
from serfer.core.plan.sizes import Size, Steps
from serfer.splitter.network.as_is import PART, AsIsNodes, AsIsPart, Result

Run = Callable[[NDArray[np.float32]], Answer]
_PROBES, _AT = 32, 8
"""Sizes that follow each other at most, of which steps are read; by which one of the other side, in multiples."""
_Image = Callable[[Size], NDArray[np.float32]]


def compared_sizes(sizes: InputSizes) -> list[Size]:
    """Return the sizes on which a plan is compared with its network: the largest, one in between, and the ends."""
    between = [side.least + (side.most - side.least) * 3 / 7 for side in (sizes.rows, sizes.columns)]
    middle = sizes.rows.floor(between[0]), sizes.columns.floor(between[1])
    small = (_second(sizes.rows), _second(sizes.columns))
    high = sizes.rows.floor(sizes.most_pixels // sizes.columns.least), sizes.columns.least
    wide = sizes.rows.least, sizes.columns.floor(sizes.most_pixels // sizes.rows.least)
    wanted = [sizes.largest, middle, small, high, wide, *sizes.corners]
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

    shapes = _Shapes(run, image, results)
    forms, wrong = PlanSizes(sizes, ()), ""
    for rounded in (False, True):
        forms = PlanSizes(sizes, tuple(_forms(sizes, shapes, number, rounded) for number in range(len(results))))
        wrong = next(_differences(forms, shapes), "")
        if not wrong:
            return forms
    raise ModelError(f"{wrong}; often a larger multiple in --size helps, such as 32")


class _Shapes:
    def __init__(self, run: Run, image: _Image, results: Sequence[Result]) -> None:
        self._run, self._image, self.results = run, image, results
        self._known: dict[Size, list[tuple[int, ...]]] = {}

    def of(self, size: Size) -> list[tuple[int, ...]]:
        if size not in self._known:
            arrays = _in_order(_answer(self._run, self._image, size))
            pairs = zip(self.results, arrays, strict=False)  # an output that is listed twice is one
            self._known[size] = [array.shape[result.leading :] for result, array in pairs]
        return self._known[size]


def _differences(forms: PlanSizes, shapes: _Shapes) -> Iterator[str]:
    for size in compared_sizes(forms.input):
        for number, (result, dims) in enumerate(zip(shapes.results, shapes.of(size), strict=True)):
            if forms.dims(number, size) != dims:
                expected = _x(forms.dims(number, size))
                yield f"the model's output {result.name!r} is {_x(dims)} for images of {_x(size)}, not {expected}"


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
    return min(side.most, side.least + side.multiple)


def _forms(sizes: InputSizes, shapes: _Shapes, number: int, rounded: bool) -> tuple[AxisForm, ...]:  # noqa: FBT001 - one of two ways
    first = shapes.of((sizes.rows.least, sizes.columns.least))[number]
    return tuple(_form(sizes, shapes, number, axis, rounded) for axis in range(len(first)))


def _form(sizes: InputSizes, shapes: _Shapes, number: int, axis: int, rounded: bool) -> AxisForm:  # noqa: FBT001 - same
    low, left = sizes.rows.least, sizes.columns.least

    def at(rows: int, columns: int) -> int:
        dims = shapes.of((rows, columns))[number]
        if len(dims) <= axis:
            raise ModelError("the number of axes of the model's outputs depends on the image's size: give one size")
        return dims[axis]

    rows_at, columns_at = _probed(sizes.rows, sizes, left), _probed(sizes.columns, sizes, low)
    row_steps, high = _steps(sizes.rows, lambda rows: at(rows, columns_at), rounded)
    column_steps, right = _steps(sizes.columns, lambda columns: at(rows_at, columns), rounded)
    here, below, beside, across = at(low, left), at(high, left), at(low, right), at(high, right)
    units = sizes.units((low, left))
    rows, columns = row_steps.of(units[0]), column_steps.of(units[1])
    by_area = across - below - beside + here
    by_rows, by_columns = below - here - by_area * columns, beside - here - by_area * rows
    constant = here - by_rows * rows - by_columns * columns - by_area * rows * columns
    return AxisForm(constant, by_rows, by_columns, by_area, row_steps, column_steps)


def _probed(side: SideSizes, sizes: InputSizes, other: int) -> int:
    return side.floor(min(side.least + _AT * side.multiple, sizes.most_pixels // other))


def _steps(side: SideSizes, at: Callable[[int], int], rounded: bool) -> tuple[Steps, int]:  # noqa: FBT001 - same
    if not rounded:
        return Steps(), _second(side)
    sizes = range(side.least, min(side.most, side.least + _PROBES * side.multiple) + 1, side.multiple)
    grows = [size for before, size in pairwise(sizes) if at(size) != at(before)]
    if not grows:
        return Steps(), _second(side)
    first, *others = (size // side.multiple for size in grows)
    step = others[0] - first if others else len(sizes)
    return Steps(step, -first % step), grows[0]


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
