"""What the service says of a result that it keeps, and of where its outputs can be had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from serfer.client.arrays import ArrayForm
from serfer.client.messages import Reply, document_of, unreadable
from serfer.core.errors import ResultDamagedError
from serfer.core.inference_protocol import DATATYPES, read_shape
from serfer.core.zarr import ChunkedArray, read_array

_MOST_OUTPUTS = 32
_SCHEMES: Final = ("https://", "http://")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class StoredOutput:
    """An output of a result: its form, and the path at the service of its zarr array."""

    form: ArrayForm
    place: str


@dataclass(frozen=True)
class StoredResult:
    """A result: its id, the model that it is of, its outputs, and until when it is kept, in seconds since 1970."""

    id: str
    model: str
    expires: float
    outputs: tuple[StoredOutput, ...]


def read_stored(reply: Reply) -> StoredResult:
    """Return what a reply says of a result; raises ServiceError that names what is wrong with it."""
    return _read(reply, _stored)


def read_stored_array(reply: Reply, form: ArrayForm) -> ChunkedArray:
    return _read(reply, lambda document: _array(document, form))


def read_location(reply: Reply) -> str:
    """Return the address that a reply redirects to; raises ServiceError for one that is none."""
    location = reply.headers.get("Location", "")
    if not location.startswith(_SCHEMES):
        raise unreadable("a redirection to nowhere", reply)
    return location


def _read(reply: Reply, read: Callable[[Any], _Value]) -> _Value:
    document = document_of(reply)
    try:
        return read(document)
    except (KeyError, TypeError, ValueError, ResultDamagedError) as error:
        raise unreadable(f"no result that is kept: {error!r:.80}", reply) from error


def _stored(document: Any) -> StoredResult:  # noqa: ANN401 - any JSON value
    said = document["parameters"]
    return StoredResult(
        _text(said["result"]),
        _text(document["model_name"]),
        float(said["result_expires"]),
        tuple(_output(output) for output in _list(document["outputs"])),
    )


def _output(document: Any) -> StoredOutput:  # noqa: ANN401 - any JSON value
    datatype, shape = document["datatype"], read_shape(document["shape"])
    if datatype not in DATATYPES or shape is None:
        raise ValueError(datatype)
    said = document["parameters"]
    form = ArrayForm(_text(document["name"]), datatype, shape)
    return StoredOutput(form, _path(said["result_zarr"]))


def _array(document: Any, form: ArrayForm) -> ChunkedArray:  # noqa: ANN401 - any JSON value
    array = read_array(document, "the answer")
    if (array.dtype, array.shape) != (DATATYPES[form.datatype].dtype, form.shape):
        raise ValueError("the array has another type or shape than was said")
    return array


def _path(text: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return a path at the service itself: an API key goes nowhere else."""
    if not _text(text).startswith("/") or text.startswith("//"):
        raise ValueError(text)
    return str(text)


def _text(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _list(value: Any) -> list[Any]:  # noqa: ANN401 - any JSON value
    if not isinstance(value, list) or len(value) > _MOST_OUTPUTS:
        raise TypeError(type(value))
    return value
