"""The Open Inference Protocol, version 2, with binary tensors: what server, drivers and clients have of it in common.

    {"inputs": [{"name", "shape", "datatype", "parameters": {"binary_data_size": N}}], ...} and N bytes after it

`HEADER` says how many bytes are JSON. Every answer is bounded before it is used; an invalid one is an InputError of one
line. Nothing here needs numpy.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from serfer.core.errors import InputError

HEADER: Final = "Inference-Header-Content-Length"
_MOST_DIGITS, _MOST_TENSORS, _MOST_AXES, _MOST_SIZE = 18, 64, 32, 1 << 62


class Datatype(NamedTuple):
    """A type of little-endian values: numpy's string and name for it, and the bytes of a value."""

    typestr: str
    dtype: str
    itemsize: int


DATATYPES: Final = {
    "FP16": Datatype("<f2", "float16", 2),
    "FP32": Datatype("<f4", "float32", 4),
    "FP64": Datatype("<f8", "float64", 8),
    "INT8": Datatype("|i1", "int8", 1),
    "INT16": Datatype("<i2", "int16", 2),
    "UINT16": Datatype("<u2", "uint16", 2),
    "INT64": Datatype("<i8", "int64", 8),
    "INT32": Datatype("<i4", "int32", 4),
    "UINT8": Datatype("|u1", "uint8", 1),
    "BOOL": Datatype("|b1", "bool", 1),
}
BY_DTYPE: Final = {kind.dtype: name for name, kind in DATATYPES.items()}
"""What the protocol calls numpy's types."""


@dataclass(frozen=True)
class ServedTensor:
    """One output of an answer; `numpy.asarray(tensor)` is a read-only view of it, an array (N, ...).

    `datatype` is the protocol's, one of `DATATYPES`; `data` are little-endian values in C order.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """What makes it an array to numpy and others (NumPy's array interface, version 3)."""
        return {"version": 3, "shape": self.shape, "typestr": DATATYPES[self.datatype].typestr, "data": self.data}


def header_length(text: str) -> int | None:
    """Return how many bytes of a body are JSON by its header, None for what is not such a number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def encode_request(
    tensor: tuple[str, str, Sequence[int]],
    values: bytes,
    outputs: Sequence[Mapping[str, Any]],
    parameters: Mapping[str, Any],
) -> tuple[bytes, int]:
    """Return the request for a tensor of a name, datatype and shape, and how many of its bytes are JSON."""
    name, datatype, shape = tensor
    size = {"binary_data_size": len(values)}
    given = {"name": name, "shape": [*shape], "datatype": datatype, "parameters": size}
    wanted = {"outputs": outputs} if outputs else {}
    head = json.dumps({"inputs": [given], **wanted, "parameters": parameters}).encode()
    return head + values, len(head)


def decode_answer(body: bytes, header: str, most_head: int = sys.maxsize) -> tuple[dict[str, Any], list[ServedTensor]]:
    """Return an answer's JSON, of `most_head` bytes at most, and its outputs, all binary; raises InputError."""
    length = header_length(header)
    if length is None:
        raise InputError(f"the answer has no {HEADER}: the server knows no binary tensors")
    if not 0 < length <= min(len(body), most_head):
        raise InputError(f"{HEADER} is {length}, of an answer of {len(body):,} bytes")
    document, tensors, end = read_object(body[:length]), [], length
    for output in read_tensors(document, "outputs"):
        name, datatype, shape = output.get("name"), output.get("datatype"), read_shape(output.get("shape"))
        if not (isinstance(name, str) and isinstance(datatype, str) and datatype in DATATYPES) or shape is None:
            raise InputError("an output has no name, datatype or shape")
        start, end = end, end + math.prod(shape) * DATATYPES[datatype].itemsize
        if not parameters_of(output).get("binary_data_size") == end - start <= len(body) - start:
            raise InputError(f"output {name[:80]!r} is cut short")
        tensors.append(ServedTensor(name, datatype, shape, body[start:end]))
    if end != len(body):
        raise InputError("the answer's outputs have another size than their shapes say")
    return document, tensors


def read_json(text: bytes) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(text, parse_constant=int)  # which NaN is not
    except (ValueError, RecursionError) as error:
        raise InputError("the server answered no JSON") from error


def read_object(text: bytes) -> dict[str, Any]:
    document = read_json(text)
    if not isinstance(document, dict):
        raise InputError("the server answered no JSON object")
    return document


def read_tensors(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    tensors = document.get(key)
    if (
        isinstance(tensors, list)
        and len(tensors) <= _MOST_TENSORS
        and all(isinstance(tensor, dict) for tensor in tensors)
    ):
        return tensors
    raise InputError(f"the server's {key} are not a list of tensors")


def read_shape(sizes: object) -> tuple[int, ...] | None:
    if not isinstance(sizes, list) or len(sizes) > _MOST_AXES:
        return None
    return tuple(sizes) if all(type(size) is int and 0 <= size <= _MOST_SIZE for size in sizes) else None


def parameters_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = document.get("parameters")
    return parameters if isinstance(parameters, dict) else {}
