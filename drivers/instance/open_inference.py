"""What a driver asks an instance in the Open Inference Protocol (serfer/core/inference_protocol.py), and its answers.

Every response is bounded before it is used; an invalid one is an InputError of one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serfer.core import inference_protocol as protocol
from serfer.core.errors import InputError, PlanError
from serfer.core.plan import Plan
from serfer.core.plan.sized_plan import check_one_size
from serfer.core.wire import MAX_BATCH

MOST_HEAD: Final = 64 * 1024
"""Bytes of JSON that a server may answer with, tensors apart."""
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
    document = protocol.read_object(body)
    shape = plan.input
    inputs, outputs = protocol.read_tensors(document, "inputs"), protocol.read_tensors(document, "outputs")
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
    document = _read_json(body)
    models = document if isinstance(document, list) else []
    names = {model.get("name") for model in models if isinstance(model, dict)}
    only = names.pop() if len(names) == 1 else None
    return only if isinstance(only, str) and 1 <= len(only) <= _MOST_NAME else None


def read_batching(body: bytes) -> int | None:
    """Return how many images a server says that it computes at once, None where it says nothing that can be true."""
    document = _read_json(body)
    most = document.get("max_batch") if isinstance(document, dict) else None
    return most if type(most) is int and 1 <= most <= MAX_BATCH else None


def _read_json(body: bytes) -> Any:  # noqa: ANN401 - any JSON
    with suppress(InputError):
        return protocol.read_json(body)


def encode_request(array: NDArray[Any], name: str, output: str, timeout_s: float) -> tuple[bytes, int]:
    """Return the request for a uint8 or float32 array, and how many of its bytes are JSON."""
    values = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    outputs = [{"name": output, "parameters": {"binary_data": True}}]
    parameters = {"timeout": max(1, int(timeout_s * _US_PER_S))}
    return protocol.encode_request(
        (name, protocol.BY_DTYPE[array.dtype.name], array.shape), values, outputs, parameters
    )


def answer_bytes(images: int, classes: int) -> int:
    return MOST_HEAD + images * classes * protocol.DATATYPES["FP32"].itemsize


def decode_answer(body: bytes, header: str | None, output: str, shape: tuple[int, int]) -> InferenceOutput:
    """Read an answer whose `header` says how many of its bytes are JSON; raises InputError for any other shape."""
    document, tensors = protocol.decode_answer(body, header or "", MOST_HEAD)
    tensor = next((tensor for tensor in tensors if tensor.name == output), None)
    if tensor is None or (tensor.datatype, tensor.shape) != ("FP32", shape):
        raise InputError(f"the answer has no {output!r} of FP32 {list(shape)}")
    about = protocol.parameters_of(document)
    batch, computed_ms = _finite_number(about.get("batch")), _finite_number(about.get("computed_ms"))
    logits = np.frombuffer(tensor.data, "<f4").reshape(shape)
    return InferenceOutput(logits, None if batch is None else int(batch), computed_ms)


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
