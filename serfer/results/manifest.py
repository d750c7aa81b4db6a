"""The manifest of a result: what it holds, and where each part of each output lies.

It is JSON, written last and protected by a checksum. It names tiles, not keys: keys follow from the owner and the id
that the reader asked for, so that no manifest leads to what is not its own.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from serfer.core.checksum import CHECKSUM_BYTES
from serfer.core.errors import ResultDamagedError, SerferError
from serfer.core.geometry import Rect
from serfer.core.keys import ResultPlace
from serfer.core.plan import MAX_ELEMENTS, MAX_RANK, OUTPUT_TYPES, Plan, Shape, stored_bytes
from serfer.core.structure import Bounds, structure, unstructure
from serfer.core.units import FLOAT_BYTES

FORMAT = 1
MOST_BYTES = 4 * 1024 * 1024
"""The most bytes of a manifest."""
MOST_IMAGES, MOST_OUTPUTS, MOST_TILES = 1024, 256, 1024
_MOST_OFFSET = 1 << 42
_MOST_TEXT = 500
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ResultPart:
    """The rectangle of an output that a tile wrote: cell `cell` of its object, from byte `start`."""

    tile: Annotated[int, Bounds(0, MOST_TILES - 1)]
    cell: Annotated[int, Bounds(0, MOST_OUTPUTS - 1)]
    start: Annotated[int, Bounds(0, _MOST_OFFSET)]
    rect: Rect


@dataclass(frozen=True, slots=True)
class ResultOutput:
    """An output: an image's share has `dims` and is of type `dtype`; its parts cut `shape`, which has as many values.

    Parts are float32, little-endian, whatever the output's type: (N, C, rows, cols), or (N, cols) of a vector.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    shape: Shape
    parts: tuple[ResultPart, ...]

    def array_shape(self, images: int) -> tuple[int, ...]:
        """Return the shape of the array for `images` images."""
        return (images, *self.dims)

    def nbytes(self, images: int) -> int:
        """Return the bytes of the array for `images` images, in its own type."""
        return images * self.shape.elements * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class ResultManifest:
    """A whole result: `created` and `expires` are seconds since the epoch, `plan` is the digest of its plan.

    `tiles` objects hold the parts of all `outputs` for `images` images.
    """

    format: Annotated[int, Bounds(FORMAT, FORMAT)]
    id: str
    owner: str
    created: Annotated[float, Bounds(0)]
    expires: Annotated[float, Bounds(0)]
    plan: str
    model: str
    images: Annotated[int, Bounds(1, MOST_IMAGES)]
    tiles: Annotated[int, Bounds(1, MOST_TILES)]
    outputs: tuple[ResultOutput, ...]

    @property
    def place(self) -> ResultPlace:
        """Where it lies."""
        return ResultPlace(self.owner, self.id)

    @property
    def nbytes(self) -> int:
        """Bytes of all its arrays, in their own types."""
        return sum(output.nbytes(self.images) for output in self.outputs)

    def output(self, name: str) -> ResultOutput | None:
        """Return the output called `name`, None where there is none."""
        return next((output for output in self.outputs if output.name == name), None)


def planned_manifest(plan: Plan, place: ResultPlace, images: int, created: float) -> ResultManifest:
    """Return the manifest of the answer to a query of `images` images, whose tiles wrote to `place`."""
    last = plan.stages[-1]
    parts: list[list[ResultPart]] = [[] for _ in last.outputs]
    for number, tile in enumerate(last.tiles):
        end = 0
        for index, cell in enumerate(tile.cells):
            parts[cell.output].append(ResultPart(number, index, end, cell.rect))
            end += stored_bytes(last.outputs[cell.output].channels * cell.rect.area, 1, images)
    outputs = tuple(
        ResultOutput(tensor.name, tensor.dtype, tensor.dims, shape, tuple(own))
        for tensor, shape, own in zip(plan.output_tensors, last.outputs, parts, strict=True)
    )
    expires = created + place.ttl
    manifest = ResultManifest(
        FORMAT, place.id, place.owner, created, expires, plan.digest, plan.model, images, len(last.tiles), outputs
    )
    _check(manifest)
    return manifest


def encode_manifest(manifest: ResultManifest) -> bytes:
    """Return a manifest as JSON; raises ResultDamagedError for one that `decode_manifest` would refuse."""
    _check(manifest)
    encoded = json.dumps(unstructure(manifest), allow_nan=False, separators=(",", ":")).encode()
    _check_length(len(encoded))
    return encoded


def decode_manifest(encoded: bytes | memoryview, place: ResultPlace) -> ResultManifest:
    """Return the manifest of the result at `place`; raises ResultDamagedError for anything that is not one."""
    _check_length(len(encoded))
    try:
        value = json.loads(bytes(encoded))
    except (ValueError, RecursionError):
        raise ResultDamagedError("the result's manifest is not JSON") from None
    manifest = structure(ResultManifest, value, "the result's manifest", error=ResultDamagedError)
    if (manifest.owner, manifest.id) != (place.owner, place.id):
        raise _unsound("is that of another result")
    _check(manifest)
    return manifest


def _check_length(length: int) -> None:
    if length > MOST_BYTES:
        raise _unsound(f"has {length:,} bytes, and {MOST_BYTES:,} are the most")


def _check(manifest: ResultManifest) -> None:
    """Refuse a manifest by whose numbers nothing could be allocated or read."""
    try:
        _ = manifest.place
    except SerferError as error:
        raise _unsound(f"has no place: {error}") from None
    if not (0 < manifest.expires - manifest.created < math.inf):
        raise _unsound("expires before it was created")
    if not _DIGEST.fullmatch(manifest.plan) or len(manifest.model) > _MOST_TEXT:
        raise _unsound("has no plan's digest")
    names = [output.name for output in manifest.outputs]
    if not 0 < len(names) <= MOST_OUTPUTS or len(set(names)) != len(names):
        raise _unsound("has no outputs, too many, or two of one name")
    for output in manifest.outputs:
        _check_output(output, manifest)


def _check_output(output: ResultOutput, manifest: ResultManifest) -> None:
    shape, dims = output.shape, output.dims
    sides = (shape.channels, shape.height, shape.width, *dims)
    if len(dims) > MAX_RANK or not all(0 < side <= MAX_ELEMENTS for side in sides):
        raise _unsound(f"has an impossible shape of output {output.name!r:.80}")
    if not prod(dims) == shape.elements <= MAX_ELEMENTS or (shape.flat and (shape.channels, shape.height) != (1, 1)):
        raise _unsound(f"has an impossible shape of output {output.name!r:.80}")
    if output.dtype not in OUTPUT_TYPES or len(output.name) > _MOST_TEXT:
        raise _unsound(f"has an unknown type of output {output.name!r:.80}")
    within = all(part.tile < manifest.tiles and _inside(part.rect, shape.whole) for part in output.parts)
    if not 0 < len(output.parts) <= MOST_TILES or not within or not _cover(output.parts, shape):
        raise _unsound(f"has parts that do not make output {output.name!r:.80}")


def _inside(rect: Rect, whole: Rect) -> bool:
    return rect.rows.size > 0 and rect.cols.size > 0 and whole.contains(rect)


def _cover(parts: Sequence[ResultPart], shape: Shape) -> bool:
    """Return whether parts, all inside, cover a map, each position once."""
    rows = sorted({0, shape.height, *(edge for part in parts for edge in (part.rect.rows.start, part.rect.rows.stop))})
    cols = sorted({0, shape.width, *(edge for part in parts for edge in (part.rect.cols.start, part.rect.cols.stop))})
    row, col = ({edge: place for place, edge in enumerate(edges)} for edges in (rows, cols))
    times: NDArray[np.uint16] = np.zeros((len(rows) - 1, len(cols) - 1), dtype=np.uint16)
    if len(parts) * times.size > 1 << 28:  # of a grid's tiles these are few
        return False
    for part in parts:
        rect = part.rect
        times[row[rect.rows.start] : row[rect.rows.stop], col[rect.cols.start] : col[rect.cols.stop]] += 1
    return bool((times == 1).all())


def cell_bytes(output: ResultOutput, part: ResultPart, images: int) -> int:
    """Return the bytes of a part's cell, its checksum apart."""
    return FLOAT_BYTES * images * output.shape.channels * part.rect.area


def object_bytes(manifest: ResultManifest) -> list[int]:
    """Return the bytes that each of its tiles wrote."""
    sizes = [0] * manifest.tiles
    for output in manifest.outputs:
        for part in output.parts:
            sizes[part.tile] += cell_bytes(output, part, manifest.images) + CHECKSUM_BYTES
    return sizes


def _unsound(fault: str) -> ResultDamagedError:
    return ResultDamagedError(f"the result's manifest {fault}")
