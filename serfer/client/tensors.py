"""Tensors between client and service, in the Open Inference Protocol's binary form; numpy is not needed here.

A batch is anything that gives its memory, such as a numpy array; an answer's outputs are what `numpy.asarray` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

from serfer.client.arrays import ArrayForm
from serfer.client.messages import Call, Reply, document_of, unreadable
from serfer.core.errors import InputError, ResultDamagedError, UsageError
from serfer.core.inference_protocol import DATATYPES, HEADER, ServedTensor, decode_answer, encode_request, read_shape
from serfer.core.zarr import ChunkedArray, read_array

MAX_ANSWER_BYTES: Final = 1024 * 1024 * 1024
INLINE: Final = "inline"
LINK: Final = "link"
_AXES = 4
_MOST_OUTPUTS = 32
_SCHEMES: Final = ("https://", "http://")
_Value = TypeVar("_Value")
_INPUTS: Final = {"f": ("input", "FP32"), "B": ("image", "UINT8")}


def infer_call(
    model: str,
    batch: Any,  # noqa: ANN401 - whatever has the buffer protocol
    outputs: Sequence[str] | None,
    deadline_ms: int | None,
    result: str = INLINE,
) -> Call:
    """Return the request for a batch, (N, C, H, W) float32 or (N, H, W, C) uint8 pixels; raises UsageError.

    `result` says whether the outputs are wanted in the answer, `INLINE`, or kept by the service, `LINK`.
    """
    try:
        view = memoryview(batch)
    except TypeError:
        raise UsageError("a batch is a numpy array, or something else that gives its memory") from None
    if view.format not in _INPUTS or view.ndim != _AXES:
        raise UsageError("a batch is (N, C, H, W) float32, or (N, H, W, C) uint8 pixels of the network's size")
    name, datatype = _INPUTS[view.format]
    wanted = {"binary_data_output": True} if result == INLINE else {}
    parameters = {"result": result} | wanted | ({} if deadline_ms is None else {"deadline_ms": deadline_ms})
    named = [{"name": output} for output in outputs or ()]
    content, length = encode_request((name, datatype, view.shape or ()), view.tobytes(), named, parameters)
    return Call(
        method="POST",
        path=f"/v2/models/{quote(model, safe='')}/infer",
        headers={HEADER: str(length), "Content-Type": "application/octet-stream"},
        content=content,
        most_reply_bytes=MAX_ANSWER_BYTES,
    )


def read_tensors(reply: Reply) -> dict[str, ServedTensor]:
    try:
        _, outputs = decode_answer(reply.body, reply.headers.get(HEADER, ""))
    except InputError as error:
        raise unreadable(str(error), reply) from error
    return {output.name: output for output in outputs}


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
