"""Arrays in chunks that tiles write, as zarr has them (zarr specification, version 3.1; codecs `bytes` and `crc32c`).

    PATH/zarr.json        the array's shape, type, chunk shape and codecs; in its attributes, what it is an output of
    PATH/c/0/0/ROW/COL    a tile's values (images, channels, rows, cols), C order, little-endian, then their CRC-32C

Chunks of zarr's regular grid are of one size, and tiles differ by a row: a chunk is as large as the largest tile, and
what a smaller one lacks is zeros. At the end of an axis zarr does the same. Elsewhere the array stored is longer than
the output, whose edges are in the attributes:

    edges 0 3 6 7    aaa bbb c--    seven rows stored, as any zarr array's
    edges 0 3 5 7    aaa bb- cc-    nine rows stored, seven of them the output's

Nothing here needs zarr, and reading its metadata no numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from serfer.core.crc32c import crc32c
from serfer.core.errors import ResultDamagedError
from serfer.core.geometry import Rect, Span

if TYPE_CHECKING:
    from numpy.typing import NDArray

METADATA: Final = "zarr.json"
CRC_BYTES: Final = 4
ITEM_BYTES: Final = {"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "int64": 8} | {
    "float32": 4,
    "float64": 8,
}
"""The types of values, and the bytes of each."""
MOST_METADATA_BYTES: Final = 4 * 1024 * 1024
_MOST_SIDE, _MOST_ELEMENTS, _MOST_RANK, _MOST_TEXT = 1 << 31, 1 << 40, 8, 1024
_MOST_CHUNKS = 100_000  # of an axis
_VECTOR, _MAPS = 2, 4
_FREE: Final = ("fill_value", "attributes", "dimension_names", "storage_transformers")  # members


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of an output: its chunks lie between `edges`, which begin with 0 and end with its size."""

    edges: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.edges[-1]

    @property
    def count(self) -> int:
        return len(self.edges) - 1

    @property
    def chunk(self) -> int:
        return max(stop - start for start, stop in pairwise(self.edges))

    @property
    def stored(self) -> int:
        """The length of what is stored: its size, where only the last chunk is shorter than others."""
        chunk = self.chunk
        regular = all(edge == number * chunk for number, edge in enumerate(self.edges[:-1]))
        return self.size if regular else self.count * chunk


class Chunk(NamedTuple):
    """A chunk, below the array at `path`, and the rectangle of the output that it has."""

    path: str
    rect: Rect


@dataclass(frozen=True, slots=True)
class ChunkedArray:
    """An output of so many images in chunks: maps of `channels`, or vectors (`flat`, one channel of one row).

    An image's share of the output called `name` has the shape `dims`, and the same values in the same order. Where its
    size along `axis` of them depends on the image, they have the most of it, zeros lie behind an image's own, and
    `sized_by` names the output with these sizes.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    images: int
    channels: int
    rows: Axis
    cols: Axis
    flat: bool
    sized_by: str = ""
    axis: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.images, *self.dims)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def planes(self) -> int:
        return self.images * self.channels

    @property
    def chunk_bytes(self) -> int:
        return self.planes * self.rows.chunk * self.cols.chunk * self.item_bytes + CRC_BYTES

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        return self._of(self.rows.chunk, self.cols.chunk)

    @property
    def chunks(self) -> Iterator[Chunk]:
        for row, rows in enumerate(pairwise(self.rows.edges)):
            for col, cols in enumerate(pairwise(self.cols.edges)):
                path = f"c/0/{col}" if self.flat else f"c/0/0/{row}/{col}"
                yield Chunk(path, Rect(Span(*rows), Span(*cols)))

    def metadata(self) -> dict[str, Any]:
        little: dict[str, Any] = {"configuration": {"endian": "little"}} if self.item_bytes > 1 else {}
        sized = {"sized_by": self.sized_by, "axis": self.axis} if self.sized_by else {}
        edges = [list(axis.edges) for axis in ((self.cols,) if self.flat else (self.rows, self.cols))]
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [*self._of(self.rows.stored, self.cols.stored)],
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*self.chunk_shape]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": False if self.dtype == "bool" else 0.0 if self.dtype.startswith("float") else 0,
            "codecs": [{"name": "bytes", **little}, {"name": "crc32c"}],
            "dimension_names": ["image", "value"] if self.flat else ["image", "channel", "row", "column"],
            "attributes": {"serfer": {"output": self.name, "dims": [*self.dims], "edges": edges, **sized}},
        }

    def _of(self, rows: int, cols: int) -> tuple[int, ...]:
        return (self.images, cols) if self.flat else (self.images, self.channels, rows, cols)


def encode_chunk(array: ChunkedArray, values: NDArray[Any]) -> bytearray:
    """Return a tile's values, (N, C, rows, cols) or (N, cols), as a chunk, in the array's type and of its size."""
    import numpy as np  # noqa: PLC0415 - a client may have none

    encoded = bytearray(array.chunk_bytes)
    data = memoryview(encoded)[:-CRC_BYTES]
    whole = np.frombuffer(data, np.dtype(array.dtype).newbyteorder("<")).reshape(array.chunk_shape)
    place = tuple(slice(size) for size in values.shape)
    whole[place] = values
    encoded[-CRC_BYTES:] = crc32c(data).to_bytes(CRC_BYTES, "little")
    return encoded


def read_array(document: Any, where: str) -> ChunkedArray:  # noqa: ANN401 - any JSON value
    """Return the array that a zarr.json describes, SerFer's or another's whose last two axes at most are cut.

    Raises ResultDamagedError that names `where` for anything else, before anything is allocated.
    """
    try:
        return _parse_document(document)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ResultDamagedError(f"{where} has no array that can be read: {error!r:.120}") from None


def _parse_document(document: Mapping[str, Any]) -> ChunkedArray:
    shape, dtype = _sizes(document["shape"]), document["data_type"]
    chunk = _sizes(document["chunk_grid"]["configuration"]["chunk_shape"])
    flat = len(shape) == _VECTOR
    if not (flat or len(shape) == _MAPS) or not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ValueError("its type or its axes are unknown")
    said = document.get("attributes", {}).get("serfer", {})
    cut = shape[-1:] if flat else shape[-2:]
    listed = said.get("edges") or [_regular(*sizes) for sizes in zip(cut, chunk[-len(cut) :], strict=True)]
    axes = [Axis(_edges(edges, size)) for edges, size in zip(listed, cut, strict=True)]
    array = ChunkedArray(
        name=said.get("output", ""),
        dtype=dtype,
        dims=_sizes(said.get("dims", [*shape[1 : -len(cut)], *(axis.size for axis in axes)])),
        images=shape[0],
        channels=1 if flat else shape[1],
        rows=Axis((0, 1)) if flat else axes[0],
        cols=axes[-1],
        flat=flat,
        sized_by=said.get("sized_by", ""),
        axis=said.get("axis", 0),
    )
    names = (array.name, array.sized_by)
    if not all(isinstance(name, str) and len(name) <= _MOST_TEXT for name in names) or len(array.dims) > _MOST_RANK:
        raise ValueError("its name or its dims are impossible")
    if type(array.axis) is not int or not 0 <= array.axis < max(1, len(array.dims)):
        raise ValueError("the axis of its size is impossible")
    if math.prod(array.dims) != array.channels * array.rows.size * array.cols.size or math.prod(shape) > _MOST_ELEMENTS:
        raise ValueError("its shape is impossible")
    expected = array.metadata() | {key: document.get(key) for key in _FREE if key in document}
    if document.get("storage_transformers") or any(expected.get(key) != value for key, value in document.items()):
        raise ValueError("it has another grid, other keys, other codecs, or an extension")
    return array


def _sizes(value: Any) -> tuple[int, ...]:  # noqa: ANN401 - any JSON value
    if not isinstance(value, list) or not all(type(size) is int and 0 < size <= _MOST_SIDE for size in value):
        raise ValueError("a length is impossible")
    return tuple(value)


def _regular(size: int, chunk: int) -> list[int]:
    if -(-size // chunk) > _MOST_CHUNKS:
        raise ValueError("it has too many chunks")
    return [*range(0, size, chunk), size]


def _edges(value: Any, stored: int) -> tuple[int, ...]:  # noqa: ANN401 - any JSON value
    edges = (0, *_sizes(value[1:]))
    if value[:1] != [0] or not 1 < len(edges) <= stored + 1 or any(stop <= start for start, stop in pairwise(edges)):
        raise ValueError("its edges do not grow")
    return edges
