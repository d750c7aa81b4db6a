"""Objects of SerFer's driver and workers in the store: tensors, or views of tensors that keep all of their storage.

    4 bytes    msgpack                                          padding   raw
    length  |  for each tensor: its shape, and the view's bounds  |  ...  |  float32, one tensor after the other

The authors pickle a view, which stores the whole array behind it. Their pickle is replaced, what it stores is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError
from serfer.core.keys import output_key

Array = NDArray[np.float32]
TTL_S = 24 * 3600.0
"""SerFer never deletes a key and gives none a time to live; our stores insist on one, so it is a day."""
_LENGTH = 4
_ALIGNED = 16  # bytes: where the raw part may start
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class View:
    """Elements [start, stop) along each axis of `whole`."""

    whole: Array
    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, whole: Array, place: Sequence[slice] = ()) -> View:
        slices = [*place, *[slice(None)] * (whole.ndim - len(place))]
        spans = [one.indices(size)[:2] for one, size in zip(slices, whole.shape, strict=True)]
        return cls(whole, tuple(spans))

    @property
    def array(self) -> Array:
        return self.whole[tuple(slice(*span) for span in self.bounds)]

    def alone(self) -> View:
        return View.of(np.ascontiguousarray(self.array))


def encode(views: Sequence[View]) -> bytes:
    header = msgpack.packb([[view.whole.shape, view.bounds] for view in views])
    padding = -(_LENGTH + len(header)) % _ALIGNED
    storage = (np.ascontiguousarray(view.whole, dtype="<f4").data.cast("B") for view in views)
    return b"".join([len(header).to_bytes(_LENGTH, "little"), header, bytes(padding), *storage])


def decode(value: bytes) -> list[View]:
    try:
        return list(_views(value))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise InputError(f"the object of {len(value)} bytes holds no tensors") from error


def _views(value: bytes) -> Iterator[View]:
    length = int.from_bytes(value[:_LENGTH], "little")
    header: Any = msgpack.unpackb(value[_LENGTH : _LENGTH + length])
    start = -(-(_LENGTH + length) // _ALIGNED) * _ALIGNED
    for shape, bounds in header:
        whole = np.frombuffer(value, dtype="<f4", count=prod(shape), offset=start).reshape(shape)
        start += _FLOAT_BYTES * whole.size
        yield View(whole, tuple((first, last) for first, last in bounds))


def written_key(query: str, stage: int, tile: int) -> str:
    return output_key(query, stage, tile)


def read_key(query: str, stage: int, tile: int) -> str:
    return f"{output_key(query, stage, tile)}:input"
