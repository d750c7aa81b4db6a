"""The input of an ONNX file as a framework wrote it, and the rewrite by which it becomes (N, C, H, W) float32.

    Keras, tf2onnx              (N, H, W, C): a Transpose, which cancels the one that such files begin with
    exported preprocessing      uint8 and other numbers: what is cast to a float is so already, the rest is cast here
    a network of one image      (C, H, W) or (H, W, C): what happens before its Unsqueeze happens to all images
    grey images                 (N, H, W): a channel is taken from them
    a fixed batch               of 1; a batch that is written into Reshapes is taken from them

Outputs keep the form that the file gives them; those of a network of one image get an axis for the images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, TensorShapeProto, helper, numpy_helper

from serfer.core.errors import ModelError
from serfer.core.plan import FileTensors, Preprocess
from serfer.core.plan.pixels import whole_numbers
from serfer.core.plan.validation import MAX_NAME
from serfer.splitter.network.as_is import names_read
from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.graph import BROADCAST, MAP_RANK, PER_VALUE
from serfer.splitter.network.onnx_models import constants_of

Array = NDArray[Any]
CHANNELS_FIRST, CHANNELS_LAST, GREY = "NCHW", "NHWC", "NHW"
_TYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.UINT8: "uint8",
    TensorProto.INT8: "int8",
    TensorProto.UINT16: "uint16",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.BOOL: "bool",
}
_AS_THEY_ARE = (TensorProto.FLOAT, TensorProto.FLOAT16)
"""Types that need no rewrite here: float16 is widened with the whole network."""
_CHANNELS = (1, 3, 4)
_KEEP_AXES = PER_VALUE | BROADCAST | {"Pad", "QuantizeLinear", "DequantizeLinear"}
_OF_CHANNELS_FIRST = frozenset(
    {
        *("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv", "MaxPool", "AveragePool", "LpPool"),
        *("GlobalAveragePool", "GlobalMaxPool", "BatchNormalization", "InstanceNormalization", "GroupNormalization"),
        *("LRN", "SpaceToDepth", "DepthToSpace"),
    }
)
_TO_FIRST, _TO_LAST = [0, 3, 1, 2], [0, 2, 3, 1]
_WHITE = 255  # the largest value of a pixel
_NOISE = 48
"""The standard deviation of whole numbers that stand for an image's."""


@dataclass(frozen=True)
class GivenInput:
    """A file's input: its name, numpy type and axes, "NCHW", "NHWC", "NHW", "CHW" or "HWC".

    A run of the file takes `batch` images. `outputs` names its outputs, `stacked` those that have no axis for images.
    """

    name: str
    dtype: str
    axes: str = CHANNELS_FIRST
    batch: int = 1
    outputs: tuple[str, ...] = ()
    stacked: frozenset[str] = frozenset()

    @property
    def tensors(self) -> FileTensors | None:
        """The file's input and output as plans keep them, None where a name is too long."""
        output = self.outputs[0] if len(self.outputs) == 1 else ""
        named = 0 < len(self.name) <= MAX_NAME and len(output) <= MAX_NAME
        return FileTensors(self.name, self.dtype, self.axes, output) if named else None

    @property
    def batched(self) -> bool:
        return self.axes.startswith("N")

    def as_images(self, example: Array) -> Array:
        """Return an example in the file's own form as (N, C, H, W) float32, one in another form as it is."""
        if example.dtype == self.dtype:
            example = example.astype(np.float32, copy=False)
        if example.ndim == len(self.axes) < MAP_RANK:
            example = example[:, None] if self.axes == GREY else example[None]
        if self.axes.endswith("HWC") and example.ndim == MAP_RANK:
            rows, channels = example.shape[1], example.shape[3]
            example = example.transpose(0, 3, 1, 2) if channels in _CHANNELS and rows not in _CHANNELS else example
        return example

    def feeds(self, images: NDArray[np.float32]) -> Iterator[tuple[Array, int]]:
        """Yield (N, C, H, W) float32 images as runs of the file take them, each with the number of images in it.

        A run of a fixed batch is filled up with its last image.
        """
        values = self._numbers(images)
        values = values.transpose(0, 2, 3, 1) if self.axes.endswith("HWC") else values
        values = values[:, 0] if self.axes == GREY else values
        for start in range(0, len(values), self.batch):
            part = values[start : start + self.batch]
            filled = part[np.minimum(np.arange(self.batch), len(part) - 1)]
            yield np.ascontiguousarray(filled if self.batched else filled[0]), len(part)

    def answers(self, name: str, value: Array, images: int) -> Array:
        """Return an output of a run, which had so many images, with an axis for them; a filled batch is cut to them.

        Other outputs stay as they are: of one image, the first axis may be another one.
        """
        if name in self.stacked:
            return value[None]
        return value if images == self.batch else value[:images]

    def like_images(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return images whose values the input takes: those given, or whole numbers in place of a noise's fractions."""
        numbers = whole_numbers(self.dtype)
        if numbers is None or np.array_equal(images, self._numbers(images)):
            return images
        low, high = (-128, 127) if self.dtype == "int8" else (0, min(numbers[-1], 255))  # as images have them
        middle, spread = (low + high + 1) // 2, _NOISE if high > 1 else 1
        return np.clip(np.rint(images * spread + middle), low, high).astype(np.float32)

    def suited(self, preprocess: Preprocess | None) -> Preprocess | None:
        """Return what a file's metadata say of its images, for whole numbers with pixels as they are: that is inside.

        None for a type that does not hold pixels.
        """
        numbers = whole_numbers(self.dtype)
        if preprocess is None or numbers is None:
            return preprocess
        zeros, ones = (0.0,) * len(preprocess.mean), (1.0,) * len(preprocess.mean)
        return replace(preprocess, scale=1.0, mean=zeros, std=ones) if _WHITE in numbers else None

    def _numbers(self, images: NDArray[np.float32]) -> Array:
        numbers = whole_numbers(self.dtype)
        if numbers is not None:
            images = np.clip(np.rint(images), numbers[0], numbers[-1])
        return images.astype(self.dtype)


def with_usual_input(model: ExternalWeightsModel) -> tuple[ExternalWeightsModel, GivenInput]:
    """Return a model whose input is (N, C, H, W) float32 or float16, and what its input is as given.

    A model that has such an input is returned as it is. Raises ModelError for another one than a single image.
    """
    rewrite = _Rewrite(model)
    rewrite.drop_repeated_outputs()
    rewrite.free_open_sizes()
    given = _described(rewrite)
    if given.batch > 1:
        rewrite.take_batch(given.batch)
    if rewrite.kind not in _AS_THEY_ARE:
        rewrite.cast()
    if not given.batched:
        given = replace(given, stacked=rewrite.add_batch_axis())
    if given.axes.endswith("HWC"):
        rewrite.put_channels_first()
    if given.axes == GREY:
        rewrite.add_channel()
    if given.axes == CHANNELS_FIRST and not rewrite.dims[1].dim_value:
        rewrite.fix_channels()
    if rewrite.input.name in {value.name for value in rewrite.graph.output}:
        rewrite.put_first("Identity", "image", rewrite.dims)
    return (rewrite.model if rewrite.changed else model), given


def _described(rewrite: _Rewrite) -> GivenInput:
    inputs = rewrite.model.inputs
    if len(inputs) != 1:
        names = ", ".join(repr(value.name) for value in inputs) or "none"
        raise ModelError(f"the model has {len(inputs)} inputs ({names}): one image in is needed")
    name, kind = inputs[0].name, rewrite.kind
    if kind not in _TYPES:
        raise ModelError(
            f"the model's input {name!r} is {TensorProto.DataType.Name(kind)}, not an image tensor of numbers "
            f"({', '.join(_TYPES.values())})"
        )
    sizes = [dim.dim_value for dim in rewrite.dims]
    axes = _axes_of_images(rewrite, sizes) if len(sizes) == MAP_RANK else _axes_of_one_image(rewrite, sizes)
    if axes is None:
        shape = [dim.dim_value or dim.dim_param or "any" for dim in rewrite.dims]
        raise ModelError(
            f"the model takes tensors of {len(sizes)} axes, not images: its input {name!r} is {shape}, where "
            "(N, C, H, W), (N, H, W, C) or one image without N is needed"
        )
    outputs = tuple(value.name for value in rewrite.graph.output)
    return GivenInput(name, _TYPES[kind], axes, max(sizes[0], 1) if axes.startswith("N") else 1, outputs)


def _axes_of_images(rewrite: _Rewrite, sizes: Sequence[int]) -> str:
    readers = list(rewrite.first_readers())
    fixed_first = sizes[1] in _CHANNELS and sizes[3] not in (0, *_CHANNELS)
    if not fixed_first and any(_permutation(node) == _TO_FIRST for node in readers):
        return CHANNELS_LAST
    if any(node.op_type in _OF_CHANNELS_FIRST for node in readers):
        return CHANNELS_FIRST
    last = sizes[3] in _CHANNELS and sizes[1] not in _CHANNELS and not 0 < sizes[1] < sizes[3]
    return CHANNELS_LAST if last else CHANNELS_FIRST


def _axes_of_one_image(rewrite: _Rewrite, sizes: Sequence[int]) -> str | None:
    """Return the axes of an input of one image, which the network gives a batch axis, or of grey images; else None."""
    if len(sizes) != MAP_RANK - 1:
        return None
    readers = list(rewrite.first_readers())
    if sizes[2] in _CHANNELS and any(_permutation(node) == [2, 0, 1] for node in readers):
        return "HWC"
    raised = [rewrite.integers(node, 1) for node in readers if node.op_type == "Unsqueeze"]
    if [0] in raised:
        return "CHW" if sizes[0] in _CHANNELS else "HWC" if sizes[2] in _CHANNELS else None
    grey = bool(readers) and all(node.op_type in ("Unsqueeze", "Reshape", "Flatten") for node in readers)
    return GREY if grey and min(sizes[1:]) > max(_CHANNELS) else None


def _permutation(node: onnx.NodeProto) -> list[int] | None:
    found = [list(item.ints) for item in node.attribute if item.name == "perm"]
    return found[0] if found and node.op_type == "Transpose" else None


@dataclass(frozen=True)
class _Several:
    """The tensor of several images that stands for one of one image, which has so many axes at least."""

    name: str
    axes: int


class _Rewrite:
    def __init__(self, model: ExternalWeightsModel) -> None:
        self.model = model.copied()
        self.graph = self.model.proto.graph
        self.changed = False
        self._constants = constants_of(self.graph)

    @property
    def input(self) -> onnx.ValueInfoProto:
        return self.model.inputs[0]

    @property
    def kind(self) -> int:
        return int(self.input.type.tensor_type.elem_type)

    @property
    def dims(self) -> list[TensorShapeProto.Dimension]:
        return list(self.input.type.tensor_type.shape.dim)

    def integers(self, node: onnx.NodeProto, index: int) -> list[int] | None:
        tensor = self._constants.get(node.input[index]) if len(node.input) > index else None
        if tensor is None or tensor.data_type not in (TensorProto.INT32, TensorProto.INT64):
            return None
        return [int(value) for value in numpy_helper.to_array(tensor).ravel()]

    def first_readers(self) -> Iterator[onnx.NodeProto]:
        reached = {self.input.name}
        for node in self.graph.node:
            if not reached & {*node.input}:
                continue
            if node.op_type in _KEEP_AXES:
                reached.update(node.output)
            else:
                yield node

    def put_first(self, kind: str, suffix: str, dims: Sequence[TensorShapeProto.Dimension], **attributes: Any) -> str:  # noqa: ANN401 - an operator's attributes
        """Let an operator of a new input make the image that operators read; return the new input's name."""
        before = self.input.name
        name = self._renamed(suffix, dims)
        self.graph.node.insert(0, helper.make_node(kind, [name], [before], name=f"{before}.{kind}", **attributes))
        return name

    def free_open_sizes(self) -> None:
        for dim in (dim for value in self.model.inputs for dim in value.type.tensor_type.shape.dim):
            if dim.dim_value == -1:
                dim.ClearField("dim_value")
                self.changed = True

    def drop_repeated_outputs(self) -> None:
        outputs = {value.name: value for value in self.graph.output}
        if len(outputs) < len(self.graph.output):
            kept = [*map(deepcopy, outputs.values())]
            del self.graph.output[:]
            self.graph.output.extend(kept)
            self.changed = True

    def fix_channels(self) -> None:
        """Give the image as many channels as the weights of a convolution that reads it have."""
        for node in self.first_readers():
            dims = self._shape(node.input[1]) if node.op_type == "Conv" else None
            groups = next((item.i for item in node.attribute if item.name == "group"), 1)
            if dims is not None and len(dims) == MAP_RANK:
                self.input.type.tensor_type.shape.dim[1].dim_value = dims[1] * groups
                self.changed = True

    def put_channels_first(self) -> None:
        """Let the image have its channels first; a Reshape that only moves one channel there is a Transpose."""
        name, dims = self.input.name, self.dims
        moved = [1, dims[1].dim_value, dims[2].dim_value]
        readers = [node for node in self.graph.node if node.op_type == "Reshape" and node.input[0] == name]
        for node in readers if dims[3].dim_value == 1 else []:
            if (self.integers(node, 1) or [])[1:] == moved:
                node.op_type = "Transpose"
                del node.input[1:], node.attribute[:]
                node.attribute.append(helper.make_attribute("perm", _TO_FIRST))
        self.put_first("Transpose", "first", [dims[axis] for axis in _TO_FIRST], perm=_TO_LAST)

    def add_channel(self) -> None:
        """Let grey images have one channel; an Unsqueeze that adds it is no more than a name."""
        name, dims = self.input.name, self.dims
        axis = self._constant(f"{name}.channel", [1])
        image = self.put_first("Squeeze", "grey", [dims[0], TensorShapeProto.Dimension(dim_value=1), *dims[1:]])
        self.graph.node[0].input.append(axis)
        for node in self.graph.node:
            if node.op_type == "Unsqueeze" and node.input[0] == name and self.integers(node, 1) == [1]:
                node.op_type = "Identity"
                node.input[:] = [image]

    def take_batch(self, batch: int) -> None:
        self._forget_shapes()
        self.input.type.tensor_type.shape.dim[0].dim_value = 1
        for number, node in enumerate(self.graph.node):
            constant = not node.input or self._shape(node.input[0]) is not None
            if not (
                node.op_type == "Expand"
                or (node.op_type == "Reshape" and not constant)
                or (node.op_type == "Tile" and constant)
            ):
                continue
            shape = self.integers(node, 1)
            if shape and shape[0] >= batch and shape[0] % batch == 0 and (shape[0] == batch or -1 not in shape):
                node.input[1] = self._constant(f"{node.output[0]}.one.{number}", [shape[0] // batch, *shape[1:]])

    def cast(self) -> None:
        """Let the image be float32: casts read it as it is, others what is cast to its type, in that type's range."""
        name, kind = self.input.name, self.kind
        image = self._renamed("float32", self.dims)
        self.input.type.tensor_type.elem_type = TensorProto.FLOAT
        for node in self.graph.node:
            if node.op_type == "Cast" and node.input[0] == name:
                node.input[0] = image
        outputs = {value.name for value in self.graph.output}
        if name not in outputs.union(*map(names_read, self.graph.node)):
            return
        steps = [helper.make_node("Cast", [image], [name], name=f"{name}.Cast", to=kind)]
        numbers = whole_numbers(_TYPES[kind])
        if numbers is not None:
            ends = [
                self._constant(f"{image}.{end}", np.float32(value))
                for end, value in (("low", numbers[0]), ("high", numbers[-1]))
            ]
            steps[0].input[0] = f"{image}.clipped"
            steps.insert(
                0, helper.make_node("Clip", [f"{image}.whole", *ends], [f"{image}.clipped"], name=f"{name}.Clip")
            )
            steps.insert(0, helper.make_node("Round", [image], [f"{image}.whole"], name=f"{name}.Round"))
        self._put(steps)

    def add_batch_axis(self) -> frozenset[str]:
        """Let a network of one image take several; return the outputs to which that gives an axis.

        Operators on one image, before its batch axis and behind a Squeeze of that, act on several instead.
        """
        name, axes = self.input.name, len(self.dims)
        several = {name: _Several(self._renamed("several", [TensorShapeProto.Dimension(), *self.dims]), axes)}
        axis = self._constant(f"{name}.axis", [0])
        nodes = [helper.make_node("Squeeze", [several[name].name, axis], [name], name=f"{name}.Squeeze")]
        for node in self.graph.node:
            raised = self._of_several(node, several)
            nodes.append(raised or node)
            if raised is not None and node.op_type != "Unsqueeze":
                known = min(several[read].axes for read in node.input if read in several)
                several[node.output[0]] = _Several(raised.output[0], known)
                squeeze = [raised.output[0], axis], [node.output[0]]
                nodes.append(helper.make_node("Squeeze", *squeeze, name=f"{node.output[0]}.one"))
            elif node.op_type == "Squeeze" and self.integers(node, 1) == [0]:
                several[node.output[0]] = _Several(node.input[0], 1)
        read = {name for node in nodes for name in node.input}
        stacked = {value.name for value in self.graph.output if value.name in several.keys() - read}
        for node in nodes:
            if node.op_type == "Squeeze" and node.output[0] in stacked:
                node.op_type = "Identity"
                del node.input[1:]
        self._put(nodes, instead=True)
        self._forget_shapes()
        return frozenset(stacked)

    def _of_several(self, node: onnx.NodeProto, several: dict[str, _Several]) -> onnx.NodeProto | None:
        read = [several.get(name) for name in node.input]
        if not any(read) or len(node.output) != 1:
            return None
        copy = deepcopy(node)
        copy.input[:] = [other.name if other else name for name, other in zip(node.input, read, strict=True)]
        if node.op_type == "Unsqueeze" and self.integers(node, 1) == [0]:
            copy.op_type = "Identity"
            del copy.input[1:], copy.attribute[:]
            return copy
        copy.output[0] = f"{node.output[0]}.several"
        if _permutation(node):
            copy.attribute[0].ints[:] = [0, *(axis + 1 for axis in copy.attribute[0].ints)]
            return copy
        axes = min(other.axes for other in read if other)
        shapes = [self._shape(name) for name, other in zip(node.input, read, strict=True) if name and not other]
        fit = all(shape is not None and len(shape) <= axes for shape in shapes)
        return copy if fit and node.op_type in PER_VALUE | BROADCAST else None

    def _shape(self, name: str) -> tuple[int, ...] | None:
        if name in self.model.large:
            return self.model.large[name].shape
        return tuple(self._constants[name].dims) if name in self._constants else None

    def _renamed(self, suffix: str, dims: Sequence[TensorShapeProto.Dimension]) -> str:
        kept = [*map(deepcopy, dims)]
        image = self.input
        image.name = f"{image.name}.{suffix}"
        del image.type.tensor_type.shape.dim[:]
        image.type.tensor_type.shape.dim.extend(kept)
        self.changed = True
        return image.name

    def _constant(self, name: str, value: Any) -> str:  # noqa: ANN401 - numbers
        tensor = numpy_helper.from_array(np.asarray(value), name)
        self.graph.initializer.append(tensor)
        self._constants[name] = tensor
        return name

    def _put(self, nodes: Sequence[onnx.NodeProto], *, instead: bool = False) -> None:
        rest = [] if instead else list(self.graph.node)
        kept = [*map(deepcopy, (*nodes, *rest))]
        del self.graph.node[:]
        self.graph.node.extend(kept)

    def _forget_shapes(self) -> None:
        self.changed = True
        del self.graph.value_info[:]
        for value in self.graph.output:
            value.type.tensor_type.ClearField("shape")
