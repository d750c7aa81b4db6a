"""Detectors over whole images: windows compute the maps of the heads, and what follows is kept to decode them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.detections import decoded
from serfer.core.errors import ModelError, PlanError, UsageError, WrongAnswerError
from serfer.core.exactness import TOLERANCE
from serfer.core.frame_decoder import FrameDecoder, Head
from serfer.core.plan import DetectionHead, MapBoxes, OutputTensor, Plan, Shape
from serfer.core.plan.answers import Answer
from serfer.core.plan.detection import MAX_BOXES, check_heads
from serfer.core.plan.layout import DECODER
from serfer.splitter.network.description import Description
from serfer.splitter.network.detection_heads import NOT_TURNED, ORIENTED, BoxOptions
from serfer.splitter.network.detector_heads import DetectorParts, detector_parts, trunk_of
from serfer.splitter.network.source import Array, Source, noise
from serfer.splitter.plan_dir.functions import artefact

_FRAME = 640
"""Rows and columns of the frame of a detector that takes images of any size."""
_STRIDES = 64
"""A multiple of all strides that detectors usually have."""
_Size = tuple[int, int]


@dataclass(frozen=True)
class Detector:
    """A detector's trunk as a source of its own, and what makes boxes of its maps in frames of a `size`."""

    trunk: Source
    parts: DetectorParts
    head: DetectionHead
    decoder: FrameDecoder

    @property
    def multiple(self) -> int:
        """Pixels of which images are padded to a multiple: the strides of all heads."""
        return lcm(*self.decoder.strides)

    def padded(self, size: _Size) -> _Size:
        height, width = (-(-side // self.multiple) * self.multiple for side in size)
        return height, width

    def written(self, plan: Plan, directory: Path) -> Plan:
        path = directory / DECODER
        path.write_bytes(self.parts.decoder.SerializeToString())
        height, width = self.decoder.size
        return replace(plan, boxes=MapBoxes(self.head, artefact(path, directory), height, width, self.multiple))


def in_strides(size: _Size) -> _Size:
    """Return the size to which any detector pads an image of `size`, whatever its strides."""
    height, width = (-(-side // _STRIDES) * _STRIDES for side in size)
    return height, width


def is_detector(source: Source, description: Description) -> bool:
    """Whether boxes were asked for, or a file's metadata say that it is a detector."""
    if source.origin == ORIENTED and (description.boxes or description.reduction is None):
        raise ModelError(f"{NOT_TURNED}, so an oriented detector has no map: ask it for single images (serfer run)")
    return description.boxes is not None or (source.detects and description.reduction is None)


def detector_of(source: Source, channels: int, description: Description) -> Detector:
    """Return the parts of a detector; raises ModelError where its heads cannot be found, or do not make its boxes."""
    options = description.boxes or BoxOptions()
    if options.max_boxes not in (None, MAX_BOXES):
        raise UsageError("most=N is for single images: of a map all boxes are kept that no better one overlaps")
    size = _frame(source)
    image = source.like_images(np.random.default_rng(4).random((1, channels, *size), dtype=np.float32))
    model = source.at(size)
    names = [value.name for value in model.proto.graph.output]
    expected = _outputs(source.run(image), source.outputs or tuple(names))
    tensors = [OutputTensor(name, values.shape[1:], str(values.dtype)) for name, values in expected.items()]
    labels = description.labels or source.labels
    head = options.head(tensors, Shape(channels, *size, flat=False), len(labels))
    parts = detector_parts(model, size, names[[*expected].index(head.outputs[0])])
    try:
        check_heads(head.family)
        decoder = FrameDecoder(head, _heads(parts, size), size, parts.decoded())
        decoder.places  # noqa: B018 - measured here, to refuse what cannot be decoded
    except PlanError as error:
        raise ModelError(str(error)) from error
    trunk = trunk_of(source, parts)
    _check(decoder, trunk.run(image), expected[head.outputs[0]])
    return Detector(trunk, parts, head, decoder)


def _frame(source: Source) -> _Size:
    dims = [dim.dim_value for dim in source.onnx.inputs[0].type.tensor_type.shape.dim[2:]]
    return (dims[0] or _FRAME, dims[1] or _FRAME) if len(dims) == 2 else (_FRAME, _FRAME)  # noqa: PLR2004 - rows, columns


def _outputs(answer: Answer, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    return dict(answer) if isinstance(answer, Mapping) else {names[0]: answer}


def _heads(parts: DetectorParts, size: _Size) -> list[Head]:
    heads = []
    for value in parts.decoder.graph.input:
        _, channels, rows, cols = (dim.dim_value for dim in value.type.tensor_type.shape.dim)
        stride = size[0] // rows
        if (rows * stride, cols * stride) != size:
            raise ModelError(
                f"the map {value.name!r} of the detector has {rows} x {cols} cells of {size[0]} x {size[1]} pixels: "
                "they are not of one stride"
            )
        heads.append(Head(value.name, channels, stride))
    return heads


def _check(decoder: FrameDecoder, maps: Answer, expected: NDArray[Any]) -> None:
    own = {decoder.heads[0].name: maps} if not isinstance(maps, Mapping) else maps
    size, step = decoder.size, lcm(*decoder.strides)
    edges = [sorted({0, side // step // 3 * step, side // step * 2 // 3 * step, side}) for side in size]
    found = [
        decoder.candidates(
            {
                head.name: own[head.name][
                    :, :, top // head.stride : bottom // head.stride, left // head.stride : right // head.stride
                ]
                for head in decoder.heads
            },
            (top, left),
            size,
            -np.inf,
        )
        for top, bottom in zip(edges[0], edges[0][1:], strict=False)
        for left, right in zip(edges[1], edges[1][1:], strict=False)
    ]
    table = np.concatenate(found)
    table = table[np.argsort(table[:, -1], kind="stable")]
    whole = decoded(decoder.head, [expected[0]], size)
    places = np.argsort(table[:, -1], kind="stable")
    if len(table) != len(whole) or not np.array_equal(table[places, -1], np.arange(len(whole))):
        raise WrongAnswerError("boxes of windows are not as many as those of the whole detector; nothing was written")
    error = np.abs(table[:, :4] - whole.corners).max() / max(size)
    wrong = max(float(error), float(np.abs(table[:, 4] - whole.scores).max()))
    if not wrong <= TOLERANCE:
        raise WrongAnswerError(
            f"boxes that are decoded by parts of an image differ from those of the whole by {wrong:.2g} of its side, "
            "or in their scores: they depend on where in the image they are; nothing was written"
        )


def example_of(detector: Detector, channels: int, size: _Size, least: int) -> Array:
    """Return a small image on which windows of the trunk are checked, a multiple of the strides."""
    small = detector.padded((min(least, size[0]), min(least, size[1])))
    return noise(channels, small)
