"""Requests and answers of the Open Inference Protocol, version 2, as bytes: JSON, or JSON and binary data after it.

    {"inputs": [{"name", "shape", "datatype", "data": [...]}]}                          JSON alone
    {"inputs": [{..., "parameters": {"binary_data_size": N}}]} and N bytes after it     binary (Triton's extension)

A model here takes one tensor, in one of several forms, and gives one or several. Nothing is decoded before its name,
datatype, shape and length are known to be right; what is wrong with a request is a Problem 400 in one line. An answer
that would be too large is kept for its client to fetch where the service keeps results, else refused with 422 before
anything is computed.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from serfer.core.inference_protocol import DATATYPES
from serfer.core.plan import AxisForm, InputSizes

Array = NDArray[Any]
_DTYPES: Final = {name: np.dtype(kind.typestr) for name, kind in DATATYPES.items()}
_MOST_DIGITS: Final = {"FP32": 26, "INT64": 22, "INT32": 13, "UINT8": 5, "BOOL": 7}  # of a value in JSON, with ", "
_NUMBERS: Final[dict[str, set[type]]] = {  # of JSON's; a bool is neither
    **{datatype: {int} for datatype in _DTYPES},
    **{datatype: {float, int} for datatype in ("FP16", "FP32", "FP64")},
    "BOOL": {bool},
}
_MOST_BESIDES = 1024  # commas and brackets of a request beside those of its tensor
_SHOWN = 40  # characters of what a client sent
_bad, _unprocessable = partial(Problem, 400), partial(Problem, 422)


@dataclass(frozen=True)
class TensorForm:
    """A tensor that a model takes or gives; `shape` is one image's, before which the batch goes.

    `axes`, where a file has the input in another form than queries, are those of `shape`: "CHW", "HWC" or "HW".
    `tensor` is what the plan calls an output that has another name here. Where a size depends on the image, along axes
    `varies` of `shape`, that has the most of it. An input of a plan that takes many `sizes` has its rows and columns on
    the axes `sides`; its outputs follow from them by `axis_forms`, one for each axis.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    axes: str = ""
    tensor: str = ""
    varies: tuple[int, ...] = ()
    sizes: InputSizes | None = None
    sides: tuple[int, int] = (0, 0)
    axis_forms: tuple[AxisForm, ...] = ()

    @property
    def elements(self) -> int:
        """Values for one image, at most; of an output of a plan of many sizes, for one of the largest size."""
        return self._most(len(self.shape))

    @property
    def nbytes(self) -> int:
        return self.elements * _DTYPES[self.datatype].itemsize

    @property
    def lists(self) -> int:
        """Lists that one image's values are nested in, in JSON, at most."""
        return sum(map(self._most, range(len(self.shape))))

    def _most(self, axes: int) -> int:
        if self.sizes is None:
            return math.prod(self.shape[:axes])
        others = math.prod(size for axis, size in enumerate(self.shape[:axes]) if axis not in self.sides)
        rows, columns = (axis < axes for axis in self.sides)
        if rows and columns:
            return others * self.sizes.most_pixels
        return others * (self.sizes.rows.most if rows else self.sizes.columns.most if columns else 1)

    def takes(self, shape: tuple[int, ...]) -> bool:
        if self.sizes is None or len(shape) != len(self.shape):
            return shape == self.shape
        rows, columns = self.sides
        others = [axis for axis, (given, own) in enumerate(zip(shape, self.shape, strict=True)) if given != own]
        return {*others} <= {*self.sides} and (shape[rows], shape[columns]) in self.sizes

    def of(self, taken: TensorForm, shape: Sequence[int]) -> TensorForm:
        """Return the form of an output for an image whose input of form `taken` has a shape."""
        if taken.sizes is None:
            return self
        units = taken.sizes.units((shape[taken.sides[0]], shape[taken.sides[1]]))
        return replace(self, shape=tuple(axis.at(units) for axis in self.axis_forms))

    def as_queries(self, array: Array) -> Array:
        """Return a tensor of this form as queries have it: (N, C, H, W) float32, or pixels as they are.

        Values that float32 does not have become infinite.
        """
        if not self.axes:
            return array
        array = array[:, None] if self.axes == "HW" else array.transpose(0, 3, 1, 2) if self.axes == "HWC" else array
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, dtype=np.float32)

    def metadata(self) -> TensorMetadata:
        """Return what the protocol says of a tensor; -1 stands for the batch, and for a size of the image's own."""
        shape = [-1 if axis in self.varies else size for axis, size in enumerate(self.shape)]
        return TensorMetadata(name=self.name, datatype=self.datatype, shape=[-1, *shape])


@dataclass(frozen=True)
class WantedOutput:
    """An output that a request wants, as binary data or in JSON.

    `classes`, where it is not 0, is how many of the highest scores are wanted, as text, in place of all of them.
    """

    form: TensorForm
    binary: bool
    classes: int = 0

    def most_bytes(self, images: int) -> int:
        """Return how many bytes of an answer it takes at most, apart from classes, which are few."""
        datatype = self.form.datatype
        each = _DTYPES[datatype].itemsize if self.binary else _MOST_DIGITS[datatype]
        return 0 if self.classes else images * self.form.elements * each


@dataclass(frozen=True)
class Inference:
    """A request: the array of `form`, and the outputs that its answer has, in order, or that are `kept`."""

    id: str | None
    form: TensorForm
    array: Array
    wanted: Sequence[WantedOutput]
    parameters: RequestParameters
    kept: bool = False


@dataclass(frozen=True)
class Signature:
    """A model's inputs, of which a request has one, for 1 to `most` images, and its outputs.

    A network that was read from a file has the file's names, its input the first of `takes`; it takes and gives
    `also_takes` and `also_gives`, too, which every network has here.

    An answer has at most about `most_bytes`, a result that is kept at most `most_kept_bytes`: 0 where none are.
    """

    takes: Sequence[TensorForm]
    gives: Sequence[TensorForm]
    most: int
    most_bytes: int = sys.maxsize
    most_kept_bytes: int = 0
    also_takes: Sequence[TensorForm] = ()
    also_gives: Sequence[TensorForm] = ()

    @property
    def forms(self) -> list[TensorForm]:
        return [*self.takes, *self.also_takes]


def decode_request(body: bytes, header: int | None, signature: Signature) -> Inference:
    """Read a request whose JSON is the first `header` bytes of its body, or all of it.

    Raises Problem: 400, and 422 for an answer that would be too large.
    """
    if header is not None and not 0 < header <= len(body):
        raise _bad(f"Inference-Header-Content-Length is {header}, of a body of {len(body):,} bytes")
    try:
        request = InferenceRequest.model_validate(_json(body[:header], signature))
    except ValidationError as error:
        raise _bad(first_fault(error)) from None
    parameters = request.parameters or RequestParameters()
    tensor = request.inputs[0]
    form = _form(tensor, signature)
    wanted = _read_wanted(request, signature, parameters)
    given = _array(tensor, form, signature.most, memoryview(body)[header:] if header else None)
    wanted = tuple(replace(output, form=output.form.of(form, given.shape[1:])) for output in wanted)
    array = form.as_queries(given)
    if form.datatype == "FP64" and not np.isfinite(array).all():
        raise _bad(f"input {form.name!r} has values that float32, in which networks compute here, does not have")
    kept = _is_kept(wanted, len(array), signature, parameters.result)
    return Inference(request.id, form, array, wanted, parameters, kept)


def encode_answer(
    inference: Inference, outputs: Mapping[str, Array], named: Mapping[str, Any], labels: Sequence[str]
) -> tuple[bytes, int | None]:
    """Return the answer to a request, and how many of its bytes are JSON where binary data follows.

    `outputs` are arrays (N, ...) by name, `named` what comes before them: the model's name and version, and parameters
    where there are any. Raises NotFiniteError for values that are NaN or infinite, which binary data alone can say: a
    driver that asks an instance for that checks them itself, so that a network of NaN is not a broken instance.
    """
    encoded = [_encode(wanted, outputs[wanted.form.tensor or wanted.form.name], labels) for wanted in inference.wanted]
    identifier = {} if inference.id is None else {"id": inference.id}
    document = {**named, **identifier, "outputs": [tensor for tensor, _ in encoded]}
    head = json.dumps(document, allow_nan=False).encode()
    binary = any(wanted.binary for wanted in inference.wanted)
    return b"".join([head, *(raw for _, raw in encoded)]), len(head) if binary else None


def _encode(wanted: WantedOutput, values: Array, labels: Sequence[str]) -> tuple[dict[str, Any], bytes]:
    form = wanted.form
    if (wanted.classes or not wanted.binary) and not np.isfinite(values).all():
        raise NotFiniteError("the network's outputs for this input are not all finite numbers")
    if wanted.classes:
        rows = [_best(row, wanted.classes, labels) for row in values]
        output: dict[str, Any] = {"name": form.name, "datatype": "BYTES", "shape": [len(rows), len(rows[0])]}
        data: list[Any] = list(chain.from_iterable(rows))
        texts = (struct.pack("<I", len(text)) + text for text in map(str.encode, data))
        raw = b"".join(texts) if wanted.binary else b""
    else:
        output = {"name": form.name, "datatype": form.datatype, "shape": list(values.shape)}
        raw = values.astype(_DTYPES[form.datatype], copy=False).tobytes() if wanted.binary else b""
        data = [] if wanted.binary else values.ravel().tolist()
    return output | ({"parameters": {"binary_data_size": len(raw)}} if wanted.binary else {"data": data}), raw


def _best(row: Array, classes: int, labels: Sequence[str]) -> list[str]:
    order = np.argsort(-row, kind="stable")[:classes].tolist()
    return [f"{row[index]:f}:{index}" + (f":{labels[index]}" if index < len(labels) else "") for index in order]


def _json(text: bytes, signature: Signature) -> object:
    """Decode JSON with no more values than the images need: lists of nothing would take 30 times their bytes."""
    values = signature.most * max(form.elements for form in signature.forms) + _MOST_BESIDES
    lists = signature.most * max(form.lists for form in signature.forms) + _MOST_BESIDES
    bounds = ((b",", values), (b"[", lists), (b"{", _MOST_BESIDES))
    if any(text.count(mark) > most for mark, most in bounds):
        raise _bad(f"the request's JSON has more values than {signature.most} images need, as many as are accepted")
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise _bad(f"the request's JSON cannot be read: {error}") from None


def _form(tensor: RequestTensor, signature: Signature) -> TensorForm:
    forms = [form for form in signature.forms if form.name == tensor.name]
    if not forms:
        known = " or ".join(repr(form.name) for form in signature.takes)
        raise _bad(f"inputs[0] is {shown(tensor.name)}: this model takes {known}")
    alike = [form for form in forms if form.datatype == tensor.datatype]
    same = [form for form in alike if form.takes(tuple(tensor.shape[1:]))]
    return (same or alike or forms)[0]


def _array(tensor: RequestTensor, form: TensorForm, most: int, raw: memoryview | None) -> Array:
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
    if not form.takes(tuple(shape[1:])):
        given, own = str(shape[:8])[: 2 * _SHOWN], form.metadata().shape
        sizes = f" images of {form.sizes}" if form.sizes else ""
        raise _bad(f"input {form.name!r} has shape {given}: it should be {own}, where -1 is 1 to {most}{sizes}")
    if not 1 <= shape[0] <= most:
        raise _bad(f"input {form.name!r} has {str(shape[0])[:_SHOWN]} images: 1 to {most} are accepted")
    return tuple(shape)


def _from_json(data: object, form: TensorForm, shape: tuple[int, ...]) -> Array:
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


def _read_wanted(
    request: InferenceRequest, signature: Signature, parameters: RequestParameters
) -> tuple[WantedOutput, ...]:
    forms = {form.name: form for form in (*signature.also_gives, *signature.gives)}
    if not request.outputs:
        return tuple(WantedOutput(form, parameters.binary_data_output) for form in signature.gives)
    wanted: dict[str, WantedOutput] = {}
    for number, output in enumerate(request.outputs):
        if output.name in wanted or output.name not in forms:
            known = " and ".join(repr(form.name) for form in signature.gives)
            why = "it is asked for twice" if output.name in wanted else f"this model gives {known}"
            raise _bad(f"outputs[{number}] is {shown(output.name)}: {why}")
        own = output.parameters or OutputParameters()
        form = forms[output.name]
        if own.classification and (len(form.shape) != 1 or form.datatype != "FP32"):
            raise _bad(f"output {form.name!r} is not a score for each class: it has no classification")
        binary = parameters.binary_data_output if own.binary_data is None else own.binary_data
        wanted[form.name] = WantedOutput(form, binary, min(own.classification, form.elements))
    return tuple(wanted.values())


def _is_kept(wanted: Sequence[WantedOutput], images: int, signature: Signature, result: str | None) -> bool:
    """Return whether outputs are kept instead of sent: if that is asked for, or the answer would be too large.

    What it takes follows from the outputs' shapes: one that can be neither sent nor kept is never computed.
    """
    if result != "link":
        sizes = {output.form.name: output.most_bytes(images) for output in wanted}
        if sum(sizes.values()) <= signature.most_bytes:
            return False
        if result == "inline" or not signature.most_kept_bytes or any(output.classes for output in wanted):
            raise _too_large(
                "the answer",
                sizes,
                f"are sent (SERFER_API_MAX_ANSWER_BYTES): {_advice(result, signature)}",
                signature.most_bytes,
            )
    if not signature.most_kept_bytes:
        raise _unprocessable("this service keeps no results (SERFER_RESULTS): leave the parameter result out")
    if any(output.classes for output in wanted):
        raise _bad("an output with classification is text, which is not kept: leave the parameter result out")
    sizes = {form.name: images * form.nbytes for form in signature.gives}  # all of them are kept
    if sum(sizes.values()) > signature.most_kept_bytes:
        what = "are kept (SERFER_API_MAX_RESULT_BYTES): ask for fewer images"
        raise _too_large("the result", sizes, what, signature.most_kept_bytes)
    return True


def _advice(result: str | None, signature: Signature) -> str:
    less = "ask for fewer images, for some of the outputs, or for binary data"
    if not signature.most_kept_bytes:
        return f"{less}; a service that keeps results (SERFER_RESULTS) answers with links to them"
    return f"{less}, or, with the parameter result, for a link" if result == "inline" else less


def _too_large(what: str, sizes: Mapping[str, int], why: str, most: int) -> Problem:
    each = ", ".join(f"{name!r} {size:,}" for name, size in sizes.items())
    return _unprocessable(f"{what} would have up to {sum(sizes.values()):,} bytes ({each}), and at most {most:,} {why}")
