"""Tensors between client and service, in the Open Inference Protocol's binary form; numpy is not needed here.

A batch is anything that gives its memory, such as a numpy array; an answer's outputs are what `numpy.asarray` takes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from serfer.client.arrays import TYPES
from serfer.client.messages import Call, Reply, document_of, unreadable
from serfer.core.errors import UsageError

MAX_ANSWER_BYTES: Final = 1024 * 1024 * 1024
INLINE: Final = "inline"
LINK: Final = "link"
_HEADER: Final = "Inference-Header-Content-Length"
_AXES = 4
_INPUTS: Final = {"f": ("input", "FP32"), "B": ("image", "UINT8")}
_MOST_DIGITS, _MOST_AXES = 12, 32


@dataclass(frozen=True)
class ServedTensor:
    """One output of an answer; `numpy.asarray(tensor)` is a read-only view of it, an array (N, ...).

    `datatype` is the protocol's: FP32, INT64, INT32, UINT8 or BOOL; `data` are little-endian values in C order.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """What makes it an array to numpy and others (NumPy's array interface, version 3)."""
        return {"version": 3, "shape": self.shape, "typestr": TYPES[self.datatype][0], "data": self.data}


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
    data = view.tobytes()
    tensor = {
        "name": name,
        "shape": list(view.shape or ()),
        "datatype": datatype,
        "parameters": {"binary_data_size": len(data)},
    }
    wanted = {"binary_data_output": True} if result == INLINE else {}
    parameters = {"result": result} | wanted | ({} if deadline_ms is None else {"deadline_ms": deadline_ms})
    named = {"outputs": [{"name": output} for output in outputs]} if outputs else {}
    head = json.dumps({"inputs": [tensor], **named, "parameters": parameters}).encode()
    return Call(
        method="POST",
        path=f"/v2/models/{quote(model, safe='')}/infer",
        headers={_HEADER: str(len(head)), "Content-Type": "application/octet-stream"},
        content=head + data,
        most_reply_bytes=MAX_ANSWER_BYTES,
    )


def read_tensors(reply: Reply) -> dict[str, ServedTensor]:
    length = reply.headers.get(_HEADER, "")
    if not (length.isascii() and length.isdigit() and len(length) <= _MOST_DIGITS and int(length) <= len(reply.body)):
        raise unreadable(f"{_HEADER} is {length[:_MOST_DIGITS]!r}", reply)
    document = document_of(reply, int(length))
    outputs = document.get("outputs") if isinstance(document, dict) else None
    if not isinstance(outputs, list):
        raise unreadable("no list of outputs", reply)
    tensors, end = [], int(length)
    for output in outputs:
        tensor = _tensor(output, reply, end)
        end += len(tensor.data)
        tensors.append(tensor)
    if end != len(reply.body):
        raise unreadable("its outputs have another size than their shapes say", reply)
    return {tensor.name: tensor for tensor in tensors}


def _tensor(output: Any, reply: Reply, start: int) -> ServedTensor:  # noqa: ANN401 - any JSON value
    members: dict[str, Any] = output if isinstance(output, dict) else {}
    name, datatype, shape = members.get("name"), members.get("datatype"), _shape(members.get("shape"))
    if not (isinstance(name, str) and isinstance(datatype, str) and datatype in TYPES) or shape is None:
        raise unreadable("an output has no name, datatype or shape", reply)
    size = math.prod(shape) * TYPES[datatype][1]
    data = reply.body[start : start + size]
    if len(data) != size:
        raise unreadable(f"output {name[:80]!r} is cut short", reply)
    return ServedTensor(name, datatype, shape, data)


def _shape(sizes: Any) -> tuple[int, ...] | None:  # noqa: ANN401 - any JSON value
    if not isinstance(sizes, list) or len(sizes) > _MOST_AXES:
        return None
    return tuple(sizes) if all(type(size) is int and 0 <= size <= MAX_ANSWER_BYTES for size in sizes) else None
