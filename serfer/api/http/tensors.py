"""Requests and answers of the Open Inference Protocol, version 2, as bytes: JSON, or JSON and binary data after it.

    {"inputs": [{"name", "shape", "datatype", "data": [...]}]}                          JSON alone
    {"inputs": [{..., "parameters": {"binary_data_size": N}}]} and N bytes after it     binary (Triton's extension)

A model here takes one tensor, in one of several forms, and gives one. Nothing is decoded before its name, datatype,
shape and length are known to be right; what is wrong with a request is a Problem 400 in one line.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from pydantic_core import from_json

from serfer.api.http.inference_models import (
    InferenceRequest,
    OutputParameters,
    RequestParameters,
    RequestTensor,
    TensorMetadata,
)
from serfer.api.http.problems import Problem
from serfer.api.http.validation import first_fault, shown
from serfer.core.errors import NotFiniteError

Array = NDArray[Any]
_DTYPES: Final[dict[str, np.dtype[Any]]] = {"FP32": np.dtype("<f4"), "UINT8": np.dtype("u1")}
_NUMBERS: Final[dict[str, set[type]]] = {"FP32": {float, int}, "UINT8": {int}}  # of JSON's; a bool is neither
_MOST_BESIDES = 1024  # commas and brackets of a request beside those of its tensor
_SHOWN = 40  # characters of what a client sent


@dataclass(frozen=True)
class TensorForm:
    """A tensor that a model takes or gives; `shape` is one image's, before which the batch goes."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Values for one image."""
        return math.prod(self.shape)

    @property
    def lists(self) -> int:
        """Lists that one image's values are nested in, in JSON."""
        return sum(math.prod(self.shape[:depth]) for depth in range(len(self.shape)))

    def metadata(self) -> TensorMetadata:
        """Return what the protocol says of a tensor; -1 stands for the batch."""
        return TensorMetadata(name=self.name, datatype=self.datatype, shape=[-1, *self.shape])


@dataclass(frozen=True)
class Inference:
    """A request: the array of `form`, and how its answer should look.

    `classes`, where it is not 0, is how many of the highest logits are wanted, as text, in place of all of them.
    """

    id: str | None
    form: TensorForm
    array: Array
    binary: bool
    classes: int
    parameters: RequestParameters


@dataclass(frozen=True)
class Signature:
    """A model's inputs, of which a request has one, for 1 to `most` images, and its output."""

    takes: Sequence[TensorForm]
    gives: TensorForm
    most: int


def decode_request(body: bytes, header: int | None, signature: Signature) -> Inference:
    """Read a request whose JSON is the first `header` bytes of its body, or all of it; raises Problem 400."""
    if header is not None and not 0 < header <= len(body):
        raise _bad(f"Inference-Header-Content-Length is {header}, of a body of {len(body):,} bytes")
    try:
        request = InferenceRequest.model_validate(_json(body[:header], signature))
    except ValidationError as error:
        raise _bad(first_fault(error)) from None
    parameters = request.parameters or RequestParameters()
    binary, classes = _wanted(request, signature.gives, parameters)
    tensor = request.inputs[0]
    form = _form(tensor.name, signature)
    array = _array(tensor, form, signature.most, memoryview(body)[header:] if header else None)
    return Inference(request.id, form, array, binary, classes, parameters)


def encode_answer(
    inference: Inference, logits: Array, named: Mapping[str, Any], form: TensorForm, labels: Sequence[str]
) -> tuple[bytes, int | None]:
    """Return the answer to a request, and how many of its bytes are JSON where binary data follows.

    `logits` is (N, K) float32, `named` what comes before them: the model's name and version, and parameters where there
    are any. Raises NotFiniteError for logits that are NaN or infinite, which binary data alone can say: a driver that
    asks an instance for that checks them itself, so that a network of NaN is not a broken instance.
    """
    if (inference.classes or not inference.binary) and not np.isfinite(logits).all():
        raise NotFiniteError("the network's outputs for this input are not all finite numbers")
    if inference.classes:
        rows = [_best(row, inference.classes, labels) for row in logits]
        output: dict[str, Any] = {"name": form.name, "datatype": "BYTES", "shape": [len(rows), len(rows[0])]}
        data: list[Any] = list(chain.from_iterable(rows))
        raw = (
            b"".join(struct.pack("<I", len(text)) + text for text in map(str.encode, data)) if inference.binary else b""
        )
    else:
        output = {"name": form.name, "datatype": form.datatype, "shape": list(logits.shape)}
        raw = logits.astype("<f4", copy=False).tobytes() if inference.binary else b""
        data = [] if inference.binary else logits.ravel().tolist()
    output |= {"parameters": {"binary_data_size": len(raw)}} if inference.binary else {"data": data}
    identifier = {} if inference.id is None else {"id": inference.id}
    head = json.dumps({**named, **identifier, "outputs": [output]}, allow_nan=False).encode()
    return (head + raw, len(head)) if inference.binary else (head, None)


def _best(row: Array, classes: int, labels: Sequence[str]) -> list[str]:
    """Return the highest logits of an image, each "VALUE:INDEX" or "VALUE:INDEX:LABEL"."""
    order = np.argsort(-row, kind="stable")[:classes].tolist()
    return [f"{row[index]:f}:{index}" + (f":{labels[index]}" if labels else "") for index in order]


def _json(text: bytes, signature: Signature) -> object:
    """Decode JSON with no more values than the images need: lists of nothing would take 30 times their bytes."""
    values = signature.most * max(form.elements for form in signature.takes) + _MOST_BESIDES
    lists = signature.most * max(form.lists for form in signature.takes) + _MOST_BESIDES
    bounds = ((b",", values), (b"[", lists), (b"{", _MOST_BESIDES))
    if any(text.count(mark) > most for mark, most in bounds):
        raise _bad(f"the request's JSON has more values than {signature.most} images need, as many as are accepted")
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise _bad(f"the request's JSON cannot be read: {error}") from None


def _form(name: str, signature: Signature) -> TensorForm:
    """Return the form that an input's name stands for."""
    for form in signature.takes:
        if form.name == name:
            return form
    raise _bad(
        f"inputs[0] is {shown(name)}: this model takes {' or '.join(repr(form.name) for form in signature.takes)}"
    )


def _array(tensor: RequestTensor, form: TensorForm, most: int, raw: memoryview | None) -> Array:
    """Return a tensor, (N, ...), from JSON or from the binary data `raw`."""
    where = f"input {form.name!r}"
    if tensor.datatype != form.datatype:
        raise _bad(f"{where} has datatype {shown(tensor.datatype)}: it should be {form.datatype}")
    shape = _shape(tensor.shape, form, most)
    size = tensor.parameters.binary_data_size if tensor.parameters else None
    if size is None:
        if raw:
            raise _bad(f"{len(raw):,} bytes follow the request's JSON, and {where} has no binary_data_size")
        return _from_json(tensor.data, form, shape)
    if "data" in tensor.model_fields_set:
        raise _bad(f"{where} has both data and binary_data_size")
    expected = math.prod(shape) * _DTYPES[form.datatype].itemsize
    if raw is None:
        raise _bad(f"{where} has binary_data_size, and the request no Inference-Header-Content-Length")
    if not size == expected == len(raw):
        raise _bad(
            f"{where} of shape {list(shape)} takes {expected:,} bytes: binary_data_size is {size:,}, and {len(raw):,} "
            f"bytes follow the request's JSON"
        )
    array = np.frombuffer(raw, _DTYPES[form.datatype])
    if not np.isfinite(array).all():
        raise _bad(f"{where} has values that are NaN or infinite")
    return array.reshape(shape)


def _shape(shape: Sequence[int], form: TensorForm, most: int) -> tuple[int, ...]:
    """Return the shape of a tensor of 1 to `most` images."""
    if tuple(shape[1:]) != form.shape:
        given = str(shape[:8])[: 2 * _SHOWN]
        raise _bad(f"input {form.name!r} has shape {given}: it should be {[-1, *form.shape]}, where -1 is 1 to {most}")
    if not 1 <= shape[0] <= most:
        raise _bad(f"input {form.name!r} has {str(shape[0])[:_SHOWN]} images: 1 to {most} are accepted")
    return tuple(shape)


def _from_json(data: object, form: TensorForm, shape: tuple[int, ...]) -> Array:
    """Return the array of a flat list, or of lists nested as `shape` says."""
    where, datatype = f"input {form.name!r}", form.datatype
    values = _flat(data, shape)
    if values is None or len(values) != math.prod(shape):
        raise _bad(f"{where}: data should be a list of {math.prod(shape):,} numbers, flat or nested as {list(shape)}")
    if not set(map(type, values)) <= _NUMBERS[datatype]:
        raise _bad(f"{where}: data has something else than {datatype} numbers")
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, _DTYPES[datatype])
    except OverflowError:
        array = None
    if array is None or not np.isfinite(array).all():
        raise _bad(f"{where}: data has a number that {datatype} cannot hold")
    return array.reshape(shape)


def _flat(data: object, shape: tuple[int, ...]) -> list[Any] | None:
    """Return a list without its nesting, None where that is not `shape`'s."""
    if not isinstance(data, list):
        return None
    if not data or not isinstance(data[0], list):
        return data
    values = [data]
    for size in shape:
        if not all(isinstance(part, list) and len(part) == size for part in values):
            return None
        values = list(chain.from_iterable(values))
    return values


def _wanted(request: InferenceRequest, gives: TensorForm, parameters: RequestParameters) -> tuple[bool, int]:
    """Return whether the output is wanted as binary data, and how many classes of it, 0 for all its numbers."""
    if not request.outputs:
        return parameters.binary_data_output, 0
    output = request.outputs[0]
    if output.name != gives.name:
        raise _bad(f"outputs[0] is {shown(output.name)}: this model gives {gives.name!r}")
    own = output.parameters or OutputParameters()
    binary = parameters.binary_data_output if own.binary_data is None else own.binary_data
    return binary, min(own.classification, gives.elements)


def _bad(detail: str) -> Problem:
    return Problem(HTTPStatus.BAD_REQUEST, detail)
