"""The client's side of the Open Inference Protocol, version 2, with binary tensors: requests and answers as bytes.

    {"inputs": [{"name", "shape", "datatype", "parameters": {"binary_data_size": N}}], ...} and N bytes after it

Every response is bounded before it is used; an invalid one is an InputError of one line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError, PlanError
from serfer.core.plan import Plan
from serfer.core.plan.sized_plan import check_one_size
from serfer.core.wire import MAX_BATCH

HEADER: Final = "Inference-Header-Content-Length"
MOST_HEAD: Final = 64 * 1024
"""Bytes of JSON that a server may answer with, tensors apart."""
_DATATYPES: Final = {"u1": "UINT8", "f4": "FP32"}
_FLOAT_BYTES = 4
_MOST_DIGITS = 9
_MOST_TENSORS = 64
_MOST_NAME = 200
_US_PER_S = 1_000_000
_LARGEST = 1e12


@dataclass(frozen=True)
class Form:
    """The names of a model's inputs for pixels and for floats, and of its output.

    `pixels` takes UINT8 (N, H, W, C), `floats` FP32 (N, C, H, W); None if it has no such input.
    """

    pixels: str | None
    floats: str | None
    output: str


@dataclass(frozen=True)
class InferenceOutput:
    """An answer: (N, K) float32 logits; the images of its batch and its compute time, if the server states them."""

    logits: NDArray[np.float32]
    batch: int | None
    computed_ms: float | None


def check_classifies(plan: Plan) -> None:
    """Refuse a plan whose network has other outputs than scores, which instances do not answer; raises PlanError."""
    if not plan.classifies:
        outputs = ", ".join(f"{tensor.name} {list(tensor.dims)}" for tensor in plan.output_tensors)
        raise PlanError(
            f"instances answer with a score for each class, and this plan's outputs are {outputs}: run it on functions "
            "alone (--route serverless)"
        )
    check_one_size(plan, "instances")


def read_form(body: bytes, plan: Plan) -> Form:
    document = _object(body)
    shape = plan.input
    inputs, outputs = _tensors(document, "inputs"), _tensors(document, "outputs")
    pixels = _name_of_tensor(inputs, "UINT8", (shape.height, shape.width, shape.channels))
    floats = _name_of_tensor(inputs, "FP32", (shape.channels, shape.height, shape.width))
    output = _name_of_tensor(outputs, "FP32", (plan.output.elements,))
    if floats is None and pixels is None:
        raise InputError(
            f"the model takes neither FP32 [-1, {shape.channels}, {shape.height}, {shape.width}] nor pixels"
        )
    if output is None:
        raise InputError(f"the model gives no FP32 [-1, {plan.output.elements}]")
    return Form(pixels, floats, output)


def read_index(body: bytes) -> str | None:
    """Return the name of the only model of a server's index, None where there are several or none."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    names = (
        {tensor.get("name") for tensor in document if isinstance(tensor, dict)} if isinstance(document, list) else set()
    )
    only = names.pop() if len(names) == 1 else None
    return only if isinstance(only, str) and 1 <= len(only) <= _MOST_NAME else None


def read_batching(body: bytes) -> int | None:
    """Return how many images a server says that it computes at once, None where it says nothing that can be true."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    most = document.get("max_batch") if isinstance(document, dict) else None
    return most if type(most) is int and 1 <= most <= MAX_BATCH else None


def encode_request(array: NDArray[Any], name: str, output: str, timeout_s: float) -> tuple[bytes, int]:
    """Return the request for a uint8 or float32 array, and how many of its bytes are JSON."""
    data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    head = {
        "inputs": [
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": _DATATYPES[array.dtype.str[1:]],
                "parameters": {"binary_data_size": len(data)},
            }
        ],
        "outputs": [{"name": output, "parameters": {"binary_data": True}}],
        "parameters": {"timeout": max(1, int(timeout_s * _US_PER_S))},
    }
    text = json.dumps(head).encode()
    return text + data, len(text)


def answer_bytes(images: int, classes: int) -> int:
    return MOST_HEAD + images * classes * _FLOAT_BYTES


def decode_answer(body: bytes, header: str | None, output: str, shape: tuple[int, int]) -> InferenceOutput:
    """Read an answer whose `header` says how many of its bytes are JSON; raises InputError for any other shape."""
    if header is None or not (header.isascii() and header.isdigit() and len(header) <= _MOST_DIGITS):
        raise InputError(f"the answer has no {HEADER}: the server knows no binary tensors")
    length = int(header)
    if not 0 < length <= min(len(body), MOST_HEAD):
        raise InputError(f"{HEADER} is {length}, of an answer of {len(body):,} bytes")
    document, raw = _object(body[:length]), memoryview(body)[length:]
    tensor = next((tensor for tensor in _tensors(document, "outputs") if tensor.get("name") == output), None)
    if tensor is None or tensor.get("datatype") != "FP32" or tensor.get("shape") != list(shape):
        raise InputError(f"the answer has no {output!r} of FP32 {list(shape)}")
    size = _parameters(tensor).get("binary_data_size")
    if not (size == len(raw) == math.prod(shape) * _FLOAT_BYTES):
        raise InputError(f"{len(raw):,} bytes follow the answer's JSON, which do not make FP32 {list(shape)}")
    about = _parameters(document)
    batch, computed_ms = _finite_number(about.get("batch")), _finite_number(about.get("computed_ms"))
    return InferenceOutput(np.frombuffer(raw, "<f4").reshape(shape), None if batch is None else int(batch), computed_ms)


def _name_of_tensor(tensors: Sequence[Mapping[str, Any]], datatype: str, shape: Sequence[int]) -> str | None:
    return next((str(tensor["name"]) for tensor in tensors if _fits(tensor, datatype, shape)), None)


def _fits(tensor: Mapping[str, Any], datatype: str, shape: Sequence[int]) -> bool:
    sizes, name = tensor.get("shape"), tensor.get("name")
    if not isinstance(sizes, list) or len(sizes) != len(shape) + 1 or tensor.get("datatype") != datatype:
        return False
    named = isinstance(name, str) and len(name) <= _MOST_NAME
    return named and all(size in (-1, wanted) for size, wanted in zip(sizes[1:], shape, strict=True))


def _finite_number(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST:
        return float(value)
    return None


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InputError("the server answered no JSON object")
    return document


def _tensors(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    tensors = document.get(key)
    if (
        not isinstance(tensors, list)
        or len(tensors) > _MOST_TENSORS
        or not all(isinstance(tensor, dict) for tensor in tensors)
    ):
        raise InputError(f"the server's {key} are not a list of tensors")
    return tensors


def _parameters(document: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = document.get("parameters")
    return parameters if isinstance(parameters, dict) else {}
