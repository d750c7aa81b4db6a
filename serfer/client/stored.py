"""What the service says of a result that it keeps, and of where its outputs can be had."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from serfer.client.arrays import TYPES, ArrayForm
from serfer.client.messages import Reply, document_of, unreadable

_MOST_AXES = 32
_MOST_SIZE = 1 << 62
_MOST_PARTS = 100_000
_FLOAT_BYTES, _CRCS = 4, 1 << 32
_SCHEMES: Final = ("https://", "http://")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class StoredOutput:
    """An output of a result: its form, and the paths at the service of its .npy file, and of the list of its parts.

    A path that the service does not have is empty.
    """

    form: ArrayForm
    link: str
    parts: str


@dataclass(frozen=True)
class StoredResult:
    """A result: its id, the model that it is of, its outputs, and until when it is kept, in seconds since 1970."""

    id: str
    model: str
    expires: float
    outputs: tuple[StoredOutput, ...]


@dataclass(frozen=True)
class Part:
    """A part of an array, the rectangle of `shape` from `start`, at a URL: `bytes` of float32 from `offset`.

    Their CRC-32, begun with `seed`, follows them in four bytes.
    """

    url: str
    offset: int
    bytes: int
    seed: int
    start: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Parts:
    """The parts of an array of `layout`, which has the values of the output in the same order."""

    layout: ArrayForm
    parts: tuple[Part, ...]


def read_stored(reply: Reply) -> StoredResult:
    """Return what a reply says of a result; raises ServiceError that names what is wrong with it."""
    return _read(reply, _stored)


def read_parts(reply: Reply, form: ArrayForm) -> Parts:
    """Return the parts that a reply lists of the array of `form`; raises ServiceError as well."""
    return _read(reply, lambda document: _parts(document, form))


def _read(reply: Reply, read: Callable[[Any], _Value]) -> _Value:
    document = document_of(reply)
    try:
        return read(document)
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(f"no result that is kept: {error!r:.80}", reply) from error


def _stored(document: Any) -> StoredResult:  # noqa: ANN401 - any JSON value
    said = document["parameters"]
    return StoredResult(
        _text(said["result"]),
        _text(document["model_name"]),
        float(said["result_expires"]),
        tuple(_output(each) for each in _list(document["outputs"], _MOST_AXES)),
    )


def _output(document: Any) -> StoredOutput:  # noqa: ANN401 - any JSON value
    datatype, shape = document["datatype"], _sizes(document["shape"])
    if datatype not in TYPES or len(shape) > _MOST_AXES:
        raise ValueError(datatype)
    said = document["parameters"]
    form = ArrayForm(_text(document["name"]), datatype, shape)
    return StoredOutput(form, _path(said.get("result_link", "")), _path(said.get("result_parts", "")))


def _parts(document: Any, form: ArrayForm) -> Parts:  # noqa: ANN401 - any JSON value
    layout = ArrayForm(form.name, form.datatype, _sizes(document["layout"]))
    parts = tuple(_part(each, layout) for each in _list(document["parts"], _MOST_PARTS))
    if not layout.values == form.values == sum(math.prod(part.shape) for part in parts):
        raise ValueError("the parts are not the whole")
    return Parts(layout, parts)


def _part(document: Any, layout: ArrayForm) -> Part:  # noqa: ANN401 - any JSON value
    url, start, shape = _text(document["url"]), _sizes(document["start"]), _sizes(document["shape"])
    offset, size, seed = _sizes([document["offset"], document["bytes"], document["seed"]])
    within = all(first + count <= whole for first, count, whole in zip(start, shape, layout.shape, strict=True))
    if not (within and url.startswith(_SCHEMES) and size == math.prod(shape) * _FLOAT_BYTES and seed < _CRCS):
        raise ValueError(url)
    return Part(url, offset, size, seed, start, shape)


def _path(text: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return a path at the service itself: an API key goes nowhere else."""
    if text and (not _text(text).startswith("/") or text.startswith("//")):
        raise ValueError(text)
    return str(text)


def _text(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _list(value: Any, most: int) -> list[Any]:  # noqa: ANN401 - any JSON value
    if not isinstance(value, list) or len(value) > most:
        raise TypeError(type(value))
    return value


def _sizes(values: Any) -> tuple[int, ...]:  # noqa: ANN401 - any JSON value
    sizes = tuple(_list(values, _MOST_AXES))
    if not all(type(size) is int and 0 <= size <= _MOST_SIZE for size in sizes):
        raise ValueError(values)
    return sizes
