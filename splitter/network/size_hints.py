"""The sizes of images that a network of a free size is meant for, as far as its file says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction

import onnx
from onnx import numpy_helper

from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.onnx_models import attributes_of, constants_of

Size = tuple[int, int]
_KEYS = ("imgsz", "image_size", "img_size", "input_size")
"""Of metadata: the first is that of ultralytics, whose value is "[640, 640]"."""
_LONGEST = 100  # characters of such a value
_MOST = 65_536
_STRIDED = frozenset({"Conv", "MaxPool", "AveragePool", "LpPool", "ConvTranspose", "ConvInteger", "QLinearConv"})
_USUAL_CHANNELS = 3
_SIDES = (224, 256)
"""Usual sides of images: one of them is an example of a size where the stride divides it, else the stride is."""


def size_in_metadata(model: onnx.ModelProto) -> Size | None:
    texts = {item.key: item.value for item in model.metadata_props}
    for text in (texts[key] for key in _KEYS if key in texts):
        try:
            value = json.loads(text) if len(text) <= _LONGEST else None
        except (ValueError, RecursionError):
            continue
        sides = value if isinstance(value, list) else [value, value]
        match [side for side in sides if type(side) is int and 0 < side <= _MOST]:
            case [rows, columns] if len(sides) == len((rows, columns)):
                return int(rows), int(columns)
    return None


def strides(model: ExternalWeightsModel) -> Size:
    """Return how many rows and columns of the image the coarsest map has one of: sizes are often multiples of them.

    1 where it has none, or where a step is not known before the file runs.
    """
    steps: dict[str, tuple[Fraction, Fraction]] = {model.inputs[0].name: (Fraction(1), Fraction(1))}
    constants = constants_of(model.proto.graph)
    for node in model.proto.graph.node:
        read = [steps[name] for name in node.input if name in steps]
        if read:
            rows, columns = max(row for row, _ in read), max(column for _, column in read)
            down, across = _step(node, constants)
            steps |= dict.fromkeys(node.output, (rows * down, columns * across))
    rows, columns = (max(step[axis] for step in steps.values()) for axis in (0, 1))
    return max(1, int(rows)), max(1, int(columns))


def _step(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> tuple[Fraction, Fraction]:
    attributes = attributes_of(node)
    one = Fraction(1)
    if node.op_type in _STRIDED:
        given = attributes.get("strides") or [1, 1]
        if len(given) != len((one, one)):
            return one, one
        down, across = (Fraction(stride) for stride in given)
        return (1 / down, 1 / across) if node.op_type == "ConvTranspose" else (down, across)
    if node.op_type in ("SpaceToDepth", "DepthToSpace"):
        block = Fraction(attributes["blocksize"])
        return (block, block) if node.op_type == "SpaceToDepth" else (1 / block, 1 / block)
    scales = constants.get(node.input[2]) if node.op_type == "Resize" and len(node.input) > 2 else None  # noqa: PLR2004 - the third
    values = numpy_helper.to_array(scales).ravel()[-2:].tolist() if scales is not None else []
    return (1 / Fraction(values[0]), 1 / Fraction(values[1])) if len(values) == 2 and min(values) > 0 else (one, one)  # noqa: PLR2004 - rows, columns


def in_words(model: ExternalWeightsModel, known: Sequence[int]) -> str:
    """Return what to give as --size: `known` are the input's rows and columns, 0 where they are free."""
    steps = strides(model)
    example = "x".join(str(side or _usual(step)) for side, step in zip(known, steps, strict=True))
    named = "x".join(str(side) if side else word for side, word in zip(known, ("HEIGHT", "WIDTH"), strict=True))
    channels = model.inputs[0].type.tensor_type.shape.dim[1].dim_value
    also = f" --set channels={channels}" if channels not in (0, _USUAL_CHANNELS) else ""
    return f"give --size {named}{also} (in Python an example){_multiples(known, steps)}, such as {example}"


def instead_of(model: ExternalWeightsModel, size: Sequence[int]) -> str:
    """Return what to give in place of the rows and columns of images that a network does not run on.

    Empty where its input fixes those that are not multiples of its strides.
    """
    steps = strides(model)
    own = [dim.dim_value for dim in model.inputs[0].type.tensor_type.shape.dim[2:]]
    if not any(side == 0 and given % step for side, given, step in zip(own, size, steps, strict=True)):
        return ""
    near = "x".join(str(side or -(-given // step) * step) for side, given, step in zip(own, size, steps, strict=True))
    given = " x ".join(map(str, size))
    return f"; sizes are{_multiples(own, steps)[1:]}, not {given}: try --size {near} (in Python an example)"


def _usual(step: int) -> int:
    return next((side for side in _SIDES if side % step == 0), step)


def _multiples(known: Sequence[int], steps: Size) -> str:
    free = [step for side, step in zip(known, steps, strict=True) if not side]
    return f", often multiples of its strides, {_in_words(free)}" if max(free) > 1 else ""


def _in_words(steps: Sequence[int]) -> str:
    return " and ".join(map(str, dict.fromkeys(steps)))
