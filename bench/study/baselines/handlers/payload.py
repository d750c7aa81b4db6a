"""Tensors inside JSON payloads, as base64: what Gillis's master and workers send each other."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError

_TYPES: dict[str, np.dtype[Any]] = {"uint8": np.dtype(np.uint8), "float32": np.dtype("<f4")}


def to_json(array: NDArray[Any]) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array).data.cast("B")).decode("ascii")
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def from_json(value: Any) -> NDArray[Any]:  # noqa: ANN401 - any plain value
    match value:
        case {"dtype": str(dtype), "shape": [*shape], "data": str(data)} if dtype in _TYPES:
            try:
                return np.frombuffer(binascii.a2b_base64(data), dtype=_TYPES[dtype]).reshape(shape)
            except (ValueError, TypeError) as error:
                raise InputError("the payload's tensor does not have the bytes that its shape needs") from error
    raise InputError("the payload carries no tensor")
